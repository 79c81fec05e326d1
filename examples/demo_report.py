"""The report of `make demo`: made of the facts in the journal, and of what the steps did outside of it."""

import sys
from collections import Counter
from pathlib import Path

from examples import ledger
from squid_dagster import Squid
from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.protocol import AttemptClaimed, RunnableApplied
from squid_dagster.protocol.folds.run_unit import RunUnit

# Steps that act on the ledger whenever they succeed.
ACTING = frozenset({"summarise", "publish", "report", "book_flight", "book_hotel", "book_car", "send", "write_off"})


def say(text: str = "") -> None:
    """Print a line without buffering."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def tell(squid: Squid, hit: str) -> None:
    """Show all runs, the timeline of the one whose worker was killed, and how the one that failed was undone."""
    page = squid.list_runs(limit=500).runs
    say(f"    {'run':<38}{'workflow':<18}{'status':<12}{'seconds':>8}")
    for run in reversed(page):
        seconds = (run.ended_at - run.started_at).total_seconds() if run.ended_at and run.started_at else 0.0
        say(f"    {run.run_id:<38}{run.workflow:<18}{run.status:<12}{seconds:>8.2f}")

    say(f"\n    the run that was hit, {hit}:")
    say(f"    {squid.explain_run(hit).summary}")
    for event in squid.inspect_run_timeline(hit):
        say(f"    {event.at:%H:%M:%S.%f}  {event.summary}")

    for run in (run for run in page if run.status == "failed"):
        say(f"\n    {run.workflow} {run.run_id} failed on purpose, and what it had done was undone:")
        for event in squid.inspect_run_timeline(run.run_id):
            if event.kind == "runnable_applied" and ":compensate:" in str(event.details):
                say(f"      {event.at:%H:%M:%S.%f}  {event.summary}")


def verdict(squid: Squid, journal: PostgresStorage, book: Path, well: bool) -> int:
    """Compare facts with side effects and print the last line. Return 0 when all is well."""
    run_ids = [run.run_id for run in squid.list_runs(limit=500).runs]
    entries = journal.read_between(0, journal.cut())
    claims = Counter(e.fact.runnable_key for e in entries if isinstance(e.fact, AttemptClaimed))
    redelivered = sum(number > 1 for number in claims.values())
    units = {run_id: RunUnit.fold(journal.read_run(run_id)) for run_id in run_ids}
    completed = sum(unit.run.terminal_status == "completed" for unit in units.values())
    lost = sum(not unit.run.terminal for unit in units.values())
    applied = [e.fact for e in entries if isinstance(e.fact, RunnableApplied)]
    doubled = len(applied) - len({fact.runnable_key for fact in applied})

    _, effects = ledger.read(book)
    succeeded = [f for f in applied if (f.transition or {}).get("on") != "error"]
    done = {f.runnable_key.rpartition(":")[0] for f in succeeded if f.runnable_key.split(":")[1] in ACTING}
    lost += len(done - set(effects))
    doubled += sum(number - 1 for number in effects.values())
    booked = Counter(str(row[0]) for row in journal.rows("SELECT key FROM public.demo_bookings"))
    bookings = {f.runnable_key.rpartition(":")[0] for f in succeeded if f.runnable_key.split(":")[1] == "book"}
    lost += len(bookings - set(booked))
    doubled += sum(booked.values()) - len(bookings)

    anomalies = len(squid.runtime.queries.anomalies(None, 1000)) + len(verify(journal))
    # One trip fails on purpose.
    well = well and not lost and not doubled and not anomalies and redelivered > 0 and completed == len(run_ids) - 1
    say(
        f"{'DEMO OK' if well else 'DEMO FAILED'}: runs={len(run_ids)} completed={completed} "
        f"redelivered={redelivered} lost={lost} doubled={doubled} anomalies={anomalies}"
    )
    return 0 if well else 1
