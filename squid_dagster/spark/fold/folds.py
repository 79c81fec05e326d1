"""The protocol's own folds, applied to all runs in Spark's workers. Contains no rule: entries in, rows out.

Spark groups entries by run and sorts them by position; each worker folds its runs one after another while batches
arrive. One Python call per run (`applyInArrow`) costs seven times as much, and needs each run to fit into memory.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC
from itertools import groupby, islice
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from squid_dagster.journal.postgres.entry_reader import read_entries
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.fold.run_rows import Row, fold_run, loose_row, unit_row
from squid_dagster.spark.session.garbage_collection import freeze_loaded_modules
from squid_dagster.spark.source.ranges import MAX_PARTITIONS
from squid_dagster.spark.tables.columns import UNIT_SCHEMA

COLUMNS = ("thread", "seq", "position", "type", "run_id", "occurred_at", "data", "intact")
"""The columns that a fold needs, in the order of `read_entries`."""

_ROWS_PER_BATCH = 1_000
_ALLOCATIONS_PER_COLLECTION = 100_000

Groups = Iterator[tuple[str | None, Iterator[Entry]]]
"""Runs one after another, by id, each with its entries by position; one group without an id for those of no run."""


@checked
def fold_runs(entries: DataFrame, partitions: int) -> DataFrame:
    """Fold all entries of each run, from every thread, into one row per run (`tables.columns.UNIT_SCHEMA`).

    `entries` must hold whole runs, in the columns of `COLUMNS`; `partitions` is the number of tasks. An entry that is
    unreadable, or was changed after it was written, becomes an anomaly of its run.

    Raises:
        InvalidArgument: a column is missing, or the number of tasks is out of range.
    """
    return map_runs(entries, partitions, history_rows, UNIT_SCHEMA)


def map_runs(
    entries: DataFrame, partitions: int, work: Callable[[Groups], Iterator[Row]], schema: StructType
) -> DataFrame:
    """Group entries by run, and apply `work` to all groups of a task, in Spark's workers.

    `entries` must hold whole runs, in the columns of `COLUMNS`. Groups are a stream: each can be read once, in order.

    Raises:
        InvalidArgument: a column is missing, or the number of tasks is out of range.
    """
    if missing := [name for name in COLUMNS if name not in entries.columns]:
        raise InvalidArgument(f"a fold needs the column {missing[0]!r}: read the journal with {', '.join(COLUMNS)}")
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidArgument(f"partitions is {partitions}: a fold needs 1 to {MAX_PARTITIONS} tasks to do it")
    grouped = entries.select(*COLUMNS).repartition(partitions, "run_id").sortWithinPartitions("run_id", "position")

    def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work_on(batches, work, schema)

    return grouped.mapInArrow(fold, schema)


def work_on(
    batches: Iterable[pa.RecordBatch], work: Callable[[Groups], Iterator[Row]], schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Apply `work` to entries that are sorted by run and position, in the columns of `COLUMNS`; called in a worker."""
    target = to_arrow_schema(schema, timezone="UTC")
    groups: Groups = (
        (run_id, (entry for _, entry in group))
        for run_id, group in groupby(_entries(batches), key=lambda pair: pair[0])
    )
    freeze_loaded_modules()
    with _rare_collections():
        yield from _batches(work(groups), target)


def history_rows(groups: Groups) -> Iterator[Row]:
    """Return the row of each run, and one row for all facts of no run."""
    return (_history_row(run_id, entries) for run_id, entries in groups)


def _entries(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str | None, Entry]]:
    """Yield entries from their columns, each with the run id that it is stored under."""
    for batch in batches:
        columns = [_values(batch.column(name)) for name in COLUMNS]
        yield from zip(columns[COLUMNS.index("run_id")], read_entries(zip(*columns, strict=True)), strict=True)


def _values(column: pa.Array) -> list[Any]:
    """Return a column's values; times in UTC, without the zone lookup that Arrow does for each value."""
    if not pa.types.is_timestamp(column.type):
        values: list[Any] = column.to_pylist()
        return values
    naive = column.cast(pa.timestamp(column.type.unit)).to_pylist()
    return [value if value is None else value.replace(tzinfo=UTC) for value in naive]


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage less often: entries are short-lived and have no cycles; collection took a third of the time."""
    before = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _batches(rows: Iterator[Row], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    while chunk := list(islice(rows, _ROWS_PER_BATCH)):
        yield pa.RecordBatch.from_pylist(chunk, schema=target)


def _history_row(run_id: str | None, entries: Iterable[Entry]) -> Row:
    return loose_row(entries) if run_id is None else unit_row(run_id, fold_run(entries))
