"""Cron triggers as Dagster schedules. A tick asks the journal which windows are due; Dagster decides nothing.

So a repeated tick starts nothing twice, a late one starts what is due by then, and the windows of a missed one are
started by the next tick, by recovery or by any worker, as the trigger's `catch_up` says. No tick needs a Dagster run.
(A preview of a tick in the UI is a tick too: it starts what is due.)
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import dagster as dg

from squid_dagster.inspection.display import when
from squid_dagster.plugin.builders import builds
from squid_dagster.plugin.failures import run_tick
from squid_dagster.plugin.names import CRON_SCHEDULE, START_JOB
from squid_dagster.plugin.resource import SquidResource, Workflows
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.runtime.adapters import definitions
from squid_dagster.runtime.commands.signals import Receipt
from squid_dagster.workflow.cron.triggers import Cron
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.registry import Registry

# A daemon whose clock is a little ahead of the database's ticks before the window is due there. The tick's own time
# counts then; further ahead the database's clock decides, as everywhere.
CLOCK_LEAD = timedelta(minutes=1)
_LISTED = 20  # runs that the text of a tick names


@builds
def build_cron_schedules(
    *,
    workflows: Workflows,
    job: dg.JobDefinition | None = None,
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.RUNNING,
) -> list[dg.ScheduleDefinition]:
    """Build one schedule, `squid_cron_<workflow>_<trigger>`, for each cron trigger: same expression, same timezone.

    Of several versions of a workflow the last one given is used, as for every start. Dagster wants a job for every
    schedule: `job`, else the location's `squid_start`; it is never launched by these.

    Raises:
        InvalidWorkflow, WorkflowsNotLoaded: as `Squid`.
        InvalidArgument: two triggers come to the same name in Dagster.
    """
    built: dict[str, tuple[str, dg.ScheduleDefinition]] = {}
    for definition, cron in _crons(workflows):
        name = schedule_name(definition.name, cron.name)
        label = f"trigger {cron.name!r} of workflow {definition.name!r}"
        if name in built:
            raise InvalidArgument(f"{label} and {built[name][0]} are both {name!r} in Dagster: rename one of the two")
        built[name] = label, _schedule(name, definition, cron, workflows, job, default_status)
    return [schedule for _, schedule in built.values()]


def schedule_name(workflow: str, trigger: str) -> str:
    """Return the name of a trigger's schedule; characters that Dagster refuses in names become underscores."""
    return CRON_SCHEDULE.format(
        workflow=re.sub(r"[^A-Za-z0-9_]", "_", workflow), trigger=re.sub(r"[^A-Za-z0-9_]", "_", trigger)
    )


def _crons(workflows: Workflows) -> Iterator[tuple[Definition, Cron]]:
    registry = Registry(definitions(list(workflows)) if workflows else ())
    for definition in registry:
        if registry.current(definition.name) is definition:
            yield from ((definition, trigger) for trigger in definition.triggers.values() if isinstance(trigger, Cron))


def _schedule(
    name: str,
    definition: Definition,
    cron: Cron,
    workflows: Workflows,
    job: dg.JobDefinition | None,
    default_status: dg.DefaultScheduleStatus,
) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=name,
        job=job,
        job_name=START_JOB if job is None else None,
        cron_schedule=cron.expression,
        execution_timezone=cron.timezone,
        default_status=default_status,
        description=f"Starts workflow {definition.name!r} by its trigger {cron.name!r}, once for each window.",
    )
    def tick(context: dg.ScheduleEvaluationContext, squid: SquidResource) -> dg.SkipReason:
        def start_due() -> dg.SkipReason:
            app = squid.squid_for(workflows)
            at = due_time(context.scheduled_execution_time, app.runtime.now())
            receipts = app.start_due_crons(at, only=(definition.name, cron.name))
            text = summary(receipts, app.runtime.queries.schedule_cursor(definition.name, cron.name).reached)
            context.log.info(text)
            return dg.SkipReason(text)

        return run_tick(start_due)  # a skip while the database is away is a missed tick

    return tick


def due_time(scheduled: datetime, now: datetime) -> datetime:
    """Return the time by which windows are due: the database's, or the tick's own if that is slightly later."""
    return scheduled if now < scheduled <= now + CLOCK_LEAD else now


def summary(receipts: Sequence[Receipt], latest: datetime | None) -> str:
    """Describe in one line what a tick has started."""
    new = [receipt.run_id for receipt in receipts if not receipt.repeated]
    window = "no window has been started yet" if latest is None else f"the latest window began at {when(latest)}"
    if not new:
        return f"Nothing was due: {window}."
    rest = f" and {len(new) - _LISTED} more" if len(new) > _LISTED else ""
    return f"Started {len(new)} run{'s' * (len(new) > 1)}, {window}: {', '.join(new[:_LISTED])}{rest}."
