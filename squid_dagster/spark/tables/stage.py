"""The stage of the warehouse: all runs, folded once, by the day of their start. Every table is cut from it.

A refresh folds again the runs that were touched since the last one, whole, and puts them in the place of their rows:
only days that hold one of them are written anew. What comes out is what a fold of everything gives.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import LiteralString

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.spark.fold.changed_runs import Between, Touched, fold_touched
from squid_dagster.spark.fold.folds import COLUMNS, fold_runs
from squid_dagster.spark.fold.row_merge import Merge, merge_files
from squid_dagster.spark.fold.tasks import packed
from squid_dagster.spark.source.data_source import read_journal
from squid_dagster.spark.source.ranges import all_entries, entries_between, usual_fold_partitions
from squid_dagster.spark.tables.files import Files, Written
from squid_dagster.spark.tables.manifest import LOOSE, UNKNOWN, Manifest, Part
from squid_dagster.spark.tables.warehouse import PART, STAGE, Warehouse, directory_of

_FILE_BYTES = 32 << 20  # files of a part that are smaller are put together when they are written anew
_PART_OF = f"coalesce(cast(day AS string), CASE WHEN run_id IS NULL THEN '{LOOSE}' ELSE '{UNKNOWN}' END)"

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
        return self._folded(self._entries(upto), usual_fold_partitions(all_entries(self.storage)))

    def started_on(self, days: Sequence[date], upto: int) -> DataFrame:
        """Fold the runs that started on these days."""
        starts = self._entries(upto, only=("run_id", "type", "occurred_at"))
        micros = f.unix_micros("occurred_at")
        day = f.date_from_unix_date(f.floor(micros / 86_400_000_000).cast("int"))
        chosen = starts.where((f.col("type") == "run_started") & day.isin(list(days))).select("run_id").distinct()
        entries = self._entries(upto).join(chosen, "run_id", "left_semi")
        parts = usual_fold_partitions(all_entries(self.storage))
        return self._folded(entries, parts).where(f.col("day").isin(list(days)))

    def touched(self, files: Files, directory: str, after: int, upto: int) -> Touched:
        """Fold the runs that have a fact between two cuts, from their beginning, into files of a directory."""
        between = Between(after, upto, entries_between(self.storage, after, upto))
        return fold_touched(self.spark, files, directory, self.location, self.storage.schema, between)

    def _entries(self, upto: int, *, only: Sequence[str] = COLUMNS) -> DataFrame:
        return read_journal(self.spark, self.location, upto=upto, schema=self.storage.schema, only=only)

    def _folded(self, entries: DataFrame, partitions: int) -> DataFrame:
        return fold_runs(entries, partitions).drop("views").withColumn(PART, f.expr(_PART_OF))


def stage_everything(journal: Journal, warehouse: Warehouse, stage: Manifest, upto: int, generation: str) -> Manifest:
    """Fold the whole journal and write all days; gives the manifest that is to be published."""
    written = _write(warehouse, journal.everything(upto), generation)
    changed = _parts(written, generation, upto)
    return _following(journal, stage, upto, generation, changed, stage.parts.keys() - changed.keys())


def stage_touched(journal: Journal, warehouse: Warehouse, stage: Manifest, upto: int, generation: str) -> Manifest:
    """Fold what was touched since the stage's position and write the days that hold it; gives the manifest."""
    directory = f"{STAGE}/{generation}-touched"
    try:
        touched = journal.touched(warehouse.files, directory, stage.covered, upto)
        parts = _touched_parts(journal, warehouse, stage, touched)
        merges = [merge for part in sorted(parts) for merge in _merges(warehouse, stage, touched, part, generation)]
        merge_files(journal.spark, warehouse.files, merges)
    finally:
        warehouse.files.remove([directory])
    changed = _parts(warehouse.files.written(f"{STAGE}/{generation}"), generation, upto)
    return _following(journal, stage, upto, generation, changed, parts - changed.keys())


def stage_days(
    journal: Journal, warehouse: Warehouse, stage: Manifest, days: Sequence[date], generation: str
) -> Manifest:
    """Fold the runs of some days anew, up to the stage's position, and write those days; gives the manifest."""
    written = _write(warehouse, journal.started_on(days, stage.covered), generation)
    changed = _parts(written, generation, stage.covered)
    gone = {day.isoformat() for day in days} & stage.parts.keys() - changed.keys()
    return _following(journal, stage, stage.covered, generation, changed, gone)


def _touched_parts(journal: Journal, warehouse: Warehouse, stage: Manifest, touched: Touched) -> set[str]:
    """Tell which parts are to be written anew: where the rows belong, and where they stood."""
    parts = set(touched.parts)
    if touched.moving:
        paths = [f"{warehouse.files.for_spark}/{name}" for name in touched.moving]
        moving = journal.spark.read.schema("run_id string").parquet(*paths)
        old = warehouse.read_parts(journal.spark, stage).select("run_id", "day")
        found = old.join(moving, "run_id", "left_semi").select(f.expr(_PART_OF).alias(PART)).distinct().collect()
        parts |= {row[PART] for row in found}
    # A run may get its start at any time, and goes from here to its day.
    return parts | ({UNKNOWN} & stage.parts.keys() if parts else set())


def _merges(warehouse: Warehouse, stage: Manifest, touched: Touched, part: str, generation: str) -> list[Merge]:
    """Say which files make up a part from now on: small ones become one, and what is new goes where there is room."""
    former = stage.parts[part].directory if part in stage.parts else None
    # Of facts that belong to no run there is one row, and it is new.
    files = warehouse.files.parquet_files(f"{STAGE}/{former}") if former and part != LOOSE else []
    new = touched.parts.get(part, ())
    packs = packed(files, lambda file: file.size, _FILE_BYTES)
    if new and (not packs or sum(file.size for file in packs[-1]) >= _FILE_BYTES):
        packs.append([])
    # Whoever got a start has gone from there, to whichever day.
    replaced = [name for each in touched.parts.values() for name in each] if part == UNKNOWN else new
    return [
        Merge(
            target=f"{STAGE}/{directory_of(generation, part)}/{number}.parquet",
            former=tuple(file.name for file in pack),
            replaced=(*replaced, *touched.moving),
            new=new if number == len(packs) - 1 else (),
        )
        for number, pack in enumerate(packs)
    ]


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
