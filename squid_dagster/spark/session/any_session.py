"""`AnySession`: what the public calls of this room take as a session, be it of a JVM here or of Spark Connect.

The two are of unrelated classes, and that of Connect is loaded only where it is used.
"""

from typing import Any, Protocol

from pyspark.sql import DataFrame, DataFrameReader


class AnySession(Protocol):
    """A `SparkSession`, classic or of Spark Connect."""

    @property
    def read(self) -> DataFrameReader:
        """What reads frames."""

    @property
    def conf(self) -> Any:
        """Its settings."""

    @property
    def dataSource(self) -> Any:  # noqa: N802  Spark's own name
        """Where data sources are registered."""

    def createDataFrame(self, *args: Any, **kwargs: Any) -> DataFrame:  # noqa: N802  Spark's own name
        """Make a frame of rows."""
