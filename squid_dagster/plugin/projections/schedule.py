"""The jobs that update all tables, or check the journal, in one run on one Spark session; and their schedules."""

from typing import Any, cast

import dagster as dg

from squid_dagster.plugin.builders import AnyJob, builds
from squid_dagster.plugin.names import (
    AGENT_PROJECTIONS,
    CHECKS_JOB,
    CHECKS_SCHEDULE,
    PROJECTIONS_JOB,
    PROJECTIONS_SCHEDULE,
    job_tags,
)
from squid_dagster.plugin.projections.specs import HISTORY_TABLES, JOURNAL, STAGE, TABLES, key_of

_UPDATE = "Folds the journal's new facts with Spark and updates all tables of the warehouse."
_CHECKS = "Checks the whole journal with Spark: views, listings, sequences, anomalies."


def build_projections_job() -> Any:
    """Build the job `squid_projections`: all assets of the warehouse, in one process, so that one session serves all.

    Without a partition it updates every day that has changed; with partitions, it rebuilds these days. The checks have
    a job of their own: they read the whole journal.
    """
    names = [JOURNAL, STAGE, *(table.name for table in (*TABLES, *HISTORY_TABLES))]
    return dg.define_asset_job(
        PROJECTIONS_JOB,
        selection=dg.AssetSelection.assets(*(key_of(name) for name in names)).without_checks(),
        tags=job_tags(AGENT_PROJECTIONS),
        description=_UPDATE,
        executor_def=dg.in_process_executor,
    )


@builds
def build_checks_job(*, checks: dg.AssetChecksDefinition) -> Any:
    """Build the job `squid_checks`: it reads the whole journal, once for all checks."""
    return dg.define_asset_job(
        CHECKS_JOB,
        selection=dg.AssetSelection.checks(checks),
        tags=job_tags(AGENT_PROJECTIONS),
        description=_CHECKS,
        executor_def=dg.in_process_executor,
    )


@builds
def build_checks_schedule(
    *,
    job: AnyJob,
    cron_schedule: str = "30 3 * * *",
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
) -> dg.ScheduleDefinition:
    """Build the schedule `squid_checks_schedule`, once a day. It is off by default: it reads the whole journal."""
    return dg.ScheduleDefinition(
        name=CHECKS_SCHEDULE,
        job=cast("Any", job),
        cron_schedule=cron_schedule,
        default_status=default_status,
        description=_CHECKS,
    )


@builds
def build_projections_schedule(
    *,
    job: AnyJob,
    cron_schedule: str = "*/15 * * * *",
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
) -> dg.ScheduleDefinition:
    """Build the schedule `squid_projections_schedule`. It is off by default: Spark takes memory."""
    return dg.ScheduleDefinition(
        name=PROJECTIONS_SCHEDULE,
        job=cast("Any", job),
        cron_schedule=cron_schedule,
        default_status=default_status,
        description=_UPDATE,
    )
