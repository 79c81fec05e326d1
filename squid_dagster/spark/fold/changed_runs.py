"""The runs that were touched between two cuts, folded from their beginning: read, folded and kept by the same task.

The database gives whole runs, one after another, so nothing has to be brought together by Spark. Rows go into files
that are there for one refresh, by the part that they belong to:

    <directory>/<part>/<task>-<number>.parquet
    <directory>/moving/<task>-<number>.parquet      runs that may stand in another part so far, by id
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
from squid_dagster.spark.source.data_source import Asked, JournalReader
from squid_dagster.spark.tables.columns import TOUCHED_SCHEMA
from squid_dagster.spark.tables.files import Files
from squid_dagster.spark.tables.manifest import UNKNOWN, part_of

_DECLARED = StructType([SCHEMA[name] for name in COLUMNS])
_MOVING = "moving"
_BATCHES_AT_ONCE = 20  # of a thousand rows each


class Between(NamedTuple):
    """The entries in `(after, upto]`, both of them cuts, and how many they are."""

    after: int
    upto: int
    entries: int


@dataclass(frozen=True, slots=True)
class Touched:
    """Runs that were folded again: the files that hold them, in the columns of `TOUCHED_SCHEMA`."""

    parts: Mapping[str, tuple[str, ...]]  # by the part that the runs belong to
    moving: tuple[str, ...]  # the ids of those that may stand in another part so far


def fold_touched(
    spark: SparkSession, files: Files, directory: str, location: Mapping[str, str], schema: str, between: Between
) -> Touched:
    """Fold the runs that have a fact between two cuts, and put their rows into a directory.

    Facts of no run make a row too, if one of them is new.

    Raises:
        PySparkException: a task failed, for good.
    """
    reader = JournalReader(Asked.read({**location, "schema": schema, "by": "run"}), _DECLARED)
    after = between.after
    parts = reader.parts_by_run(after, between.upto, between.entries)

    def work(number: int) -> str:
        made = work_on(reader.read(parts[number]), lambda groups: _rows(groups, after), TOUCHED_SCHEMA)
        return json.dumps(_kept(files, directory, number, made))

    # What a task says is what counts: one that was lost may have left files that say something else.
    found: dict[str, list[str]] = {}
    for said in in_workers(spark, range(len(parts)), work):
        for part, name in json.loads(said):
            found.setdefault(part, []).append(name)
    moving = tuple(found.pop(_MOVING, ()))
    return Touched({part: tuple(names) for part, names in found.items()}, moving)


def _rows(groups: Groups, after: int) -> Iterator[Row]:
    for row in history_rows(groups):
        if row["last_position"] > after:
            part = part_of(row["run_id"], row.get("day"))
            yield {**row, "part": part, "moving": row["first_position"] <= after and _may_move(row, part)}


def _may_move(row: Row, part: str) -> bool:
    """A start is a fact and stays, so a run keeps its day, unless it had none yet or an entry was damaged since."""
    damaged = any(one["reason"] == Reason.MALFORMED_ENTRY for one in row["anomalies"])
    return part == UNKNOWN or (row["run_id"] is not None and damaged)


def _kept(files: Files, directory: str, task: int, batches: Iterator[pa.RecordBatch]) -> list[tuple[str, str]]:
    """Write rows by part, and those that may move once more, by their ids; tell which files these are."""
    found = []
    for number, rows in enumerate(_tables(batches)):
        divided = {part: rows.filter(pc.equal(rows["part"], part)) for part in rows["part"].unique().to_pylist()}
        moving = rows.filter(rows["moving"]).select(["run_id"])
        for part, some in {**divided, _MOVING: moving}.items():
            if some.num_rows:
                name = f"{directory}/{part}/{task}-{number}.parquet"
                files.write(name, some)
                found.append((part, name))
    return found


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put some batches together: each file that is written costs as much as many rows."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if len(waiting) == _BATCHES_AT_ONCE:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)
