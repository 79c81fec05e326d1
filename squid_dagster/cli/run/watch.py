"""`squid run watch`: follow a run until it has ended.

Whether anything was written about the run is one look at an index, a few times a second; the run itself is read only
when something was, or when a time has come that changes how it stands.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

import click

from squid_dagster.cli.app import REFUSED, Refused
from squid_dagster.cli.place import Place, with_workflows
from squid_dagster.cli.run.display import attempts_shown
from squid_dagster.cli.run.options import Seconds
from squid_dagster.cli.run.session import open_squid
from squid_dagster.cli.terminal.output import STATUS_STYLES, console, emit, show
from squid_dagster.cli.terminal.stderr_log import logging_to_stderr
from squid_dagster.cli.terminal.streams import on_terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from squid_dagster.api import Squid
    from squid_dagster.inspection import Explanation, RunSnapshot
    from squid_dagster.journal import PostgresStorage

# journal_entries_run: the last entry of the run, from its end
_LATEST: LiteralString = """SELECT position, clock_timestamp() FROM {schema}.journal_entries WHERE run_id = %s
    ORDER BY position DESC LIMIT 1"""
_POLL_SECONDS = 0.3


class RunState(NamedTuple):
    """How a run stood when it was read."""

    explanation: "Explanation"
    run: "RunSnapshot"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.explanation.reason == "terminal"

    @property
    def state(self) -> tuple[object, ...]:
        """What must differ for a new line: not the times in its sentence, nor a heartbeat."""
        explanation = self.explanation
        attempts = tuple((attempt.runnable_key, attempt.status, attempt.deliveries) for attempt in self.run.attempts)
        return (explanation.status, explanation.reason, explanation.step, attempts)

    @property
    def next_change(self) -> datetime | None:
        """When it stands differently though nothing was written: an attempt becomes due, or a lease runs out."""
        times = [
            self.run.next_visible_at,
            *(attempt.lease_until for attempt in self.run.attempts if attempt.status == "claimed"),
        ]
        return min((at for at in times if at is not None and at > self.run.as_of), default=None)

    def facts(self) -> dict[str, Any]:
        """Return the state as JSON values, always with the same keys."""
        explanation, run = self.explanation, self.run
        return {
            "at": explanation.as_of.isoformat(),
            "run_id": explanation.run_id,
            "workflow": explanation.workflow,
            "status": explanation.status,
            "reason": explanation.reason,
            "step": explanation.step,
            "summary": explanation.summary,
            "terminal": self.ended,
            "revision": run.thread_revisions["run"],
            "attempts": [
                {
                    "step": attempt.step,
                    "attempt_number": attempt.attempt_number,
                    "status": attempt.status,
                    "deliveries": attempt.deliveries,
                    "owner_id": attempt.owner_id,
                }
                for attempt in run.attempts
            ],
        }


@click.command()
@click.argument("run_id")
@click.option("--timeout", type=Seconds(min_open=True), metavar="SECONDS", help="Give up after so long.")
@with_workflows
def watch(place: Place, as_json: bool, run_id: str, timeout: float | None) -> None:
    """Follow RUN_ID until it has ended: exit code 0 if it completed, 1 otherwise.

    On a terminal the picture is kept up to date; elsewhere there is a line, with --json a document, for every change.
    It waits for a database that goes away meanwhile, and goes on after it.
    """
    seen: RunState | None = None
    with open_squid(place) as squid, logging_to_stderr("warning"), _showing(as_json) as show_seen:
        until = None if timeout is None else time.monotonic() + timeout
        for seen in follow(squid, run_id, until):
            show_seen(seen)
    if seen is None or not seen.ended:
        status = "unknown" if seen is None else seen.explanation.status
        raise Refused(f"run {run_id!r} has not ended after {timeout:g} s: it is {status}")
    if seen.explanation.status != "completed":
        click.get_current_context().exit(REFUSED)


def follow(squid: "Squid", run_id: str, until: float | None = None) -> Iterator[RunState]:
    """Yield how a run stands, and again whenever that has changed, until it has ended or the monotonic time is up.

    Raises:
        NotFound, InvalidThread: there is no such run.
        StorageUnavailable, ViewsMissing: the database is away, and was until the time was up.
    """
    from squid_dagster.journal.availability import when_available

    def seconds_left() -> float:
        return math.inf if until is None else until - time.monotonic()

    storage: Any = squid.journal
    read = partial(when_available, what=f"watching run {run_id}", seconds_left=seconds_left)
    last, position = None, -1
    due: datetime | None = None
    while True:
        latest, now = read(lambda: _latest(storage, run_id))
        if latest != position or (due is not None and now >= due):
            position = latest  # read before the run is: whatever comes in between is seen next time
            seen = read(lambda: RunState(squid.explain_run(run_id), squid.inspect_run(run_id)))
            due = seen.next_change
            if last is None or seen.state != last:
                last = seen.state
                yield seen
            if seen.ended:
                return
        if until is not None and time.monotonic() >= until:
            return
        time.sleep(_POLL_SECONDS)


def _latest(storage: "PostgresStorage", run_id: str) -> tuple[int, datetime]:
    rows = storage.rows(_LATEST, run_id)
    return rows[0] if rows else (0, storage.now())


@contextmanager
def _showing(as_json: bool) -> "Iterator[Callable[[RunState], None]]":
    """Yield what shows one state: a picture that is kept up to date on a terminal, a line elsewhere."""
    if as_json or not on_terminal():
        yield lambda seen: emit(as_json, seen.facts(), _line(seen))
        return
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        yield lambda seen: live.update(_picture(seen), refresh=True)


def _line(seen: RunState) -> str:
    explanation = seen.explanation
    return f"{show(explanation.as_of)}  {explanation.status:<11}  {explanation.summary}"


def _picture(seen: RunState) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    explanation = seen.explanation
    head = Text(f"{explanation.workflow or 'unknown workflow'}  {explanation.run_id}  ")
    head.append(explanation.status, style=STATUS_STYLES.get(explanation.status, "bold"))
    parts: list[RenderableType] = [head, Text(explanation.summary), Text()]
    return Group(*parts, attempts_shown(seen.run)) if seen.run.attempts else Group(*parts)
