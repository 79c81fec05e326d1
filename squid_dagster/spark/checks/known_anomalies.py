"""The anomalies that were there at the last check, kept beside the tables of the warehouse.

    <warehouse>/checks/known_anomalies.json             which generation counts
    <warehouse>/checks/known_anomalies/<generation>/    the keys of the anomalies, as Parquet

They are kept there, and not with Dagster, so that a Dagster home that is deleted forgets nothing. Where there is no
memory, all anomalies count as new: to call them known would hide whatever came in since the memory was lost.
"""

import json
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from squid_dagster.spark.tables.files import Files

KEY = ("thread", "seq", "ordinal", "reason")
_SCHEMA = StructType(
    [StructField(name, LongType() if name in {"seq", "ordinal"} else StringType()) for name in KEY],
)
_VERSION = 1
_DIRECTORY = "checks/known_anomalies"
_POINTER = f"{_DIRECTORY}.json"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is known: where it stands, and how many anomalies these are."""

    generation: str
    cut: int
    rows: int


class KnownAnomalies:
    """The memory of one warehouse."""

    def __init__(self, warehouse: str) -> None:
        """Bind to a warehouse, by path or URI; nothing is touched yet. Raises `InvalidArgument`, as `Files`."""
        self._files = Files(warehouse)

    def remembered(self) -> Remembered | None:
        """Tell what is known; None when there is no memory, or none that can be read.

        Raises:
            WarehouseUnavailable: the directory cannot be read.
        """
        data = self._files.read(_POINTER)
        try:
            found = json.loads(data or b"")
            if found["version"] != _VERSION:
                return None
            remembered = Remembered(str(found["generation"]), int(found["cut"]), int(found["rows"]))
        except (ValueError, KeyError, TypeError):
            return None
        # The pointer may have outlived what it points to.
        return remembered if remembered.generation in self._files.below(_DIRECTORY) else None

    def read(self, spark: SparkSession, remembered: Remembered) -> DataFrame:
        """Give the keys of the known anomalies."""
        return spark.read.schema(_SCHEMA).parquet(self._path(remembered.generation))

    def remember(self, anomalies: DataFrame, *, cut: int, rows: int, generation: str) -> None:
        """Know these anomalies from now on, and no others; `generation` is a name that was never used before.

        The one before is kept for whoever reads it.

        Raises:
            WarehouseUnavailable: it cannot be written; what was known is still known.
        """
        before = self.remembered()
        anomalies.select(*KEY).coalesce(1).write.parquet(self._path(generation))
        told = {"version": _VERSION, "generation": generation, "cut": cut, "rows": rows}
        self._files.replace(_POINTER, json.dumps(told).encode())
        kept = {generation, before.generation if before else None}
        self._files.remove(f"{_DIRECTORY}/{name}" for name in self._files.below(_DIRECTORY) if name not in kept)

    def _path(self, generation: str) -> str:
        return f"{self._files.for_spark}/{_DIRECTORY}/{generation}"
