"""The journal's tables as Dagster assets, made by Spark. Needs the extras `squid-dagster[dagster,spark]`."""

from squid_dagster.plugin.projections.assets import ProjectionConfig, build_projection_assets
from squid_dagster.plugin.projections.definitions import projection_definitions
from squid_dagster.plugin.projections.journal import build_journal_asset
from squid_dagster.plugin.projections.resources import SparkResource, WarehouseResource
from squid_dagster.plugin.projections.schedule import build_projections_job, build_projections_schedule

__all__ = [
    "ProjectionConfig",
    "SparkResource",
    "WarehouseResource",
    "build_journal_asset",
    "build_projection_assets",
    "build_projections_job",
    "build_projections_schedule",
    "projection_definitions",
]
