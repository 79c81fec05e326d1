"""`squid run`: start, list, show and control runs. Each command is loaded when it is called."""

import click

from squid_dagster.cli.app import LazyGroup

_INSPECTION, _CONTROL = "squid_dagster.cli.run.inspection", "squid_dagster.cli.run.control"
_COMMANDS = {
    "start": ("squid_dagster.cli.run.start:start", "Start a run."),
    "list": (f"{_INSPECTION}:list_", "List runs, newest first."),
    "inspect": (f"{_INSPECTION}:inspect", "Show a run, now or as it was."),
    "explain": (f"{_INSPECTION}:explain", "Explain why a run is where it is, and what can be done."),
    "graph": (f"{_INSPECTION}:graph", "Show a run's steps, and which way it went."),
    "timeline": (f"{_INSPECTION}:timeline", "Show what happened to a run, in order."),
    "approve": (f"{_CONTROL}:approve", "Approve what a run waits for, or many runs."),
    "reject": (f"{_CONTROL}:reject", "Reject what a run waits for, or many runs."),
    "resume": (f"{_CONTROL}:resume", "Resume a paused run, or many."),
    "cancel": (f"{_CONTROL}:cancel", "End a run as cancelled, or many."),
    "replay": (f"{_CONTROL}:replay", "Start a run again with the same payload, or many."),
    "watch": ("squid_dagster.cli.run.watch:watch", "Follow a run until it has ended."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def run() -> None:
    """Start, list, show and control runs."""
