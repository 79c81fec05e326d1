"""The live views made anew by Spark: its workers fold the runs and write their rows into the shadow tables.

What comes before and after, the shadows, the tail and the swap, is the rebuild's own (`journal.postgres.rebuild`). The
driver sees a count per task and nothing of the journal.

A task may run twice: tried again after its worker died behind the commit, or speculatively beside its twin. What two of
them make of a run is equal, since nothing changes under a cut, and a run's row is written by whoever comes first. A
worker that was given up and goes on writing cannot reach the shadows of a later rebuild: it knows its own by their
number in the catalog, and holds them while it writes.
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

_NUMBER: LiteralString = "SELECT to_regclass(%s)::oid::bigint"
# Nobody drops, renames or swaps what we write to until we have committed.
_HOLD: LiteralString = "LOCK TABLE {schema}.runs{suffix} IN ROW EXCLUSIVE MODE"


def restore_views(
    spark: SparkSession,
    storage: PostgresStorage,
    location: Mapping[str, str],
    *,
    partitions: int | None = None,
    progress: Progress | None = None,
) -> RebuildReport:
    """Make all live views anew from the journal, folded by Spark, and swap them in.

    Does what `rebuild_views` does, and is as safe: others may write, and views that are missing come back. `location`
    is what `credentials.handed_over` gives, `partitions` the number of tasks that fold; `progress` is told the number
    of entries when all of them are folded. The session must know the journal's data source, as `open_session` does.

    Raises:
        StorageUnavailable: another rebuild is under way, or the views stay locked by a reader; nothing was changed.
        InvalidArgument: there is no task to do it, or `location` names no database.
        WorkFailed: a task failed for good; the views are as they were.
    """
    where = locate(location)

    def fill(cut: int, told: Progress) -> tuple[int, int]:
        shadows = Shadows(where, storage.schema, _shadow_number(storage))
        entries = read_journal(spark, location, schema=storage.schema, upto=cut, only=COLUMNS)
        tasks = usual_fold_partitions(all_entries(storage)) if partitions is None else partitions
        with explained("the views could not be folded, and are as they were"):
            counts = map_runs(entries, tasks, shadows.write, _COUNTS).collect()
        read = sum(row.entries for row in counts)
        told(read)
        return sum(row.runs for row in counts), read

    return rebuild_views(storage, progress, fill=fill)


@dataclass(frozen=True, slots=True)
class Shadows:
    """The shadow tables of one rebuild, as a task is told of them. Holds no secret: it travels with the plan."""

    location: Location
    schema: str
    number: int  # in the catalog of the database: no two tables ever share one

    def write(self, groups: Groups) -> Iterator[Row]:
        """Fold runs and write their rows, many in one transaction; say how many there were.

        Raises:
            StorageUnavailable: the shadows are gone, or the database cannot be reached.
        """
        runs = entries = 0
        with journal_of(self.location, self.schema) as storage:
            for batch in _batches(groups):
                with storage.connection() as connection, connection.transaction():
                    self._hold(connection)
                    batch.rows.insert_new(connection, self.schema, SHADOW)
                runs += len(batch.rows.runs)
                entries += batch.entries
        yield {"runs": runs, "entries": entries}

    def _hold(self, connection: PgConnection) -> None:
        self._check(connection)
        connection.execute(statement(_HOLD, self.schema, SHADOW))
        self._check(connection)  # others may have come in between

    def _check(self, connection: PgConnection) -> None:
        found = connection.execute(_NUMBER, (_shadow_name(self.schema),)).fetchone()
        if found is None or found[0] != self.number:
            raise StorageUnavailable(
                f"the shadow tables of this rebuild in schema {self.schema!r} are gone: another one took its place"
            )


@dataclass(slots=True)
class _Batch:
    rows: ViewRows
    entries: int = 0


def _batches(groups: Groups) -> Iterator[_Batch]:
    """Fold runs until there are enough rows for one transaction; entries of no run are not counted."""
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


def _shadow_number(storage: PostgresStorage) -> int:
    found = storage.rows(_NUMBER, _shadow_name(storage.schema))[0][0]
    if found is None:
        raise StorageUnavailable(f"the shadow tables in schema {storage.schema!r} are gone: somebody dropped them")
    return int(found)
