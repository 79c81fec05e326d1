"""Folded runs with the rows of the live views, to compare Spark's fold with the views in Postgres."""

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from squid_dagster.protocol.entries import Entry
from squid_dagster.spark.fold.folds import Groups, map_runs
from squid_dagster.spark.tables.columns import UNIT_SCHEMA

_TABLES = ("runs", "attempts", "children", "queues", "anomalies")
_VIEWS = StructType([StructField(table, StringType()) for table in _TABLES])


def fold_runs_with_views(entries: DataFrame, partitions: int) -> DataFrame:
    """Fold as `fold_runs` does, with the rows of the live views as JSON in a column `views`."""
    tables = _TABLES  # workers cannot import this module: a closure is sent to them

    def row(run_id: str | None, of_run: Iterable[Entry]) -> dict[str, Any]:
        from squid_dagster.journal.postgres.views.folded_rows import ViewRows
        from squid_dagster.journal.postgres.views.rows import to_text
        from squid_dagster.spark.fold.run_rows import fold_run, loose_row, unit_row

        view_rows = ViewRows()
        if run_id is None:
            loose = list(of_run)
            folded_row = loose_row(loose)
            view_rows.add_loose(loose)
        else:
            folded = fold_run(of_run)
            folded_row = unit_row(run_id, folded)
            view_rows.add_unit(run_id, folded.unit, folded.first_position)
        return {**folded_row, "views": {table: to_text(getattr(view_rows, table)) for table in tables}}

    def rows(groups: Groups) -> Iterator[dict[str, Any]]:
        return (row(run_id, of_run) for run_id, of_run in groups)

    return map_runs(entries, partitions, rows, StructType([*UNIT_SCHEMA, StructField("views", _VIEWS)]))
