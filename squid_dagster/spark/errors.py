"""What can be wrong with Spark itself, said before any work starts."""

from squid_dagster.protocol.errors import SquidError


class SparkUnavailable(SquidError):
    """Spark cannot be used as configured: its master does not answer, or another session is in the way."""


class JavaMissing(SparkUnavailable):
    """There is no Java that Spark could run on."""


class WarehouseUnavailable(SquidError):
    """The directory of the tables cannot be written, or read, as it is."""


class WarehouseBusy(WarehouseUnavailable):
    """Somebody else refreshes the tables there."""


class WarehouseTooNew(WarehouseUnavailable):
    """The tables there were written by a newer version that this code cannot go on from."""


class ForeignWarehouse(WarehouseUnavailable):
    """The tables there are those of another journal."""


class RefreshFailed(SquidError):
    """Spark came to no end with a refresh. All tables are as they were, or as they are to be."""
