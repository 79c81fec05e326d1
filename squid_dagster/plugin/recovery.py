"""The recovery job, which closes what crashes have left open, and its schedule.

Workers and drain runs recover too. Any number of recoveries may run at once.
"""

from collections.abc import Sequence

import dagster as dg

from squid_dagster.plugin.builders import builds
from squid_dagster.plugin.failures import dagster_failures
from squid_dagster.plugin.markdown import table
from squid_dagster.plugin.names import AGENT_RECOVERY, RECOVERY_JOB, RECOVERY_SCHEDULE, job_tags
from squid_dagster.plugin.resource import SquidResource, Workflows
from squid_dagster.runtime.commands.signals import Receipt
from squid_dagster.runtime.recovery.recovery import RecoveryReport

RECOVERY_OP = "squid_recover"
_NAMED = 100  # runs of each kind that are listed; the counts include all
COUNTS = {
    "queued": "runs put on their queue",
    "scheduled": "planned attempts scheduled",
    "applied": "results applied",
    "progressed": "runs led on",
    "dead_lettered": "attempts given up, delivered too often",
    "dead_letters": "dead letters followed up",
    "children": "child runs started",
    "cascades": "cancels passed on to children",
    "fenced": "ended runs fenced",
    "listed": "runs indexed and cataloged",
}


@builds
def build_recovery_job(*, workflows: Workflows = ()) -> dg.JobDefinition:
    """Build the job `squid_recovery`: it closes all crash windows, starts due crons, and reports what it did.

    Its one op needs the resource `squid`. `workflows` are those of the location that the resource's modules do not
    name: a run can only be led on where its definition is known.
    """

    @dg.op(name=RECOVERY_OP, out=dg.Out(dg.Nothing), description="Close what crashes have left open.")
    def recover(context: dg.OpExecutionContext, squid: SquidResource) -> None:
        with dagster_failures():
            app = squid.squid_for(workflows)
            report = app.recover()
            started = app.start_due_crons()
        for run_id, why in list(report.failed.items())[:_NAMED]:
            context.log.error(f"run {run_id} could not be repaired: {why}")
        context.add_output_metadata(recovery_metadata(report, started))

    @dg.job(
        name=RECOVERY_JOB,
        tags=job_tags(AGENT_RECOVERY),
        description="Closes what crashes have left open, and starts crons that are due.",
        executor_def=dg.in_process_executor,  # one op: a process of its own for it would be waste
    )
    def job() -> None:
        recover()

    return job


def recovery_metadata(report: RecoveryReport, started: Sequence[Receipt]) -> dict[str, dg.MetadataValue]:
    """Show what a recovery did: the counts, and the runs that it could not lead on. Pure."""
    # A window that another process has just started is not counted.
    new = [receipt.run_id for receipt in started if not receipt.repeated]
    rows: list[tuple[str, object]] = [(label, getattr(report, name)) for name, label in COUNTS.items()]
    rows += [("cron runs started", len(new)), ("held: definition not registered here", len(report.held))]
    rows += [("quarantined", len(report.quarantined)), ("could not be repaired", len(report.failed))]
    metadata: dict[str, dg.MetadataValue] = {
        "repaired": dg.MetadataValue.int(report.repaired),
        "held": dg.MetadataValue.int(len(report.held)),
        "quarantined": dg.MetadataValue.int(len(report.quarantined)),
        "failed": dg.MetadataValue.int(len(report.failed)),
        "crons_started": dg.MetadataValue.int(len(new)),
        "report": dg.MetadataValue.md(table(("what", "how many"), rows)),
    }
    named = [(run_id, "cron run started", "") for run_id in new[:_NAMED]]
    named += [(run_id, "held", "register its definition again") for run_id in report.held[:_NAMED]]
    named += [(run_id, "quarantined", "an entry cannot be read") for run_id in report.quarantined[:_NAMED]]
    named += [(run_id, "could not be repaired", why) for run_id, why in list(report.failed.items())[:_NAMED]]
    if named:
        metadata["runs"] = dg.MetadataValue.md(table(("run", "what", "note"), named))
    return metadata


@builds
def build_recovery_schedule(
    *,
    job: dg.JobDefinition,
    cron_schedule: str = "* * * * *",
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.RUNNING,
) -> dg.ScheduleDefinition:
    """Build the schedule `squid_recovery_schedule`. It is on by default, also on a new Dagster instance."""
    return dg.ScheduleDefinition(
        name=RECOVERY_SCHEDULE,
        job=job,
        cron_schedule=cron_schedule,
        default_status=default_status,
        description="Closes what crashes have left open, and starts crons that are due.",
    )
