"""What can be wrong with Spark itself, said before any work starts."""

from squid_dagster.protocol.errors import SquidError


class SparkUnavailable(SquidError):
    """Spark cannot be used as configured: its master does not answer, or another session is in the way."""


class JavaMissing(SparkUnavailable):
    """There is no Java that Spark could run on."""
