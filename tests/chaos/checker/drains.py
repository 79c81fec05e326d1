"""The drain runs of Dagster under chaos: workers too, which must not end because of their database."""

from pathlib import Path

import dagster as dg
from dagster import DagsterEventType, DagsterInstance, RunsFilter

from squid_dagster.plugin.names import DISPATCH_JOB


def failed_drains(home: Path) -> dict[str, str]:
    """Return the errors of drain runs that failed in their op, by run id; a run that was killed has not failed."""
    if not (home / "storage").exists():
        return {}
    with DagsterInstance.from_config(str(home)) as instance:
        runs = instance.get_runs(RunsFilter(job_name=DISPATCH_JOB, statuses=[dg.DagsterRunStatus.FAILURE]))
        errors = {}
        for run in runs:
            for entry in instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_FAILURE):
                assert entry.dagster_event is not None
                errors[run.run_id] = str(entry.dagster_event.step_failure_data.error)[-2000:]
        return errors
