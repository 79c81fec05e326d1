"""`squid cron`: the cron triggers of workflows, and the windows that they start next."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from squid_dagster.cli.place import Place, with_workflows
from squid_dagster.cli.run.options import time_option
from squid_dagster.cli.run.session import need_modules, open_squid
from squid_dagster.cli.terminal.output import emit, table

if TYPE_CHECKING:
    from squid_dagster.api import Squid
    from squid_dagster.workflow.cron.triggers import Cron
    from squid_dagster.workflow.registry import Registry

_MOST_DUE = 1000  # due windows that are counted: a start takes no more at a time
_FAR = datetime(9979, 12, 31, tzinfo=UTC)  # near the end of the calendar


@click.group()
def cron() -> None:
    """List cron triggers, and what they start next."""


@cron.command("list")
@with_workflows
def list_(place: Place, as_json: bool) -> None:
    """List cron triggers: when they fire, the window that was started last, how many are due, and the next one."""
    need_modules(place, "cron list")
    with open_squid(place) as squid:
        now = squid.journal.now()
        triggers = [
            _trigger_values(squid, now, workflow, trigger) for workflow, trigger in _triggers(squid.runtime.registry)
        ]
    headings = ("workflow", "trigger", "schedule", "timezone", "last window", "due", "next", "next, local")
    names = ("workflow", "trigger", "expression", "timezone", "last_window_start_at", "due", "next_at", "next_local")
    rows = [[trigger[name] for name in names] for trigger in triggers]
    shown = table(headings, rows, first_to_go=("last window", "next, local", "timezone")) if rows else _none(place)
    emit(as_json, {"triggers": triggers}, shown)


def _trigger_values(squid: "Squid", now: datetime, workflow: str, trigger: "Cron") -> dict[str, Any]:
    """Return a trigger as JSON values, always with the same keys."""
    from squid_dagster.runtime.commands.cron_starts import windows_due
    from squid_dagster.workflow.cron.windows import next_fire

    cursor = squid.runtime.queries.schedule_cursor(workflow, trigger.name)
    due = windows_due(trigger, cursor, now, _MOST_DUE)
    following = next_fire(trigger, now)
    return {
        "workflow": workflow,
        "trigger": trigger.name,
        "expression": trigger.expression,
        "timezone": trigger.timezone,
        "catch_up": trigger.catch_up,
        "last_window_start_at": cursor.reached,
        "due": len(due),
        "next_at": following,
        "next_local": following.astimezone(trigger.zone()).isoformat(),
    }


@cron.command("next")
@click.option("--count", type=click.IntRange(1, 10_000), default=10, show_default=True, help="How many windows.")
@click.option(
    "--after", metavar="TIME", callback=time_option, help="After this time instead of now; asks no database then."
)
@with_workflows
def next_(place: Place, as_json: bool, count: int, after: datetime | None) -> None:
    """Show the next windows of all cron triggers, in order."""
    from squid_dagster.runtime.adapters import definitions
    from squid_dagster.workflow.registry import Registry

    need_modules(place, "cron next")
    triggers = list(_triggers(Registry(definitions(place.workflows()))))
    if after is None:
        with place.storage() as storage:
            after = storage.now()
    begin = after
    windows = sorted(window for name, trigger in triggers for window in _windows(name, trigger, begin, count))[:count]
    values = [
        {
            "start_at": window.start_at.isoformat(),
            "end_at": window.end_at.isoformat(),
            "workflow": window.workflow,
            "trigger": window.trigger,
            "timezone": window.timezone,
            "local_start": window.local_start,
        }
        for window in windows
    ]
    rows = [(row.start_at, row.local_start, row.workflow, row.trigger, row.timezone) for row in windows]
    headings = ("at (UTC)", "local", "workflow", "trigger", "timezone")
    emit(as_json, {"windows": values}, table(headings, rows, first_to_go=("timezone",)) if rows else _none(place))


class _Upcoming(NamedTuple):
    """A future window. Windows sort by their beginning."""

    start_at: datetime
    workflow: str
    trigger: str
    end_at: datetime
    timezone: str
    local_start: str


def _windows(workflow: str, trigger: "Cron", after: datetime, count: int) -> Iterator[_Upcoming]:
    from squid_dagster.workflow.cron.windows import fire_times

    zone = trigger.zone()
    for start_at, end_at in pairwise(fire_times(trigger, after, _FAR, count + 1)):
        local = start_at.astimezone(zone).isoformat()
        yield _Upcoming(start_at, workflow, trigger.name, end_at, trigger.timezone, local)


def _triggers(registry: "Registry | None") -> "Iterator[tuple[str, Cron]]":
    """Yield the cron triggers of all workflows, in the version that new runs have."""
    from squid_dagster.workflow.cron.triggers import Cron

    for definition in registry or ():
        if registry is not None and registry.current(definition.name) is definition:
            crons = (trigger for trigger in definition.triggers.values() if isinstance(trigger, Cron))
            yield from ((definition.name, trigger) for trigger in crons)


def _none(place: Place) -> str:
    return f"no cron triggers in {', '.join(place.modules)}"
