"""The job that brings all tables up to date in one run, on one Spark session, and the schedule that runs it."""

from typing import Any

import dagster as dg

from squid_dagster.plugin.names import AGENT_PROJECTIONS, PROJECTIONS_JOB, PROJECTIONS_SCHEDULE, job_tags
from squid_dagster.plugin.projections.specs import HISTORY_TABLES, JOURNAL, STAGE, TABLES, key_of

_WHAT = "Folds the journal's new facts with Spark and brings all tables of the warehouse up to date."


def build_projections_job() -> Any:
    """Build the job `squid_projections`: all assets of the warehouse, in one process, so that one session serves all.

    Without a partition it brings every day up to date that has changed; with days, it makes these anew.
    """
    names = [JOURNAL, STAGE, *(table.name for table in (*TABLES, *HISTORY_TABLES))]
    return dg.define_asset_job(
        PROJECTIONS_JOB,
        selection=dg.AssetSelection.assets(*(key_of(name) for name in names)),
        tags=job_tags(AGENT_PROJECTIONS),
        description=_WHAT,
        executor_def=dg.in_process_executor,
    )


def build_projections_schedule(
    *,
    job: Any,
    cron_schedule: str = "*/15 * * * *",
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
) -> dg.ScheduleDefinition:
    """Build the schedule `squid_projections_schedule`. It is to be switched on: Spark takes memory."""
    return dg.ScheduleDefinition(
        name=PROJECTIONS_SCHEDULE,
        job=job,
        cron_schedule=cron_schedule,
        default_status=default_status,
        description=_WHAT,
    )
