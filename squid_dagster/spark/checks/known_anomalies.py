"""The anomalies of the last check, stored beside the tables of the warehouse.

    <warehouse>/checks/known_anomalies.json             the current generation
    <warehouse>/checks/known_anomalies/<generation>/    the keys of the anomalies, as Parquet

They are stored there, and not in Dagster, so that deleting a Dagster home loses nothing. Without stored anomalies, all
count as new: otherwise those since the loss would stay hidden.
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
class StoredAnomalies:
    """The stored anomalies: their generation, the cut of their check, and their number."""

    generation: str
    cut: int
    rows: int


class KnownAnomalies:
    """The stored anomalies of one warehouse."""

    def __init__(self, warehouse: str) -> None:
        """Store a warehouse, by path or URI; nothing is read yet. Raises `InvalidArgument`, as `Files`."""
        self._files = Files(warehouse)

    def remembered(self) -> StoredAnomalies | None:
        """Return what is stored; None if nothing readable is.

        Raises:
            WarehouseUnavailable: the directory cannot be read.
        """
        data = self._files.read(_POINTER)
        try:
            pointer = json.loads(data or b"")
            if pointer["version"] != _VERSION:
                return None
            remembered = StoredAnomalies(str(pointer["generation"]), int(pointer["cut"]), int(pointer["rows"]))
        except (ValueError, KeyError, TypeError):
            return None
        # The directory may have been deleted since.
        return remembered if remembered.generation in self._files.directories(_DIRECTORY) else None

    def read(self, spark: SparkSession, remembered: StoredAnomalies) -> DataFrame:
        """Return the keys of the known anomalies."""
        return spark.read.schema(_SCHEMA).parquet(self._path(remembered.generation))

    def remember(self, anomalies: DataFrame, *, cut: int, rows: int, generation: str) -> None:
        """Store these anomalies in place of the former ones; `generation` must be a new name.

        The previous generation is kept for its readers.

        Raises:
            WarehouseUnavailable: it cannot be written; the former anomalies stay.
        """
        before = self.remembered()
        anomalies.select(*KEY).coalesce(1).write.parquet(self._path(generation))
        pointer = {"version": _VERSION, "generation": generation, "cut": cut, "rows": rows}
        self._files.replace(_POINTER, json.dumps(pointer).encode())
        current = {generation, before.generation if before else None}
        self._files.remove(
            f"{_DIRECTORY}/{name}" for name in self._files.directories(_DIRECTORY) if name not in current
        )

    def _path(self, generation: str) -> str:
        return f"{self._files.for_spark}/{_DIRECTORY}/{generation}"
