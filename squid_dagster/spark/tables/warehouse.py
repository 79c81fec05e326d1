"""The warehouse: the journal's tables as Parquet, each made of the directories that its manifest names.

    <warehouse>/<table>/manifest.json
    <warehouse>/<table>/<generation>/part=<day>/*.parquet

A refresh writes a generation with the days that have changed, and then replaces the manifest. Directories that are no
longer named stay for one more refresh, for those who still read them; then they are removed, and with them whatever a
refresh left behind that did not come to its end.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import date
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.errors import WarehouseUnavailable
from squid_dagster.spark.session.any_session import AnySession
from squid_dagster.spark.tables.files import Files, Written
from squid_dagster.spark.tables.manifest import Manifest, day_name, dump_manifest, load_manifest

STAGE = "folded_runs"
QUEUE_HEALTH = "queue_health"
TABLES = ("run_index", "run_catalog", "run_history", "attempt_history", "journal_anomalies", QUEUE_HEALTH)
"""The tables that everything is for, in the order in which they are made; `STAGE` is what they are made from."""

PART = "part"
_MANIFEST = "manifest.json"
_SETTINGS = {
    # The older spelling has no statistics, and other readers than Spark are slow with it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.adaptive.enabled": "true",  # sizes the files, whatever the sizes of days
}


@checks_arguments
class Warehouse:
    """The tables in one directory. Whoever reads needs nothing but Spark; `refresh` writes them."""

    def __init__(self, path: str) -> None:
        """Bind to a directory, by path or URI (`s3://bucket/squid`); nothing is touched yet.

        Raises:
            InvalidArgument: no file system is known for it.
        """
        self.files = Files(path)

    def __repr__(self) -> str:
        """Name the directory."""
        return f"Warehouse({self.path!r})"

    @property
    def path(self) -> str:
        """The directory."""
        return self.files.shown

    def read(self, spark: AnySession, table: str, days: Collection[date | str] | None = None) -> DataFrame:
        """Give a table as it stands, or only the rows of runs that started on these days.

        What is read stays as it is until the refresh after the next one begins. Rows of runs without a start, and of
        facts that belong to no run, have no day; `days` may name them too, as "unknown" and "loose".

        Raises:
            InvalidArgument: there is no table of that name.
            WarehouseUnavailable, WarehouseTooNew: it was never made, or cannot be read.
        """
        manifest = self.manifest(table)
        if manifest is None:
            raise WarehouseUnavailable(
                f"there is no table {table!r} in the warehouse {self.path!r} yet: materialize it, or call refresh"
            )
        return self.read_parts(spark, manifest, None if days is None else {day_name(day) for day in days})

    def read_parts(self, spark: AnySession, manifest: Manifest, parts: Iterable[str] | None = None) -> DataFrame:
        """Give the rows that a manifest names, of some parts or of all."""
        wanted = manifest.parts.keys() if parts is None else manifest.parts.keys() & set(parts)
        schema = StructType.fromJson(json.loads(manifest.columns))
        found = [manifest.parts[name].directory for name in sorted(wanted)]
        paths = [self._for_spark(manifest.table, each) for each in found if each is not None]
        if not paths:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).parquet(*paths)

    def manifest(self, table: str) -> Manifest | None:
        """Give a table's manifest, None if it was never made.

        Raises:
            InvalidArgument: there is no table of that name.
            WarehouseUnavailable, WarehouseTooNew: it cannot be read.
        """
        if table not in (STAGE, *TABLES):
            raise InvalidArgument(f"there is no table {table!r}: choose from {', '.join((*TABLES, STAGE))}")
        data = self.files.read(f"{table}/{_MANIFEST}")
        return None if data is None else load_manifest(table, data)

    def check(self) -> None:
        """Write a file there and remove it again. Raises `WarehouseUnavailable` if that cannot be done."""
        self.files.probe(f".probe-{uuid4().hex}")

    # --- for whoever holds the lock ----------------------------------------------------------------------------------

    def write(self, rows: DataFrame, table: str, generation: str) -> dict[str, Written]:
        """Write rows, divided by their column `part`, as a new generation; tell what each part holds.

        Nobody sees them before a manifest names them.
        """
        target = f"{table}/{generation}"
        # Each directory says all by itself whether it counts: no other mark is needed.
        writer = rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        writer.partitionBy(PART).parquet(self._for_spark(table, generation))
        return self.files.written(target)

    def publish(self, manifest: Manifest) -> None:
        """Make the table what a manifest says. Raises `WarehouseUnavailable`, and then it is as it was."""
        self.files.replace(f"{manifest.table}/{_MANIFEST}", dump_manifest(manifest))

    def tidy(self, manifest: Manifest) -> None:
        """Remove what neither this manifest nor the one before it names. Raises `WarehouseUnavailable`."""
        kept = {*manifest.directories, *manifest.former}
        generations = {name.partition("/")[0] for name in kept}
        for generation in self.files.below(manifest.table):
            if generation not in generations:
                self.files.remove([f"{manifest.table}/{generation}"])
                continue
            parts = [f"{generation}/{name}" for name in self.files.below(f"{manifest.table}/{generation}")]
            self.files.remove(f"{manifest.table}/{each}" for each in parts if each not in kept)

    def _for_spark(self, table: str, directory: str) -> str:
        return f"{self.files.for_spark}/{table}/{directory}"


def directory_of(generation: str, part: str) -> str:
    """Give the directory of a part, below that of its table."""
    return f"{generation}/{PART}={part}"


@contextmanager
def settings(spark: SparkSession) -> Iterator[None]:
    """Set what writing needs for a while; the session is somebody else's."""
    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)
