"""`AnySession`: the session type of the public functions, for a JVM in this process and for Spark Connect.

The two are unrelated classes, and that of Connect is loaded only where it is used.
"""

from typing import Any, Protocol

from pyspark.sql import DataFrame, DataFrameReader


class AnySession(Protocol):
    """A `SparkSession`, classic or of Spark Connect."""

    @property
    def read(self) -> DataFrameReader:
        """The reader of frames."""

    @property
    def conf(self) -> Any:
        """Its settings."""

    @property
    def dataSource(self) -> Any:  # noqa: N802  Spark's own name
        """The registry of data sources."""

    def createDataFrame(self, *args: Any, **kwargs: Any) -> DataFrame:  # noqa: N802  Spark's own name
        """Build a frame of rows."""
