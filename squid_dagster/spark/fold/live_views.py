"""A rebuild of the live views by Spark: its workers fold the runs and write their rows into the shadow tables.

Creating the shadow tables, folding the tail and swapping belong to the rebuild itself (`journal.postgres.views`). The
driver receives a count per task and no entry.

A task may run twice: after its worker died behind the commit, or speculatively. Both attempts compute equal rows, since
nothing changes under a cut, and the first one inserts them. An abandoned worker that goes on writing cannot write into
the shadow tables of a later rebuild: it checks their oid, and holds a lock on them while it writes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import LiteralString

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.schema.names import statement
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.folded_rows import ViewRows
from squid_dagster.journal.postgres.views.rebuild import Progress, RebuildReport, rebuild_views
from squid_dagster.journal.postgres.views.table_swap import SHADOW
from squid_dagster.protocol.errors import StorageUnavailable
from squid_dagster.spark.fold.folds import COLUMNS, Groups, map_runs
from squid_dagster.spark.fold.run_rows import Row, fold_run
from squid_dagster.spark.fold.worker_journal import explained, journal_of
from squid_dagster.spark.source.credentials import Location, locate
from squid_dagster.spark.source.data_source import read_journal
from squid_dagster.spark.source.ranges import all_entries, usual_fold_partitions

_COUNTS = StructType([StructField("runs", LongType()), StructField("entries", LongType())])
_RUNS_AT_ONCE, _ENTRIES_AT_ONCE = 500, 5_000  # in one transaction; whichever comes first

_OID: LiteralString = "SELECT to_regclass(%s)::oid::bigint"
# Until the commit, no session can drop, rename or swap the tables.
_LOCK: LiteralString = "LOCK TABLE {schema}.runs{suffix} IN ROW EXCLUSIVE MODE"


def restore_views(
    spark: SparkSession,
    storage: PostgresStorage,
    location: Mapping[str, str],
    *,
    partitions: int | None = None,
    progress: Progress | None = None,
) -> RebuildReport:
    """Rebuild all live views from the journal, folded by Spark, and swap them in.

    Does what `rebuild_views` does, as safely: writers may go on, and missing views are created. `location` is what
    `handed_over` yields, `partitions` the number of tasks that fold; `progress` is called with the number of entries
    once all of them are folded. The session must have the data source registered, as by `open_session`.

    Raises:
        StorageUnavailable: another rebuild is under way, or the views stay locked by a reader; nothing was changed.
        InvalidArgument: the number of tasks is out of range, or `location` names no database.
        WorkFailed: a task failed after all retries; the views are as they were.
    """
    where = locate(location)

    def fill(cut: int, report: Progress) -> tuple[int, int]:
        shadows = RebuildTables(where, storage.schema, _shadow_oid(storage))
        entries = read_journal(spark, location, schema=storage.schema, upto=cut, only=COLUMNS)
        tasks = usual_fold_partitions(all_entries(storage)) if partitions is None else partitions
        with explained("the views could not be folded, and are as they were"):
            counts = map_runs(entries, tasks, shadows.write, _COUNTS).collect()
        read = sum(row.entries for row in counts)
        report(read)
        return sum(row.runs for row in counts), read

    return rebuild_views(storage, progress, fill=fill)


@dataclass(frozen=True, slots=True)
class RebuildTables:
    """The shadow tables of one rebuild, for its tasks. Holds no secret: it is sent with the plan."""

    location: Location
    schema: str
    oid: int  # of the shadow of `runs` in the catalog: no later rebuild has the same

    def write(self, groups: Groups) -> Iterator[Row]:
        """Fold runs and insert their rows, many in one transaction; yield how many there were.

        Raises:
            StorageUnavailable: the shadows are gone, or the database cannot be reached.
        """
        runs = entries = 0
        with journal_of(self.location, self.schema) as storage:
            for batch in _batches(groups):
                with storage.connection() as connection, connection.transaction():
                    self._lock(connection)
                    batch.rows.insert_new(connection, self.schema, SHADOW)
                runs += len(batch.rows.runs)
                entries += batch.entries
        yield {"runs": runs, "entries": entries}

    def _lock(self, connection: PgConnection) -> None:
        self._check(connection)
        connection.execute(statement(_LOCK, self.schema, SHADOW))
        self._check(connection)  # they may have been swapped before the lock

    def _check(self, connection: PgConnection) -> None:
        row = connection.execute(_OID, (_shadow_name(self.schema),)).fetchone()
        if row is None or row[0] != self.oid:
            raise StorageUnavailable(
                f"the shadow tables of this rebuild in schema {self.schema!r} are gone: another one took its place"
            )


@dataclass(slots=True)
class _Batch:
    rows: ViewRows
    entries: int = 0


def _batches(groups: Groups) -> Iterator[_Batch]:
    """Yield folded runs in batches of one transaction; entries of no run are not counted."""
    batch = _Batch(ViewRows())
    for run_id, entries in groups:
        if run_id is None:
            batch.rows.add_loose(entries)
            continue
        folded = fold_run(entries)
        batch.rows.add_unit(run_id, folded.unit, folded.first_position)
        batch.entries += folded.entries
        if len(batch.rows.runs) >= _RUNS_AT_ONCE or batch.entries >= _ENTRIES_AT_ONCE:
            yield batch
            batch = _Batch(ViewRows())
    yield batch


def _shadow_name(schema: str) -> str:
    return f'"{schema}".runs{SHADOW}'


def _shadow_oid(storage: PostgresStorage) -> int:
    oid = storage.rows(_OID, _shadow_name(storage.schema))[0][0]
    if oid is None:
        raise StorageUnavailable(f"the shadow tables in schema {storage.schema!r} are gone: somebody dropped them")
    return int(oid)
