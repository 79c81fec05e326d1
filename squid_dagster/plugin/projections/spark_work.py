"""What the ops of the projections do. The only module here that imports Spark, and only when an op runs."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import dagster as dg
from pyspark.sql import functions as f

from squid_dagster.journal import PostgresStorage
from squid_dagster.plugin.projections.metadata import (
    MAX_PARTS,
    MAX_ROWS,
    attempt_plots,
    rows_markdown,
    run_plots,
    table_metadata,
)
from squid_dagster.plugin.projections.resources import SparkResource, WarehouseResource
from squid_dagster.plugin.projections.specs import ATTEMPT_HISTORY, HISTORIES, RUN_HISTORY
from squid_dagster.plugin.resource import SquidResource
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.source.credentials import handed_over
from squid_dagster.spark.tables.figures import attempt_figures, bucket_for, run_figures, step_figures
from squid_dagster.spark.tables.manifest import is_day
from squid_dagster.spark.tables.refresh import Refresher, TableRefreshed, Work
from squid_dagster.spark.tables.warehouse import Warehouse

_WAIT = timedelta(minutes=10)  # for another run's refresh: ours then goes on from where it ended


@dataclass(frozen=True, slots=True)
class Projecting:
    """An op at work: the refresh under way, and what is told of it."""

    work: Work
    warehouse: Warehouse
    spark: Any
    since: float

    def stage(self, *, full: bool) -> TableRefreshed:
        """Bring the folded runs up to a new cut, from the whole journal if `full`."""
        return self.work.stage(full=full)

    def table(self, name: str, *, full: bool = False, days: Sequence[date] = ()) -> TableRefreshed:
        """Bring a table to where the folded runs are."""
        return self.work.table(name, full=full, days=days)

    def histories(self, names: Sequence[str], *, full: bool, days: Sequence[date]) -> list[TableRefreshed]:
        """Bring histories to where the folded runs are; with days and `full`, fold the runs of these days first."""
        if full and days:
            self.work.stage(days=days)
        return list(self.work.tables(names, full=full, days=days).values())

    def metadata(self, done: TableRefreshed, days: Sequence[date] = ()) -> dict[str, dg.MetadataValue]:
        """Tell of a table what everybody wants to know, and draw what a history has to show."""
        location = f"{self.warehouse.path}/{done.table}"
        found = table_metadata(done, location, time.monotonic() - self.since)
        return {**found, **self._shown(done, [day.isoformat() for day in days])}

    def _shown(self, done: TableRefreshed, days: Sequence[str]) -> dict[str, dg.MetadataValue]:
        if done.table in HISTORIES:
            shown = sorted(name for name in days or done.manifest.parts if is_day(name))[-MAX_PARTS:]
            rows, bucket = self.warehouse.read_parts(self.spark, done.manifest, shown), bucket_for(shown)
            if done.table == RUN_HISTORY:
                return run_plots(run_figures(rows, bucket))
            if done.table == ATTEMPT_HISTORY:
                return attempt_plots(attempt_figures(rows, bucket), step_figures(rows))
        if done.table == "queue_health":
            return self._rows(done, "squid/queues", "queue")
        if done.table == "journal_anomalies" and done.manifest.rows:
            return self._rows(done, "squid/latest_anomalies", f.desc("position"))
        return {}

    def _rows(self, done: TableRefreshed, key: str, order: Any) -> dict[str, dg.MetadataValue]:
        rows = self.warehouse.read_parts(self.spark, done.manifest).orderBy(order).limit(MAX_ROWS)
        found = [row.asDict() for row in rows.collect()]
        return {key: dg.MetadataValue.md(rows_markdown(found, rows.columns))}


@contextmanager
def projecting(
    squid: SquidResource, spark: SparkResource, warehouse: WarehouseResource, log: Any
) -> Iterator[Projecting]:
    """Check the journal, the directory and Spark, in that order, and begin; nobody else writes meanwhile.

    Raises:
        InvalidArgument: the journal is not in Postgres, or a resource is configured in a way that makes no sense.
        SparkUnavailable, JavaMissing: Spark cannot run as configured.
        WarehouseUnavailable and below: the directory cannot be used, or somebody else uses it for too long.
        StorageUnavailable, SchemaOutdated, SchemaTooNew, ForeignSchema: the journal cannot be read.
    """
    since = time.monotonic()
    storage, place = squid.journal, warehouse.warehouse
    if not isinstance(storage, PostgresStorage):
        raise InvalidArgument(
            f"Spark reads a journal from Postgres, and this one is a {type(storage).__name__}: give the resource a URL"
        )
    storage.check()
    place.check()  # what is wrong with it is told before Spark takes its seconds to start
    session = spark.spark_session
    url = storage.engine.url.render_as_string(hide_password=False)
    with handed_over(url) as location:
        refresher = Refresher(session, storage, location, place, log.info)
        with refresher.begun(_WAIT) as work:
            yield Projecting(work, place, session, since)
