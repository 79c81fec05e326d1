"""The stage of the warehouse: all runs, folded once, by the day of their start. Every table is projected from it.

A refresh folds the runs with new entries again, completely, and replaces their rows: only days with such a run are
written again. The result equals a fold of the whole journal.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import LiteralString

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.spark.fold.changed_runs import ChangedRuns, EntryRange, fold_changed_runs
from squid_dagster.spark.fold.folds import COLUMNS, fold_runs
from squid_dagster.spark.fold.row_merge import Merge, merge_files
from squid_dagster.spark.fold.tasks import packed
from squid_dagster.spark.source.data_source import read_journal
from squid_dagster.spark.source.ranges import all_entries, entries_between, usual_fold_partitions
from squid_dagster.spark.tables.files import Files, PartStatistics
from squid_dagster.spark.tables.manifest import LOOSE, UNKNOWN, Manifest, Part
from squid_dagster.spark.tables.warehouse import PART, STAGE, Warehouse, directory_of

_FILE_BYTES = 32 << 20  # smaller files of a part are combined when they are written again
_PART_OF = f"coalesce(cast(day AS string), CASE WHEN run_id IS NULL THEN '{LOOSE}' ELSE '{UNKNOWN}' END)"

# journal_entries_pkey, for both
_ORIGIN: LiteralString = "SELECT encode(digest, 'hex') FROM {schema}.journal_entries ORDER BY position LIMIT 1"
_AS_OF: LiteralString = (
    "SELECT occurred_at FROM {schema}.journal_entries WHERE position <= %s ORDER BY position DESC LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class Journal:
    """The source of facts: the storage for queries of this process, the location for the reads of executors."""

    spark: SparkSession
    storage: PostgresStorage
    location: Mapping[str, str]

    def origin(self) -> str | None:
        """Return the digest of the first entry; None if there is none. Raises `StorageUnavailable`."""
        rows = self.storage.rows(_ORIGIN)
        return str(rows[0][0]) if rows else None

    def as_of(self, position: int) -> datetime | None:
        """Return the time of the last fact at or before a position. Raises `StorageUnavailable`."""
        rows = self.storage.rows(_AS_OF, position)
        return rows[0][0] if rows else None

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

    def changed_runs(self, files: Files, directory: str, after: int, upto: int) -> ChangedRuns:
        """Fold the runs that have a fact between two cuts, completely, into files of a directory."""
        between = EntryRange(after, upto, entries_between(self.storage, after, upto))
        return fold_changed_runs(self.spark, files, directory, self.location, self.storage.schema, between)

    def _entries(self, upto: int, *, only: Sequence[str] = COLUMNS) -> DataFrame:
        return read_journal(self.spark, self.location, upto=upto, schema=self.storage.schema, only=only)

    def _folded(self, entries: DataFrame, partitions: int) -> DataFrame:
        return fold_runs(entries, partitions).withColumn(PART, f.expr(_PART_OF))


def stage_everything(journal: Journal, warehouse: Warehouse, stage: Manifest, upto: int, generation: str) -> Manifest:
    """Fold the whole journal and write all days; return the manifest to publish."""
    written = _write(warehouse, journal.everything(upto), generation)
    changed = _parts(written, generation, upto)
    return _next_manifest(journal, stage, upto, generation, changed, stage.parts.keys() - changed.keys())


def stage_changed_runs(journal: Journal, warehouse: Warehouse, stage: Manifest, upto: int, generation: str) -> Manifest:
    """Fold the runs with entries after the stage's position and write their days; return the manifest to publish."""
    directory = f"{STAGE}/{generation}-changed"
    try:
        changed_runs = journal.changed_runs(warehouse.files, directory, stage.covered, upto)
        parts = _parts_to_write(journal, warehouse, stage, changed_runs)
        merges = [
            merge for part in sorted(parts) for merge in _merges(warehouse, stage, changed_runs, part, generation)
        ]
        merge_files(journal.spark, warehouse.files, merges)
    finally:
        warehouse.files.remove([directory])
    changed = _parts(warehouse.files.part_statistics(f"{STAGE}/{generation}"), generation, upto)
    return _next_manifest(journal, stage, upto, generation, changed, parts - changed.keys())


def stage_days(
    journal: Journal, warehouse: Warehouse, stage: Manifest, days: Sequence[date], generation: str
) -> Manifest:
    """Fold the runs of some days again, up to the stage's position, and write these days; return the manifest."""
    written = _write(warehouse, journal.started_on(days, stage.covered), generation)
    changed = _parts(written, generation, stage.covered)
    gone = {day.isoformat() for day in days} & stage.parts.keys() - changed.keys()
    return _next_manifest(journal, stage, stage.covered, generation, changed, gone)


def _parts_to_write(journal: Journal, warehouse: Warehouse, stage: Manifest, changed_runs: ChangedRuns) -> set[str]:
    """Return the parts to write: those of the new rows, and those of the former rows."""
    parts = set(changed_runs.parts)
    if changed_runs.moving:
        paths = [f"{warehouse.files.for_spark}/{name}" for name in changed_runs.moving]
        moving = journal.spark.read.schema("run_id string").parquet(*paths)
        old = warehouse.read_parts(journal.spark, stage).select("run_id", "day")
        former = old.join(moving, "run_id", "left_semi").select(f.expr(_PART_OF).alias(PART)).distinct().collect()
        parts |= {row[PART] for row in former}
    # A run without a start may have got one now, and moved to its day.
    return parts | ({UNKNOWN} & stage.parts.keys() if parts else set())


def _merges(
    warehouse: Warehouse, stage: Manifest, changed_runs: ChangedRuns, part: str, generation: str
) -> list[Merge]:
    """Return the merges that write a part: small files become one, and new rows go where there is room."""
    former = stage.parts[part].directory if part in stage.parts else None
    # The facts of no run have one row, and that one is new.
    files = warehouse.files.parquet_files(f"{STAGE}/{former}") if former and part != LOOSE else []
    new = changed_runs.parts.get(part, ())
    packs = packed(files, lambda file: file.size, _FILE_BYTES)
    if new and (not packs or sum(file.size for file in packs[-1]) >= _FILE_BYTES):
        packs.append([])
    # A run that got its start has moved from "unknown" to any day.
    replaced = [name for names in changed_runs.parts.values() for name in names] if part == UNKNOWN else new
    return [
        Merge(
            target=f"{STAGE}/{directory_of(generation, part)}/{number}.parquet",
            former=tuple(file.name for file in pack),
            replaced=(*replaced, *changed_runs.moving),
            new=new if number == len(packs) - 1 else (),
        )
        for number, pack in enumerate(packs)
    ]


def _write(warehouse: Warehouse, rows: DataFrame, generation: str) -> dict[str, PartStatistics]:
    # One file for a small day, several for a large one, and tasks of similar size.
    return warehouse.write(rows.hint("rebalance", PART), STAGE, generation)


def _parts(written: Mapping[str, PartStatistics], generation: str, covered: int) -> dict[str, Part]:
    return {
        name: Part(
            directory=directory_of(generation, name),
            source=generation,
            covered=covered,
            rows=statistics.rows,
            open_runs=0 if name == LOOSE else statistics.open_runs,
            latest=statistics.latest,
        )
        for name, statistics in written.items()
    }


def _next_manifest(
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
