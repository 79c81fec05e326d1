"""The asset `squid/journal`, and those of the warehouse: `squid/folded_runs` and the six tables derived from it.

One op materializes both histories: they have the same days, and one run of it updates any number of days.
"""

from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

import dagster as dg
from pydantic import Field

from squid_dagster.inspection.display import when
from squid_dagster.plugin.builders import builds
from squid_dagster.plugin.failures import dagster_failures
from squid_dagster.plugin.markdown import table as markdown_table
from squid_dagster.plugin.projections.metadata import part_metadata
from squid_dagster.plugin.projections.resources import SparkResource, WarehouseResource
from squid_dagster.plugin.projections.specs import (
    GROUP,
    HISTORY_TABLES,
    JOURNAL,
    KINDS,
    STAGE,
    STAGE_TABLE,
    TABLES,
    Table,
    key_of,
)
from squid_dagster.plugin.resource import SquidResource
from squid_dagster.protocol.errors import InvalidArgument, shown

DEFAULT_HISTORY_START = "2026-01-01"
HISTORY_OP = "squid_histories"
_DATA_VERSION = "dagster/data_version"
_QUEUE_HEADINGS = ("queue", "paused", "due", "due later", "claimed", "lease over", "oldest due since")


class ProjectionConfig(dg.Config):
    """Config of the refresh of a table."""

    full: bool = Field(
        default=False,
        description="Rebuild everything, instead of what has changed since the last time. The result is the same.",
    )


def build_journal_asset() -> dg.AssetsDefinition:
    """Build the asset `squid/journal`. It needs the resource `squid`, and no Spark."""

    @dg.asset(
        key=key_of(JOURNAL),
        group_name=GROUP,
        kinds={"postgres"},
        description="The append-only journal. Materializing it writes nothing there: it notes how far the journal has "
        "come, and what every queue holds.",
    )
    def journal(squid: SquidResource) -> dg.MaterializeResult[None]:
        with dagster_failures():
            position = squid.journal.cut()
            rows = squid.squid.queues()
        shown = [
            (
                row.queue,
                "yes" if row.paused else "no",
                row.visible,
                row.scheduled,
                row.claimed,
                row.expired,
                when(row.oldest_due_at) if row.oldest_due_at else "",
            )
            for row in rows
        ]
        return dg.MaterializeResult(
            data_version=dg.DataVersion(str(position)),
            metadata={
                "squid/journal_high_water": position,
                "squid/due": sum(row.visible for row in rows),
                "squid/queues": dg.MetadataValue.md(markdown_table(_QUEUE_HEADINGS, shown)),
            },
        )

    return journal


@builds
def build_projection_assets(*, history_start: date | str = DEFAULT_HISTORY_START) -> list[dg.AssetsDefinition]:
    """Build the assets of the warehouse. They need the resources `squid`, `spark` and `squid_warehouse`.

    `history_start` is the first day that Dagster knows as a partition of the histories; runs that started before it
    are in the tables all the same.

    Raises:
        InvalidArgument: `history_start` is no date.
    """
    days = dg.DailyPartitionsDefinition(start_date=_day(history_start).isoformat(), end_offset=1)
    return [_stage_asset(), *(_table_asset(table) for table in TABLES), _history_assets(days)]


def _day(history_start: date | str) -> date:
    if isinstance(history_start, datetime):
        return history_start.date()
    try:
        return history_start if isinstance(history_start, date) else date.fromisoformat(history_start)
    except ValueError:
        raise InvalidArgument(f"history_start must be a day such as '2026-01-31', not {shown(history_start)}") from None


def _stage_asset() -> dg.AssetsDefinition:
    @dg.asset(
        key=key_of(STAGE),
        deps=[key_of(JOURNAL)],
        group_name=GROUP,
        kinds={*KINDS, "postgres"},
        description=STAGE_TABLE.description,
    )
    def folded_runs(
        context: dg.AssetExecutionContext,
        config: ProjectionConfig,
        squid: SquidResource,
        spark: SparkResource,
        squid_warehouse: WarehouseResource,
    ) -> dg.MaterializeResult[None]:
        from squid_dagster.plugin.projections.spark_work import projection_work

        with dagster_failures(), projection_work(squid, spark, squid_warehouse, context.log) as op:
            done = op.stage(full=config.full)
            return _result(STAGE, done, op.metadata(done))

    return folded_runs


def _table_asset(table: Table) -> dg.AssetsDefinition:
    @dg.asset(
        key=key_of(table.name),
        deps=[key_of(STAGE)],
        group_name=GROUP,
        kinds=KINDS,
        description=table.description,
    )
    def derived_table(
        context: dg.AssetExecutionContext,
        config: ProjectionConfig,
        squid: SquidResource,
        spark: SparkResource,
        squid_warehouse: WarehouseResource,
    ) -> dg.MaterializeResult[None]:
        from squid_dagster.plugin.projections.spark_work import projection_work

        with dagster_failures(), projection_work(squid, spark, squid_warehouse, context.log) as op:
            done = op.table(table.name, full=config.full)
            return _result(table.name, done, op.metadata(done))

    return derived_table


def _history_assets(days: dg.DailyPartitionsDefinition) -> dg.AssetsDefinition:
    specs = [
        dg.AssetSpec(
            key_of(table.name),
            deps=[key_of(STAGE)],
            group_name=GROUP,
            kinds=KINDS,
            description=table.description,
            partitions_def=days,
        )
        for table in HISTORY_TABLES
    ]

    @dg.multi_asset(
        name=HISTORY_OP,
        specs=specs,
        can_subset=True,
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def histories(
        context: dg.AssetExecutionContext,
        config: ProjectionConfig,
        squid: SquidResource,
        spark: SparkResource,
        squid_warehouse: WarehouseResource,
    ) -> Iterator[dg.MaterializeResult[None]]:
        from squid_dagster.plugin.projections.spark_work import projection_work

        chosen = [table.name for table in HISTORY_TABLES if key_of(table.name) in context.selected_asset_keys]
        days_asked = _days(context)
        with dagster_failures(), projection_work(squid, spark, squid_warehouse, context.log) as op:
            for done in op.histories(chosen, full=config.full, days=days_asked):
                if days_asked:
                    _add_day_metadata(context, done, days_asked)
                else:
                    _log_written(context, done, days)
                yield _result(done.table, done, op.metadata(done, days_asked))

    return histories


def _days(context: dg.AssetExecutionContext) -> list[date]:
    """Return the days of a run's partitions; without any, the run updates all days that have changed."""
    if not (context.has_partition_key or context.has_partition_key_range):
        return []
    return [date.fromisoformat(name) for name in context.partition_keys]


def _add_day_metadata(context: dg.AssetExecutionContext, done: Any, days: list[date]) -> None:
    """Add its own figures to each day of a run with partitions."""
    for day in days:
        context.add_asset_metadata(
            part_metadata(done, day.isoformat()), asset_key=key_of(done.table), partition_key=day.isoformat()
        )


def _log_written(context: dg.AssetExecutionContext, done: Any, days: dg.DailyPartitionsDefinition) -> None:
    """Log the days that a run without partitions has written, as materializations of their partitions."""
    for name in done.days:
        if days.has_partition_key(name):
            context.log_event(
                dg.AssetMaterialization(
                    key_of(done.table),
                    partition=name,
                    metadata=part_metadata(done, name),
                    tags={_DATA_VERSION: str(done.manifest.parts[name].covered)},
                )
            )


def _result(name: str, done: Any, metadata: dict[str, dg.MetadataValue]) -> dg.MaterializeResult[None]:
    version = dg.DataVersion(str(done.manifest.covered))
    return dg.MaterializeResult(key_of(name), metadata=metadata, data_version=version)
