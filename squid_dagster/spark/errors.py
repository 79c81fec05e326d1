"""Errors of Spark and of the warehouse, most of them raised before any work starts. Imports no pyspark."""

from squid_dagster.protocol.errors import SquidError


class SparkUnavailable(SquidError):
    """Spark cannot be used as configured: its master does not answer, or another session is in the way."""


class JavaMissing(SparkUnavailable):
    """There is no Java that Spark can run on."""


class WarehouseUnavailable(SquidError):
    """The directory of the tables cannot be read or written."""


class WarehouseBusy(WarehouseUnavailable):
    """Another process refreshes the tables there."""


class WarehouseTooNew(WarehouseUnavailable):
    """The tables there were written by a newer version, and this code cannot continue them."""


class ForeignWarehouse(WarehouseUnavailable):
    """The tables there are those of another journal."""


class RefreshFailed(SquidError):
    """Spark failed during a refresh. Each table is as it was before, or completely refreshed."""
