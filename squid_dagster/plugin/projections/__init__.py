"""The tables that Spark makes of the journal, as Dagster assets. Needs the extras `squid-dagster[dagster,spark]`."""

from squid_dagster.plugin.projections.assets import ProjectionConfig, build_journal_asset, build_projection_assets
from squid_dagster.plugin.projections.checks import build_projection_checks
from squid_dagster.plugin.projections.definitions import projection_definitions
from squid_dagster.plugin.projections.resources import SparkResource, WarehouseResource
from squid_dagster.plugin.projections.schedule import (
    build_checks_job,
    build_checks_schedule,
    build_projections_job,
    build_projections_schedule,
)
from squid_dagster.plugin.projections.views_job import build_rebuild_views_job

__all__ = [
    "ProjectionConfig",
    "SparkResource",
    "WarehouseResource",
    "build_checks_job",
    "build_checks_schedule",
    "build_journal_asset",
    "build_projection_assets",
    "build_projection_checks",
    "build_projections_job",
    "build_projections_schedule",
    "build_rebuild_views_job",
    "projection_definitions",
]
