"""The runs with new entries between two cuts, folded completely: one task reads, folds and writes each of them.

The database returns whole runs, one after another, so Spark shuffles nothing. Rows go into files of one refresh, by
the part that they belong to:

    <directory>/<part>/<task>-<number>.parquet
    <directory>/moving/<task>-<number>.parquet      ids of runs whose former row may be in another part
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from squid_dagster.protocol.anomalies import Reason
from squid_dagster.spark.fold.folds import COLUMNS, Groups, history_rows, work_on
from squid_dagster.spark.fold.run_rows import Row
from squid_dagster.spark.fold.tasks import in_workers
from squid_dagster.spark.source.columns import SCHEMA
from squid_dagster.spark.source.data_source import JournalReader, SourceOptions
from squid_dagster.spark.tables.columns import CHANGED_SCHEMA
from squid_dagster.spark.tables.files import Files
from squid_dagster.spark.tables.manifest import UNKNOWN, part_of

_DECLARED = StructType([SCHEMA[name] for name in COLUMNS])
_MOVING = "moving"
_BATCHES_AT_ONCE = 20  # of a thousand rows each


class EntryRange(NamedTuple):
    """The entries in `(after, upto]`, both of them cuts, and how many they are."""

    after: int
    upto: int
    entries: int


@dataclass(frozen=True, slots=True)
class ChangedRuns:
    """The files of runs that were folded again, in the columns of `CHANGED_SCHEMA`."""

    parts: Mapping[str, tuple[str, ...]]  # files, by the part that the runs belong to
    moving: tuple[str, ...]  # files with the ids of runs whose former row may be in another part


def fold_changed_runs(
    spark: SparkSession, files: Files, directory: str, location: Mapping[str, str], schema: str, between: EntryRange
) -> ChangedRuns:
    """Fold the runs that have a fact between two cuts, and write their rows into a directory.

    Facts of no run make one row, if one of them is new.

    Raises:
        PySparkException: a task failed after all retries.
    """
    reader = JournalReader(SourceOptions.parse({**location, "schema": schema, "by": "run"}), _DECLARED)
    after = between.after
    parts = reader.parts_by_run(after, between.upto, between.entries)

    def work(number: int) -> str:
        batches = work_on(reader.read(parts[number]), lambda groups: _rows(groups, after), CHANGED_SCHEMA)
        return json.dumps(_write_parts(files, directory, number, batches))

    # Only the files that a finished task names count: a lost one may have left others.
    by_part: dict[str, list[str]] = {}
    for answer in in_workers(spark, range(len(parts)), work):
        for part, name in json.loads(answer):
            by_part.setdefault(part, []).append(name)
    moving = tuple(by_part.pop(_MOVING, ()))
    return ChangedRuns({part: tuple(names) for part, names in by_part.items()}, moving)


def _rows(groups: Groups, after: int) -> Iterator[Row]:
    for row in history_rows(groups):
        if row["last_position"] > after:
            part = part_of(row["run_id"], row.get("day"))
            yield {**row, "part": part, "moving": row["first_position"] <= after and _may_move(row, part)}


def _may_move(row: Row, part: str) -> bool:
    """Return whether a run may change its part: it had no start yet, or one of its entries was damaged since."""
    damaged = any(anomaly["reason"] == Reason.MALFORMED_ENTRY for anomaly in row["anomalies"])
    return part == UNKNOWN or (row["run_id"] is not None and damaged)


def _write_parts(files: Files, directory: str, task: int, batches: Iterator[pa.RecordBatch]) -> list[tuple[str, str]]:
    """Write rows by part, and the ids of runs that may move; return each part with its file."""
    written = []
    for number, rows in enumerate(_tables(batches)):
        divided = {part: rows.filter(pc.equal(rows["part"], part)) for part in rows["part"].unique().to_pylist()}
        moving = rows.filter(rows["moving"]).select(["run_id"])
        for part, selected in {**divided, _MOVING: moving}.items():
            if selected.num_rows:
                name = f"{directory}/{part}/{task}-{number}.parquet"
                files.write(name, selected)
                written.append((part, name))
    return written


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches into tables, one for each file: a file costs as much as many rows."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if len(waiting) == _BATCHES_AT_ONCE:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)
