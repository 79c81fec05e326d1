"""The protocol's own folds, applied to all runs in Spark's workers. No rule stands here: entries go in, rows come out.

Entries are brought together by run and sorted by position, and each worker folds its runs one after another as the
batches come in. That is grouped execution in one stream: a call of Python per run would cost seven times as much, and
a group handed over whole would have to fit into memory.
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
from squid_dagster.spark.session.garbage_collection import set_heap_aside
from squid_dagster.spark.source.ranges import MAX_PARTITIONS
from squid_dagster.spark.tables.columns import UNIT_SCHEMA

COLUMNS = ("thread", "seq", "position", "type", "run_id", "occurred_at", "data", "intact")
"""What a fold needs of each entry, in the order in which `read_entries` takes it."""

_ROWS_PER_BATCH = 1_000
_ALLOCATIONS_PER_COLLECTION = 100_000

RowMaker = Callable[[str | None, Iterable[Entry]], Row]
Groups = Iterator[tuple[str | None, Iterator[Entry]]]
"""Runs one after another, by id, each with its entries by position; one group without an id for those of no run."""


@checked
def fold_runs(entries: DataFrame, partitions: int) -> DataFrame:
    """Fold all entries of each run, from every thread, and give one row per run (`tables.UNIT_SCHEMA`).

    `entries` must hold whole runs, in the columns of `COLUMNS`; `partitions` is the number of tasks. An entry that
    cannot be read, or was changed after it was written, becomes an anomaly of its run.

    Raises:
        InvalidArgument: a column is missing, or there is no task to do it.
    """
    return _folded(entries, partitions, _history_row)


def fold_runs_with_views(entries: DataFrame, partitions: int) -> DataFrame:
    """Fold as `fold_runs` does, and also give the rows of the live views, as the JSON that `views` tables take."""
    return _folded(entries, partitions, _row_with_views)


def map_runs(
    entries: DataFrame, partitions: int, work: Callable[[Groups], Iterator[Row]], schema: StructType
) -> DataFrame:
    """Bring entries together by run, and let `work` make rows of all runs of a task, in Spark's workers.

    `entries` must hold whole runs, in the columns of `COLUMNS`. Groups come as a stream: one that is passed by is gone.

    Raises:
        InvalidArgument: a column is missing, or there is no task to do it.
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
    """Let `work` make rows of entries that come by run and by position, in the columns of `COLUMNS`; in a worker."""
    target = to_arrow_schema(schema, timezone="UTC")
    groups: Groups = (
        (run_id, (entry for _, entry in group))
        for run_id, group in groupby(_entries(batches), key=lambda pair: pair[0])
    )
    set_heap_aside()
    with _collected_seldom():
        yield from _batches(work(groups), target)


def history_rows(groups: Groups) -> Iterator[Row]:
    """Give the row of each run, and one for all facts of no run."""
    return (_history_row(run_id, entries) for run_id, entries in groups)


def _folded(entries: DataFrame, partitions: int, make: RowMaker) -> DataFrame:
    def rows(groups: Groups) -> Iterator[Row]:
        return (make(run_id, group) for run_id, group in groups)

    return map_runs(entries, partitions, rows, UNIT_SCHEMA)


def _entries(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str | None, Entry]]:
    """Read entries from their columns, each with the run that it is stored under."""
    for batch in batches:
        columns = [_values(batch.column(name)) for name in COLUMNS]
        yield from zip(columns[COLUMNS.index("run_id")], read_entries(zip(*columns, strict=True)), strict=True)


def _values(column: pa.Array) -> list[Any]:
    """Give a column's values; times in UTC, without the search for their zone that Arrow does for each of them."""
    if not pa.types.is_timestamp(column.type):
        found: list[Any] = column.to_pylist()
        return found
    naive = column.cast(pa.timestamp(column.type.unit)).to_pylist()
    return [value if value is None else value.replace(tzinfo=UTC) for value in naive]


@contextmanager
def _collected_seldom() -> Iterator[None]:
    """Let garbage be looked for more seldom: entries are many, soon gone, and hold no circles; it took a third."""
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


def _row_with_views(run_id: str | None, entries: Iterable[Entry]) -> Row:
    # Only here: whoever wants no views need not wait for the database's packages in every worker.
    from squid_dagster.journal.postgres.views.folded_rows import ViewRows
    from squid_dagster.journal.postgres.views.rows import to_text

    found = ViewRows()
    if run_id is None:
        loose = list(entries)
        row = loose_row(loose)
        found.add_loose(loose)
    else:
        folded = fold_run(entries)
        row = unit_row(run_id, folded)
        found.add_unit(run_id, folded.unit, folded.first_position)
    tables = ("runs", "attempts", "children", "queues", "anomalies")
    return {**row, "views": {table: to_text(getattr(found, table)) for table in tables}}
