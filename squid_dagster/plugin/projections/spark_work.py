"""The work of the projections' ops. Imports Spark, and so is imported when an op runs."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import dagster as dg
from pyspark.sql import functions as f

from squid_dagster.plugin.projections.metadata import (
    MAX_PARTS,
    MAX_ROWS,
    attempt_plots,
    rows_markdown,
    run_plots,
    table_metadata,
)
from squid_dagster.plugin.projections.resources import SparkResource, WarehouseResource
from squid_dagster.plugin.projections.spark_journal import postgres_journal
from squid_dagster.plugin.projections.specs import ATTEMPT_HISTORY, HISTORIES, RUN_HISTORY
from squid_dagster.plugin.resource import SquidResource
from squid_dagster.spark.source.credentials import handed_over
from squid_dagster.spark.tables.figures import attempt_figures, bucket_for, run_figures, step_figures
from squid_dagster.spark.tables.manifest import is_day
from squid_dagster.spark.tables.refresh import TableResult, WarehouseRefresh, Work
from squid_dagster.spark.tables.warehouse import Warehouse

_WAIT = timedelta(minutes=10)  # for another run's refresh: ours then continues from its end


@dataclass(frozen=True, slots=True)
class ProjectionWork:
    """The refresh of an op, and the metadata of its tables."""

    work: Work
    warehouse: Warehouse
    spark: Any
    since: float

    def stage(self, *, full: bool) -> TableResult:
        """Update the folded runs to a new cut, from the whole journal if `full`."""
        return self.work.stage(full=full)

    def table(self, name: str, *, full: bool = False, days: Sequence[date] = ()) -> TableResult:
        """Update a table to the cut of the folded runs."""
        return self.work.table(name, full=full, days=days)

    def histories(self, names: Sequence[str], *, full: bool, days: Sequence[date]) -> list[TableResult]:
        """Update histories to the cut of the folded runs; with days and `full`, fold the runs of these days first."""
        if full and days:
            self.work.stage(days=days)
        return list(self.work.tables(names, full=full, days=days).values())

    def metadata(self, done: TableResult, days: Sequence[date] = ()) -> dict[str, dg.MetadataValue]:
        """Return the metadata of a table, with plots of a history."""
        location = f"{self.warehouse.path}/{done.table}"
        common = table_metadata(done, location, time.monotonic() - self.since)
        return {**common, **self._details(done, [day.isoformat() for day in days])}

    def _details(self, done: TableResult, days: Sequence[str]) -> dict[str, dg.MetadataValue]:
        if done.table in HISTORIES:
            latest = sorted(name for name in days or done.manifest.parts if is_day(name))[-MAX_PARTS:]
            rows, bucket = self.warehouse.read_parts(self.spark, done.manifest, latest), bucket_for(latest)
            if done.table == RUN_HISTORY:
                return run_plots(run_figures(rows, bucket))
            if done.table == ATTEMPT_HISTORY:
                return attempt_plots(attempt_figures(rows, bucket), step_figures(rows))
        if done.table == "queue_health":
            return self._rows(done, "squid/queues", "queue")
        if done.table == "journal_anomalies" and done.manifest.rows:
            return self._rows(done, "squid/latest_anomalies", f.desc("position"))
        return {}

    def _rows(self, done: TableResult, key: str, order: Any) -> dict[str, dg.MetadataValue]:
        rows = self.warehouse.read_parts(self.spark, done.manifest).orderBy(order).limit(MAX_ROWS)
        return {key: dg.MetadataValue.md(rows_markdown([row.asDict() for row in rows.collect()], rows.columns))}


@contextmanager
def projection_work(
    squid: SquidResource, spark: SparkResource, warehouse: WarehouseResource, log: Any
) -> Iterator[ProjectionWork]:
    """Check the journal, the directory and Spark, in that order, and lock the warehouse for the block.

    Raises:
        InvalidArgument: the journal is not in Postgres, or a resource is not configured.
        SparkUnavailable, JavaMissing: Spark cannot run as configured.
        WarehouseUnavailable and below: the directory cannot be used, or another process uses it for too long.
        StorageUnavailable, SchemaOutdated, SchemaTooNew, ForeignSchema: the journal cannot be read.
    """
    since = time.monotonic()
    storage, place = postgres_journal(squid), warehouse.warehouse
    place.check()  # before Spark takes its seconds to start
    session = spark.spark_session
    url = storage.engine.url.render_as_string(hide_password=False)
    with handed_over(url) as location:
        refresher = WarehouseRefresh(session, storage, location, place, log.info)
        with refresher.begun(_WAIT) as work:
            yield ProjectionWork(work, place, session, since)
