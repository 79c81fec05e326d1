"""The Dagster plugin: resource, jobs, sensors, schedules and assets for the runs of a journal.

Exports everything that a code location needs. Requires the extra `squid-dagster[dagster]`.
"""

from dagster_shared.libraries import DagsterLibraryRegistry

from squid_dagster import __version__
from squid_dagster.inspection.attention_items import AttentionItem
from squid_dagster.plugin.attention.sensor import build_attention_sensor
from squid_dagster.plugin.commands.jobs import build_command_jobs
from squid_dagster.plugin.component import SquidComponent
from squid_dagster.plugin.crons import build_cron_schedules
from squid_dagster.plugin.definitions import squid_definitions
from squid_dagster.plugin.dispatch.job import DrainConfig, build_dispatch_job
from squid_dagster.plugin.dispatch.sensor import build_dispatch_sensor
from squid_dagster.plugin.external.sensor import build_external_sensor
from squid_dagster.plugin.projections import (
    ProjectionConfig,
    SparkResource,
    WarehouseResource,
    build_checks_job,
    build_checks_schedule,
    build_journal_asset,
    build_projection_assets,
    build_projection_checks,
    build_projections_job,
    build_projections_schedule,
    build_rebuild_views_job,
    projection_definitions,
)
from squid_dagster.plugin.recovery import build_recovery_job, build_recovery_schedule
from squid_dagster.plugin.resource import SquidResource

__all__ = [
    "AttentionItem",
    "DrainConfig",
    "ProjectionConfig",
    "SparkResource",
    "SquidComponent",
    "SquidResource",
    "WarehouseResource",
    "build_attention_sensor",
    "build_checks_job",
    "build_checks_schedule",
    "build_command_jobs",
    "build_cron_schedules",
    "build_dispatch_job",
    "build_dispatch_sensor",
    "build_external_sensor",
    "build_journal_asset",
    "build_projection_assets",
    "build_projection_checks",
    "build_projections_job",
    "build_projections_schedule",
    "build_rebuild_views_job",
    "build_recovery_job",
    "build_recovery_schedule",
    "projection_definitions",
    "squid_definitions",
]

DagsterLibraryRegistry.register("squid-dagster", __version__, is_dagster_package=False)  # shown with the location
