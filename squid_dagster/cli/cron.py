"""`squid cron`: the cron triggers of workflows, and when they start something next."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from squid_dagster.cli.place import Place, with_workflows
from squid_dagster.cli.run.options import time_option
from squid_dagster.cli.run.session import Looking, looking, need_modules
from squid_dagster.cli.terminal.output import emit, table

if TYPE_CHECKING:
    from squid_dagster.workflow.cron.triggers import Cron
    from squid_dagster.workflow.registry import Registry

_MOST_DUE = 1000  # windows that are counted as due: a start takes no more at a time
_FAR = datetime(9979, 12, 31, tzinfo=UTC)  # the calendar ends soon after


@click.group()
def cron() -> None:
    """Cron triggers, and what they start next."""


@cron.command("list")
@with_workflows
def list_(place: Place, as_json: bool) -> None:
    """List cron triggers: when they fire, the window that was started last, how many are due, and the next one."""
    need_modules(place, "cron list")
    with looking(place) as journal:
        now = journal.storage.now()
        found = [_trigger_facts(journal, now, workflow, each) for workflow, each in _triggers(journal.registry)]
    headings = ("workflow", "trigger", "schedule", "timezone", "last window", "due", "next", "next, local")
    names = ("workflow", "trigger", "expression", "timezone", "last_window_start_at", "due", "next_at", "next_local")
    rows = [[each[name] for name in names] for each in found]
    shown = table(headings, rows, first_to_go=("last window", "next, local", "timezone")) if rows else _none(place)
    emit(as_json, {"triggers": found}, shown)


def _trigger_facts(journal: Looking, now: datetime, workflow: str, trigger: "Cron") -> dict[str, Any]:
    """Give a trigger as JSON values, always with the same keys."""
    from squid_dagster.runtime.commands.cron_starts import windows_due
    from squid_dagster.workflow.cron.windows import next_fire

    cursor = journal.sides.queries.schedule_cursor(workflow, trigger.name)
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
    windows = sorted(window for workflow, each in triggers for window in _windows(workflow, each, begin, count))
    found = [
        {
            "start_at": each.start_at.isoformat(),
            "end_at": each.end_at.isoformat(),
            "workflow": each.workflow,
            "trigger": each.trigger,
            "timezone": each.timezone,
            "local_start": each.local_start,
        }
        for each in windows[:count]
    ]
    rows = [(each.start_at, each.local_start, each.workflow, each.trigger, each.timezone) for each in windows[:count]]
    headings = ("at (UTC)", "local", "workflow", "trigger", "timezone")
    emit(as_json, {"windows": found}, table(headings, rows, first_to_go=("timezone",)) if rows else _none(place))


class _Upcoming(NamedTuple):
    """A window that is yet to come; sorted by its beginning."""

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
    """Give the cron triggers of all workflows, in the version that new runs have."""
    from squid_dagster.workflow.cron.triggers import Cron

    for definition in registry or ():
        if registry is not None and registry.current(definition.name) is definition:
            for each in definition.triggers.values():
                if isinstance(each, Cron):
                    yield definition.name, each


def _none(place: Place) -> str:
    return f"no cron triggers in {', '.join(place.modules)}"
