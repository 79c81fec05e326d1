"""The warehouse: the journal's tables as Parquet, each consisting of the directories that its manifest names.

    <warehouse>/<table>/manifest.json
    <warehouse>/<table>/<generation>/part=<day>/*.parquet

A refresh writes a generation with the changed days, and then replaces the manifest. Directories that it no longer
names stay until the refresh after it, for readers; then they are deleted, with all that a failed refresh left behind.
Reading takes no lock; one refresh at a time holds `warehouse_lock`.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from uuid import uuid4

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from squid_dagster.journal.postgres.schema.long_lock import release_long_lock, take_long_lock
from squid_dagster.journal.postgres.schema.names import lock_number
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.errors import WarehouseBusy, WarehouseUnavailable
from squid_dagster.spark.session.any_session import AnySession
from squid_dagster.spark.tables.files import Files, PartStatistics
from squid_dagster.spark.tables.manifest import Manifest, day_name, dump_manifest, load_manifest

STAGE = "folded_runs"
QUEUE_HEALTH = "queue_health"
TABLES = ("run_index", "run_catalog", "run_history", "attempt_history", "journal_anomalies", QUEUE_HEALTH)
"""The tables, in the order in which they are made from `STAGE`."""

PART = "part"
LockCheck = Callable[[], None]
_MANIFEST = "manifest.json"
_LOCK_POLL_SECONDS = 1.0
_SETTINGS = {
    # The older type, INT96, has no statistics, and is slow in readers other than Spark.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.adaptive.enabled": "true",  # equalizes the sizes of files
}


@checks_arguments
class Warehouse:
    """The tables in one directory. Reading needs Spark only; `refresh` writes them."""

    def __init__(self, path: str) -> None:
        """Store a directory, by path or URI (`s3://bucket/squid`); nothing is read or written yet.

        Raises:
            InvalidArgument: no file system is known for it.
        """
        self.files = Files(path)

    def __repr__(self) -> str:
        """Return the class and the directory."""
        return f"Warehouse({self.path!r})"

    @property
    def path(self) -> str:
        """The directory."""
        return self.files.shown

    def read(self, spark: AnySession, table: str, days: Collection[date | str] | None = None) -> DataFrame:
        """Return a frame of a table, or only of the runs that started on these days.

        Its files stay until the refresh after the next one begins. Runs without a start, and facts that belong to no
        run, have no day; `days` may name them, too, as "unknown" and "loose".

        Raises:
            InvalidArgument: there is no table of that name.
            WarehouseUnavailable, WarehouseTooNew: it does not exist yet, or cannot be read.
        """
        manifest = self.manifest(table)
        if manifest is None:
            raise WarehouseUnavailable(
                f"there is no table {table!r} in the warehouse {self.path!r} yet: materialize it, or call refresh"
            )
        return self.read_parts(spark, manifest, None if days is None else {day_name(day) for day in days})

    def read_parts(self, spark: AnySession, manifest: Manifest, parts: Iterable[str] | None = None) -> DataFrame:
        """Return a frame of the rows that a manifest names, of some parts or of all."""
        wanted = manifest.parts.keys() if parts is None else manifest.parts.keys() & set(parts)
        schema = StructType.fromJson(json.loads(manifest.columns))
        directories = [manifest.parts[name].directory for name in sorted(wanted)]
        paths = [self._for_spark(manifest.table, directory) for directory in directories if directory is not None]
        if not paths:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).parquet(*paths)

    def manifest(self, table: str) -> Manifest | None:
        """Return a table's manifest, None if the table does not exist yet.

        Raises:
            InvalidArgument: there is no table of that name.
            WarehouseUnavailable, WarehouseTooNew: it cannot be read.
        """
        if table not in (STAGE, *TABLES):
            raise InvalidArgument(f"there is no table {table!r}: choose from {', '.join((*TABLES, STAGE))}")
        data = self.files.read(f"{table}/{_MANIFEST}")
        return None if data is None else load_manifest(table, data)

    def check(self) -> None:
        """Write a file there and delete it again. Raises `WarehouseUnavailable` if that is not possible."""
        self.files.probe(f".probe-{uuid4().hex}")

    # --- for the holder of the lock -----------------------------------------------------------------------------------

    def write(self, rows: DataFrame, table: str, generation: str) -> dict[str, PartStatistics]:
        """Write rows, divided by their column `part`, as a new generation; return the statistics of each part.

        Readers do not see them before a manifest names them.
        """
        target = f"{table}/{generation}"
        # The manifest says which directories count: Spark's _SUCCESS files are not needed.
        writer = rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        writer.partitionBy(PART).parquet(self._for_spark(table, generation))
        return self.files.part_statistics(target)

    def publish(self, manifest: Manifest) -> None:
        """Replace the manifest of a table. Raises `WarehouseUnavailable`; the table is then as it was."""
        self.files.replace(f"{manifest.table}/{_MANIFEST}", dump_manifest(manifest))

    def tidy(self, manifest: Manifest) -> None:
        """Delete the directories that neither this manifest nor the previous names. Raises `WarehouseUnavailable`."""
        named = {*manifest.directories, *manifest.former}
        generations = {name.partition("/")[0] for name in named}
        for generation in self.files.directories(manifest.table):
            if generation not in generations:
                self.files.remove([f"{manifest.table}/{generation}"])
                continue
            parts = [f"{generation}/{name}" for name in self.files.directories(f"{manifest.table}/{generation}")]
            self.files.remove(f"{manifest.table}/{part}" for part in parts if part not in named)

    def _for_spark(self, table: str, directory: str) -> str:
        return f"{self.files.for_spark}/{table}/{directory}"


def directory_of(generation: str, part: str) -> str:
    """Return the directory of a part, relative to its table's."""
    return f"{generation}/{PART}={part}"


@contextmanager
def write_settings(spark: SparkSession) -> Iterator[None]:
    """Set what writing needs, and restore the caller's settings afterwards."""
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


@contextmanager
def warehouse_lock(
    storage: PostgresStorage, warehouse: Warehouse, wait: timedelta = timedelta(0)
) -> Iterator[LockCheck]:
    """Acquire an advisory lock in the journal's database; yield a function that raises if the lock was lost meanwhile.

    Polls instead of waiting in the database, where a waiting statement holds back vacuum.

    Raises:
        WarehouseBusy: another process has the lock, and still has it after `wait`; or it was lost.
        StorageUnavailable: the database cannot be reached.
    """
    number = lock_number(storage.schema, f"warehouse:{warehouse.files.identity}")
    with storage.connection() as connection:
        deadline = time.monotonic() + wait.total_seconds()
        while not take_long_lock(connection, number):
            if time.monotonic() >= deadline:
                raise WarehouseBusy(
                    f"another refresh of the warehouse {warehouse.path!r} is under way: wait for it, then try again"
                )
            time.sleep(_LOCK_POLL_SECONDS)

        def check() -> None:
            try:
                connection.execute("SELECT 1")
            except psycopg.Error:
                raise WarehouseBusy(
                    f"the lock of the warehouse {warehouse.path!r} was lost with the connection to Postgres, and "
                    "somebody else may be writing there: the tables are as they were, refresh again"
                ) from None

        try:
            yield check
        finally:
            release_long_lock(connection)
