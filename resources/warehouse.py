"""The directory of the tables that Spark makes."""

from squid_dagster import WarehouseResource

# Without a path: SQUID_WAREHOUSE, else a directory beside the embedded server's data.
warehouse_resource = WarehouseResource()
