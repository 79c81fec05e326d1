"""`squid journal`: follow and verify the facts, and transfer them to another database."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from squid_dagster.cli.app import REFUSED
from squid_dagster.cli.journal.transfer import export, import_
from squid_dagster.cli.place import Place, on_journal
from squid_dagster.cli.run.options import Seconds
from squid_dagster.cli.terminal.output import emit, progress, say, table
from squid_dagster.cli.terminal.stderr_log import logging_to_stderr

if TYPE_CHECKING:
    from squid_dagster.journal import PostgresStorage
    from squid_dagster.protocol.entries import Entry

_PAGE = 1_000


@click.group()
def journal() -> None:
    """Follow, verify, export and import the facts."""


journal.add_command(export)
journal.add_command(import_)


@journal.command()
@click.option(
    "-n", "--lines", type=click.IntRange(0, 10_000), default=20, show_default=True, help="How many facts to show."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes in, until interrupted.")
@click.option("--run", "run_id", metavar="RUN_ID", help="Facts of this run alone, from all threads.")
@click.option("--thread", metavar="THREAD", help="Facts of this thread alone, such as squid:dispatch:default.")
@click.option("--type", "type_name", metavar="TYPE", help="Facts of this type alone, among the last 100,000.")
@click.option("--poll", type=Seconds(0.05, 60), default=0.5, show_default=True, help="Seconds between two looks.")
@on_journal
def tail(
    lines: int,
    follow: bool,
    run_id: str | None,
    thread: str | None,
    type_name: str | None,
    poll: float,
    place: Place,
    as_json: bool,
) -> None:
    """Show the newest facts, oldest first; with --follow also those that come in, each once.

    With --json, one line for each fact. Once it follows, it waits for a database that goes away, and goes on after it.
    """
    from squid_dagster.journal.postgres.newest_entries import newest
    from squid_dagster.protocol.threads import check_part, parse_thread

    if run_id is not None:
        check_part(run_id, "run id")
    if thread is not None:
        parse_thread(thread)
    with place.storage() as storage:
        cut = storage.cut()
        wanted = {"run_id": run_id, "thread": thread, "type_name": type_name}
        entries = newest(storage, cut, max(1, lines), **wanted)
        if not entries and not follow:
            _refuse_unknown(storage, **wanted)
            if not as_json:
                say("no facts")
        for entry in entries[-lines:] if lines else ():
            _show(entry, as_json)
        if not follow:
            return
        with logging_to_stderr("warning"):
            for entry in _following(storage, cut, lambda: Event().wait(poll)):
                if _fits(entry, **wanted):
                    _show(entry, as_json)


def _following(storage: "PostgresStorage", cut: int, wait: Callable[[], object]) -> "Iterator[Entry]":
    """Yield every entry after a cut, once, as they come in; wait while the database is away."""
    from squid_dagster.journal.availability import when_available

    read = partial(when_available, what="following the journal", seconds_left=lambda: math.inf)
    while True:
        upto = read(partial(storage.cut, cut))
        while page := read(partial(storage.read_between, cut, upto, _PAGE)):
            yield from page
            cut = page[-1].position
        cut = upto
        wait()


def _fits(entry: "Entry", *, run_id: str | None, thread: str | None, type_name: str | None) -> bool:
    from squid_dagster.protocol.entries import run_of

    return (
        run_id in (None, run_of(entry.fact)) and thread in (None, entry.thread) and type_name in (None, entry.fact.type)
    )


def _refuse_unknown(
    storage: "PostgresStorage", *, run_id: str | None, thread: str | None, type_name: str | None
) -> None:
    """Raise if a name that no facts were found for does not exist."""
    from squid_dagster.protocol.errors import NotFound
    from squid_dagster.protocol.facts import FACT_TYPES

    if type_name is not None and type_name not in FACT_TYPES:
        known = ", ".join(sorted(FACT_TYPES))
        raise click.BadParameter(f"{type_name!r} is no type of facts: take one of {known}", param_hint="--type")
    if run_id is not None and not storage.read_run(run_id):
        raise NotFound(f"there is no run {run_id!r}: find it with `squid run list`")
    if thread is not None and not storage.revision(thread):
        raise NotFound(f"thread {thread!r} has no facts")


def _show(entry: "Entry", as_json: bool) -> None:
    from squid_dagster.inspection.display import when
    from squid_dagster.protocol.entries import run_of

    if as_json:
        emit(True, _entry_values(entry))
        return
    place = f"{entry.thread}#{entry.seq}"
    run = f"  {run_of(entry.fact)}" if run_of(entry.fact) is not None and "run:" not in entry.thread else ""
    emit(False, None, f"{entry.position:>8}  {when(entry.fact.occurred_at)}  {entry.fact.type:<24}  {place}{run}")


def _entry_values(entry: "Entry") -> dict[str, Any]:
    """Return an entry as JSON, redacted; of one that cannot be read, the reason and no data."""
    from squid_dagster.inspection.run_record import make_record
    from squid_dagster.inspection.snapshot.parts import view_entry
    from squid_dagster.protocol.entries import run_of

    view = view_entry(entry, make_record("", ()))
    return {
        "position": entry.position,
        "thread": entry.thread,
        "seq": entry.seq,
        "type": entry.fact.type,
        "run_id": run_of(entry.fact),
        "occurred_at": view["occurred_at"],
        "unreadable": view["unreadable"],
        "data": view["data"],
    }


@journal.command()
@on_journal
def verify(place: Place, as_json: bool) -> int:
    """Check every entry, thread and row of the views. Exit code 1 if anything is wrong."""
    from squid_dagster.backlog.postgres.rebuild import differences
    from squid_dagster.inspection.display import without_values
    from squid_dagster.journal import verify as discrepancies

    with place.storage() as storage, progress("verifying") as report:
        rows = [
            {
                "kind": row.kind.value,
                "thread": row.thread,
                "seq": row.seq,
                "run_id": row.run_id,
                "detail": without_values(row.detail),
            }
            for row in discrepancies(storage, report)
        ]
        rows += [
            {"kind": "view_differs", "thread": None, "seq": None, "run_id": None, "detail": f"backlog: {difference}"}
            for difference in differences(storage)
        ]
    document = {"healthy": not rows, "findings": rows}
    if not rows:
        emit(as_json, document, "The journal is healthy.")
        return 0
    headings = ("kind", "thread", "seq", "run_id", "detail")
    cells = ([row[name] for name in headings] for row in rows)
    shown = table(headings, cells, first_to_go=("run_id", "seq"))
    emit(
        as_json,
        document,
        shown,
        f"{len(rows)} things are wrong. `squid views rebuild` mends views; facts are for ever.",
    )
    return REFUSED
