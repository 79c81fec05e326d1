"""The protocol's own folds, applied to all runs in Spark's workers. No rule stands here: entries go in, rows come out.

Entries are brought together by run and sorted by position, and each worker folds its runs one after another as the
batches come in. That is grouped execution in one stream: a call of Python per run would cost seven times as much, and
a group handed over whole would have to fit into memory.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from squid_dagster.journal.postgres.reading import read_entries
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.rows import Row, fold_run, loose_row, unit_row
from squid_dagster.spark.tables import UNIT_SCHEMA

COLUMNS = ("thread", "seq", "position", "type", "run_id", "occurred_at", "data", "intact")
"""What a fold needs of each entry, in the order in which `read_entries` takes it."""

_ROWS_PER_BATCH = 1_000

RowMaker = Callable[[str | None, Iterable[Entry]], Row]


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


def _folded(entries: DataFrame, partitions: int, make: RowMaker) -> DataFrame:
    if missing := [name for name in COLUMNS if name not in entries.columns]:
        raise InvalidArgument(f"a fold needs the column {missing[0]!r}: read the journal with {', '.join(COLUMNS)}")
    if partitions < 1:
        raise InvalidArgument(f"partitions is {partitions}: a fold needs a task to do it, from 1 on")
    grouped = entries.select(*COLUMNS).repartition(partitions, "run_id").sortWithinPartitions("run_id", "position")
    target = to_arrow_schema(UNIT_SCHEMA, timezone="UTC")

    def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (
            make(run_id, (entry for _, entry in group))
            for run_id, group in groupby(_entries(batches), key=lambda pair: pair[0])
        )
        yield from _batches(rows, target)

    return grouped.mapInArrow(fold, UNIT_SCHEMA)


def _entries(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str | None, Entry]]:
    """Read entries from their columns, each with the run that it is stored under."""
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        yield from zip(columns[COLUMNS.index("run_id")], read_entries(zip(*columns, strict=True)), strict=True)


def _batches(rows: Iterator[Row], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    while chunk := list(islice(rows, _ROWS_PER_BATCH)):
        yield pa.RecordBatch.from_pylist(chunk, schema=target)


def _history_row(run_id: str | None, entries: Iterable[Entry]) -> Row:
    return loose_row(entries) if run_id is None else unit_row(run_id, fold_run(entries))


def _row_with_views(run_id: str | None, entries: Iterable[Entry]) -> Row:
    whole = list(entries)
    return {**_history_row(run_id, whole), "views": _views(run_id, whole)}


def _views(run_id: str | None, entries: list[Entry]) -> dict[str, Any]:
    # Only here: whoever wants no views need not wait for the database's packages in every worker.
    from squid_dagster.journal.postgres.refold import ViewRows
    from squid_dagster.journal.postgres.rows import to_text

    found = ViewRows()
    if run_id is None:
        found.add_loose(entries)
    else:
        found.add_run(run_id, entries)
    return {
        "runs": to_text(found.runs),
        "attempts": to_text(found.attempts),
        "children": to_text(found.children),
        "queues": to_text(found.queues),
        "anomalies": to_text(found.anomalies),
    }
