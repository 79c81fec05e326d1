"""The tables that have a row for each run, attempt, child or anomaly, cut from folded runs. Pure: Arrow in, Arrow out.

They are cut in Spark's Python workers, where a batch of runs takes milliseconds and nothing has to be planned.
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


def cut(table: str, runs: pa.RecordBatch) -> pa.RecordBatch:
    """Give a table's rows for some folded runs, which must have its `COLUMNS`."""
    schema = arrow_schema(table)
    found = _CUTS[table](runs)
    return pa.record_batch([found[name].cast(schema.field(name).type) for name in schema.names], schema=schema)


@checked
def cut_frame(units: DataFrame, table: str) -> DataFrame:
    """Cut a table from folded runs, as `folds.fold_runs` gives them.

    Raises:
        InvalidArgument: there is no table of that name, or the frame holds no folded runs.
    """
    if table not in COLUMNS:
        raise InvalidArgument(f"there is no table {table!r:.80}: choose from {', '.join(COLUMNS)}")
    if missing := [name for name in COLUMNS[table] if name not in units.columns]:
        raise InvalidArgument(f"a cut needs the column {missing[0]!r}: give it what `fold_runs` returns")

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (cut(table, batch) for batch in batches)

    return units.select(*COLUMNS[table]).mapInArrow(work, TABLE_SCHEMAS[table])


def arrow_schema(table: str) -> pa.Schema:
    """Give a table's columns as Arrow names them."""
    return to_arrow_schema(TABLE_SCHEMAS[table], timezone="UTC")


def _listed(runs: pa.RecordBatch, column: str) -> Columns:
    """Give the runs that have a place under a workflow, or among all."""
    kept = runs.filter(pc.is_valid(runs.column(column)))
    return {**_fields(kept.column(column)), "run_id": kept.column("run_id"), "day": kept.column("day")}


def _history(runs: pa.RecordBatch) -> Columns:
    kept = runs.filter(pc.is_valid(runs.column("run_id")))
    return {**_fields(kept.column("run")), **{name: kept.column(name) for name in ("run_id", *_HISTORY, "day")}}


def _exploded(runs: pa.RecordBatch, column: str) -> Columns:
    """Give a row for each element of a list; what an element says of itself goes before what its run says."""
    lists = runs.column(column)
    parents = pc.list_parent_indices(lists)
    of_run = {name: runs.column(name).take(parents) for name in ("run_id", "day")}
    return {**of_run, **_fields(pc.list_flatten(lists))}


def _fields(structs: Any) -> Columns:
    names = [field.name for field in structs.type]
    return dict(zip(names, structs.flatten(), strict=True))


_CUTS: dict[str, Callable[[pa.RecordBatch], Columns]] = {
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
"""The columns of folded runs that each table is cut from."""
