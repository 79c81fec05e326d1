"""`projection_definitions`: the warehouse's assets with their checks, jobs, schedules and resources, in one call."""

from datetime import date

import dagster as dg

from squid_dagster.plugin.builders import builds
from squid_dagster.plugin.names import SPARK_RESOURCE, WAREHOUSE_RESOURCE
from squid_dagster.plugin.projections.assets import DEFAULT_HISTORY_START, build_journal_asset, build_projection_assets
from squid_dagster.plugin.projections.checks import build_projection_checks
from squid_dagster.plugin.projections.resources import SparkResource, WarehouseResource
from squid_dagster.plugin.projections.schedule import (
    build_checks_job,
    build_checks_schedule,
    build_projections_job,
    build_projections_schedule,
)
from squid_dagster.plugin.projections.views_job import build_rebuild_views_job


@builds
def projection_definitions(
    *,
    spark: SparkResource | None = None,
    warehouse: WarehouseResource | None = None,
    history_start: date | str = DEFAULT_HISTORY_START,
) -> dg.Definitions:
    """Build the assets of the warehouse, to be merged with `squid_definitions`, which brings the resource `squid`.

    Example:
        `defs = dg.Definitions.merge(squid_definitions(workflows=[orders]), projection_definitions())`
    """
    checks = build_projection_checks()
    job, checks_job = build_projections_job(), build_checks_job(checks=checks)
    return dg.Definitions(
        assets=[build_journal_asset(), *build_projection_assets(history_start=history_start)],
        asset_checks=[checks],
        jobs=[job, checks_job, build_rebuild_views_job()],
        schedules=[build_projections_schedule(job=job), build_checks_schedule(job=checks_job)],
        resources={
            SPARK_RESOURCE: spark or SparkResource(),
            WAREHOUSE_RESOURCE: warehouse or WarehouseResource(),
        },
    )
