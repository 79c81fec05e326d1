"""The tables with a row per run, attempt, child or anomaly, projected from folded runs. Pure: Arrow in, Arrow out.

Called in Spark's Python workers: a batch of runs takes milliseconds, and Spark has nothing to plan.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.tables.columns import TABLE_SCHEMAS

Columns = dict[str, pa.Array]
_HISTORY = ("first_position", "last_position", "entries")


def rows_of(table: str, runs: pa.RecordBatch) -> pa.RecordBatch:
    """Return a table's rows for some folded runs, which must have its `COLUMNS`."""
    schema = arrow_schema(table)
    columns = _PROJECTIONS[table](runs)
    return pa.record_batch([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)


@checked
def project_frame(units: DataFrame, table: str) -> DataFrame:
    """Return a table as a frame, projected from folded runs, as `fold_runs` returns them.

    Raises:
        InvalidArgument: there is no table of that name, or the frame has no folded runs.
    """
    if table not in COLUMNS:
        raise InvalidArgument(f"there is no table {table!r:.80}: choose from {', '.join(COLUMNS)}")
    if missing := [name for name in COLUMNS[table] if name not in units.columns]:
        raise InvalidArgument(f"a projection needs the column {missing[0]!r}: give it what `fold_runs` returns")

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (rows_of(table, batch) for batch in batches)

    return units.select(*COLUMNS[table]).mapInArrow(work, TABLE_SCHEMAS[table])


def arrow_schema(table: str) -> pa.Schema:
    """Return the Arrow schema of a table."""
    return to_arrow_schema(TABLE_SCHEMAS[table], timezone="UTC")


def _listed(runs: pa.RecordBatch, column: str) -> Columns:
    """Return the runs that are listed in the index or in the catalog, by column."""
    listed = runs.filter(pc.is_valid(runs.column(column)))
    return {**_fields(listed.column(column)), "run_id": listed.column("run_id"), "day": listed.column("day")}


def _history(runs: pa.RecordBatch) -> Columns:
    of_runs = runs.filter(pc.is_valid(runs.column("run_id")))
    return {**_fields(of_runs.column("run")), **{name: of_runs.column(name) for name in ("run_id", *_HISTORY, "day")}}


def _exploded(runs: pa.RecordBatch, column: str) -> Columns:
    """Return a row for each element of a list; the fields of an element win over those of its run."""
    lists = runs.column(column)
    parents = pc.list_parent_indices(lists)
    of_run = {name: runs.column(name).take(parents) for name in ("run_id", "day")}
    return {**of_run, **_fields(pc.list_flatten(lists))}


def _fields(structs: Any) -> Columns:
    names = [field.name for field in structs.type]
    return dict(zip(names, structs.flatten(), strict=True))


_PROJECTIONS: dict[str, Callable[[pa.RecordBatch], Columns]] = {
    "run_index": lambda runs: _listed(runs, "indexed"),
    "run_catalog": lambda runs: _listed(runs, "cataloged"),
    "run_history": _history,
    "attempt_history": lambda runs: _exploded(runs, "attempts"),
    "child_links": lambda runs: _exploded(runs, "children"),
    "journal_anomalies": lambda runs: _exploded(runs, "anomalies"),
}

COLUMNS = {
    "run_index": ("run_id", "indexed", "day"),
    "run_catalog": ("run_id", "cataloged", "day"),
    "run_history": ("run_id", *_HISTORY, "run", "day"),
    "attempt_history": ("run_id", "attempts", "day"),
    "child_links": ("run_id", "children", "day"),
    "journal_anomalies": ("run_id", "anomalies", "day"),
}
"""The columns of folded runs that each table needs."""
