"""The stage of the warehouse: all runs, folded once, by the day of their start. Every table is cut from it.

A refresh folds again the runs that were touched since the last one, whole, and puts them in the place of their rows:
only days that hold one of them are written anew. What comes out is what a fold of everything gives.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import LiteralString

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.spark.folds import COLUMNS, fold_runs
from squid_dagster.spark.manifest import LOOSE, UNKNOWN, Manifest, Part
from squid_dagster.spark.ranges import usual_fold_partitions, usual_run_partitions
from squid_dagster.spark.source import read_journal
from squid_dagster.spark.warehouse import PART, STAGE, Warehouse, directory_of
from squid_dagster.spark.warehouse_files import Written

_PART_OF = f"coalesce(cast(day AS string), CASE WHEN run_id IS NULL THEN '{LOOSE}' ELSE '{UNKNOWN}' END)"
# A start is a fact and stays, so a run keeps its day, unless it had none yet or an entry was damaged since.
_MAY_MOVE = f"run_id IS NOT NULL AND ({PART} = '{UNKNOWN}' OR exists(anomalies, one -> one.reason = 'malformed_entry'))"

# journal_entries_pkey, for both
_ORIGIN: LiteralString = "SELECT encode(digest, 'hex') FROM {schema}.journal_entries ORDER BY position LIMIT 1"
_AS_OF: LiteralString = (
    "SELECT occurred_at FROM {schema}.journal_entries WHERE position <= %s ORDER BY position DESC LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class Journal:
    """Where facts come from: the storage for what is asked here, the location for what executors read."""

    spark: SparkSession
    storage: PostgresStorage
    location: Mapping[str, str]

    def origin(self) -> str | None:
        """Give what tells this journal from another; None while it is empty. Raises `StorageUnavailable`."""
        found = self.storage.rows(_ORIGIN)
        return str(found[0][0]) if found else None

    def as_of(self, position: int) -> datetime | None:
        """Give the time of the last fact up to a position. Raises `StorageUnavailable`."""
        found = self.storage.rows(_AS_OF, position)
        return found[0][0] if found else None

    def everything(self, upto: int) -> DataFrame:
        """Fold all runs up to a cut."""
        parts = usual_fold_partitions(0, upto)
        return self._folded(self._entries(upto, by="position"), parts)

    def touched(self, after: int, upto: int) -> DataFrame:
        """Fold the runs that have a fact between two cuts, from their beginning."""
        entries = self._entries(upto, by="run", after=after)
        # Facts of no run are read whenever anything is; they are news only if one of them is new.
        return self._folded(entries, usual_run_partitions(after, upto), after)

    def started_on(self, days: Sequence[date], upto: int) -> DataFrame:
        """Fold the runs that started on these days."""
        starts = self._entries(upto, by="position", only=("run_id", "type", "occurred_at"))
        micros = f.unix_micros("occurred_at")
        day = f.date_from_unix_date(f.floor(micros / 86_400_000_000).cast("int"))
        chosen = starts.where((f.col("type") == "run_started") & day.isin(list(days))).select("run_id").distinct()
        entries = self._entries(upto, by="position").join(chosen, "run_id", "left_semi")
        return self._folded(entries, usual_fold_partitions(0, upto)).where(f.col("day").isin(list(days)))

    def _entries(self, upto: int, *, by: str, after: int = 0, only: Sequence[str] = COLUMNS) -> DataFrame:
        schema = self.storage.schema
        return read_journal(self.spark, self.location, upto=upto, after=after, schema=schema, only=only, by=by)

    def _folded(self, entries: DataFrame, partitions: int, after: int = 0) -> DataFrame:
        return fold_runs(entries, partitions, after=after).drop("views").withColumn(PART, f.expr(_PART_OF))


def stage_everything(journal: Journal, warehouse: Warehouse, stage: Manifest, upto: int, generation: str) -> Manifest:
    """Fold the whole journal and write all days; gives the manifest that is to be published."""
    written = _write(warehouse, journal.everything(upto), generation)
    changed = _parts(written, generation, upto)
    return _following(journal, stage, upto, generation, changed, stage.parts.keys() - changed.keys())


def stage_touched(journal: Journal, warehouse: Warehouse, stage: Manifest, upto: int, generation: str) -> Manifest:
    """Fold what was touched since the stage's position and write the days that hold it; gives the manifest."""
    news = journal.touched(stage.covered, upto).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        parts = _touched_parts(journal, warehouse, stage, news)
        written = _write(warehouse, _merged(journal, warehouse, stage, news, parts), generation) if parts else {}
    finally:
        news.unpersist()
    changed = _parts(written, generation, upto)
    return _following(journal, stage, upto, generation, changed, parts - changed.keys())


def stage_days(
    journal: Journal, warehouse: Warehouse, stage: Manifest, days: Sequence[date], generation: str
) -> Manifest:
    """Fold the runs of some days anew, up to the stage's position, and write those days; gives the manifest."""
    written = _write(warehouse, journal.started_on(days, stage.covered), generation)
    changed = _parts(written, generation, stage.covered)
    gone = {day.isoformat() for day in days} & stage.parts.keys() - changed.keys()
    return _following(journal, stage, stage.covered, generation, changed, gone)


def _touched_parts(journal: Journal, warehouse: Warehouse, stage: Manifest, news: DataFrame) -> set[str]:
    """Tell which parts are to be written anew: where the rows belong, and where they stood."""
    # Positions are compared here: as constants in the code that Spark makes, they would have it compiled every time.
    told = news.groupBy(PART).agg(f.expr(f"min(first_position) FILTER (WHERE {_MAY_MOVE}) AS first")).collect()
    parts = {row[PART] for row in told}
    if any(row["first"] is not None and row["first"] <= stage.covered for row in told):
        ids = news.where(_MAY_MOVE).where(f"first_position <= {stage.covered}").select("run_id")
        old = warehouse.read_parts(journal.spark, stage).select("run_id", "day")
        found = old.join(ids, "run_id", "left_semi").select(f.expr(_PART_OF).alias(PART)).distinct().collect()
        parts |= {row[PART] for row in found}
    # A run may get its start at any time, and goes from here to its day.
    return parts | ({UNKNOWN} & stage.parts.keys() if parts else set())


def _merged(
    journal: Journal, warehouse: Warehouse, stage: Manifest, news: DataFrame, parts: Iterable[str]
) -> DataFrame:
    """Put new rows in the place of those of the same runs."""
    former = set(parts) & stage.parts.keys() - {LOOSE}  # there is one such row, and it is new
    if not former:
        return news
    old = warehouse.read_parts(journal.spark, stage, former).withColumn(PART, f.expr(_PART_OF))
    return old.join(news.select("run_id"), "run_id", "left_anti").unionByName(news)


def _write(warehouse: Warehouse, rows: DataFrame, generation: str) -> dict[str, Written]:
    # One file for a small day, several for a large one, and no task that has to write much more than the others.
    return warehouse.write(rows.hint("rebalance", PART), STAGE, generation)


def _parts(written: Mapping[str, Written], generation: str, covered: int) -> dict[str, Part]:
    return {
        name: Part(
            directory=directory_of(generation, name),
            source=generation,
            covered=covered,
            rows=found.rows,
            open_runs=0 if name == LOOSE else found.open_runs,
            latest=found.latest,
        )
        for name, found in written.items()
    }


def _following(
    journal: Journal, stage: Manifest, upto: int, generation: str, changed: Mapping[str, Part], gone: Iterable[str]
) -> Manifest:
    return stage.replaced(
        generation=generation,
        covered=upto,
        as_of=journal.as_of(upto),
        origin=journal.origin(),
        changed=changed,
        gone=gone,
    )
