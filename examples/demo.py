"""`make demo`: three worker processes run the example workflows; one is killed in the middle of a step.

Everything happens on an embedded Postgres in a directory of its own, which is gone afterwards. What is told at the end
comes from the facts in the journal, and from what the steps did outside of it.
"""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

from examples import digest, ledger, nightly, orders, payment_recovery, trip
from squid_dagster import Squid, load_workflows
from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.protocol import AttemptClaimed, RunnableApplied
from squid_dagster.protocol.unit import RunUnit

WORKERS = 3
LEASE = timedelta(seconds=2)
PATIENCE = 110  # seconds
# Steps that act on the ledger whenever they succeed.
ACTING = frozenset({"summarise", "publish", "report", "book_flight", "book_hotel", "book_car", "send", "write_off"})


def say(text: str = "") -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def open_squid(url: str) -> Squid:
    """Open the demo's journal with all example workflows."""
    modules = [payment_recovery, digest, nightly, trip, orders]
    return Squid.connect(url, load_workflows(modules), lease=LEASE)


def work(url: str, number: int) -> int:
    """Be a worker until SIGTERM comes."""
    logging.basicConfig(level=logging.ERROR)
    with open_squid(url) as squid:
        say(f"    {squid.worker(concurrency=4, worker_id=f'worker-{number}', housekeeping=timedelta(seconds=5))}")
    return 0


def start_runs(squid: Squid) -> str:
    """Start runs of every workflow; give the one whose worker will be killed."""
    amounts = [90, 120, 250, 640, 910]
    payments = [{"account_id": f"acct-{amount}", "amount": amount} for amount in amounts]
    squid.start_many("payment_recovery", payments, actor="demo")
    squid.start_many("digest", [{"title": title} for title in ("Squid", "Ink", "Reef", "Tide", "Kelp")])
    squid.start_many("trip", [{"traveller": "Ada"}, {"traveller": "Bob", "car": False}, {"traveller": "Cleo"}])
    squid.start_many("order", [{"order_id": "o-1", "parcels": 3}, {"order_id": "o-2", "parcels": 2}])
    last_night = {"start_at": "2026-11-16T01:00:00+00:00", "end_at": "2026-11-17T01:00:00+00:00"}
    first = squid.start_cron("nightly_report", "nightly", intended_window=last_night)
    again = squid.start_cron("nightly_report", "nightly", intended_window=last_night)
    say(f"    the nightly window was asked for twice, and started {1 if again.run_id == first.run_id else 2} run")
    return squid.start("digest", {"title": "The long one", "seconds": 3}, priority=5).run_id


def ended(squid: Squid) -> bool:
    """Tell whether no run is open any more."""
    return not squid.list_runs(open_only=True, limit=1).runs


def decide(squid: Squid, decided: set[str]) -> None:
    """Be the person who reviews: approve, and reject what is too much."""
    for run in squid.list_runs(status="paused").runs:
        amount = squid.inspect_run(run.run_id).input["amount"]
        key = f"review-{run.run_id}"
        if amount > 800:
            squid.reject(run.run_id, actor="grace", comment="not worth it", idempotency_key=key)
        else:
            squid.approve(run.run_id, actor="grace", idempotency_key=key)
        if run.run_id not in decided:
            say(f"    grace {'rejected' if amount > 800 else 'approved'} {run.run_id}")
        decided.add(run.run_id)


def kill_holder(squid: Squid, book: Path, run_id: str, workers: list[subprocess.Popen[bytes]]) -> bool:
    """Kill the worker that is in the middle of the long step, once it has begun."""
    for key, pid in ledger.callers(book):
        if key == f"{run_id}:summarise:1":
            os.kill(pid, signal.SIGKILL)
            number = next(i for i, worker in enumerate(workers) if worker.pid == pid)
            say(f"==> SIGKILL for worker-{number}, in the middle of a step; its lease runs out in {LEASE.seconds} s")
            say(f"    {squid.explain_run(run_id).summary}")
            return True
    return False


def main() -> int:
    """Run the demo; 0 when all is well."""
    with tempfile.TemporaryDirectory(prefix="squid-demo-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        book = Path(folder) / "ledger.db"
        os.environ[ledger.LEDGER] = str(book)
        say("==> starting an embedded Postgres")
        server = EmbeddedPostgres(Path(folder) / "postgres")
        url = server.ensure_running()
        os.environ["SQUID_AUTO_MIGRATE"] = "1"
        try:
            with open_squid(url) as squid:
                return play(squid, url, book)
        finally:
            server.stop()


def play(squid: Squid, url: str, book: Path) -> int:
    """Start runs and workers, kill one of these, wait for the end, and tell."""
    journal = squid.journal
    assert isinstance(journal, PostgresStorage)
    with journal.connection() as connection:
        connection.execute("CREATE TABLE public.demo_bookings (key text, amount integer)")
    say("==> starting runs: payments with approval, fan-out and join, a nightly cron, a saga, child runs")
    hit = start_runs(squid)
    say(f"==> starting {WORKERS} workers")
    command = [sys.executable, "-m", "examples.demo", "worker", url]
    workers = [subprocess.Popen([*command, str(number)]) for number in range(WORKERS)]
    began, shown, killed = time.monotonic(), 0.0, False
    decided: set[str] = set()
    try:
        while not ended(squid) and time.monotonic() - began < PATIENCE:
            killed = killed or kill_holder(squid, book, hit, workers)
            decide(squid, decided)
            if time.monotonic() - shown > 1:
                shown = time.monotonic()
                statuses = Counter(run.status for run in squid.list_runs(limit=500).runs)
                say("    " + ", ".join(f"{number} {status}" for status, number in sorted(statuses.items())))
            time.sleep(0.05)
    finally:
        say("==> SIGTERM for the others")
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        codes = [worker.wait(60) for worker in workers]
    well = killed and sorted(codes) == [-signal.SIGKILL, 0, 0]
    say("==> reading it back")
    squid.recover()
    return report(squid, journal, book, hit, well)


def report(squid: Squid, journal: PostgresStorage, book: Path, hit: str, well: bool) -> int:
    """Tell from facts and side effects what happened, and whether all is well."""
    page = squid.list_runs(limit=500).runs
    say(f"    {'run':<38}{'workflow':<18}{'status':<12}{'seconds':>8}")
    for run in reversed(page):
        seconds = (run.ended_at - run.started_at).total_seconds() if run.ended_at and run.started_at else 0.0
        say(f"    {run.run_id:<38}{run.workflow:<18}{run.status:<12}{seconds:>8.2f}")

    say(f"\n    the run that was hit, {hit}:")
    say(f"    {squid.explain_run(hit).summary}")
    for event in squid.inspect_run_timeline(hit):
        say(f"    {event.at:%H:%M:%S.%f}  {event.summary}")

    undone = [run for run in page if run.status == "failed"]
    for run in undone:
        say(f"\n    {run.workflow} {run.run_id} failed on purpose, and what it had done was undone:")
        for event in squid.inspect_run_timeline(run.run_id):
            if event.kind == "runnable_applied" and ":compensate:" in str(event.details):
                say(f"      {event.at:%H:%M:%S.%f}  {event.summary}")
    return verdict(squid, journal, book, [run.run_id for run in page], well and len(undone) == 1)


def verdict(squid: Squid, journal: PostgresStorage, book: Path, run_ids: list[str], well: bool) -> int:
    """Compare facts with side effects and print the last line."""
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
    well = well and not lost and not doubled and not anomalies and redelivered > 0 and completed == len(run_ids) - 1
    say(
        f"\n{'DEMO OK' if well else 'DEMO FAILED'}: runs={len(run_ids)} completed={completed} "
        f"redelivered={redelivered} lost={lost} doubled={doubled} anomalies={anomalies}"
    )
    return 0 if well else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        sys.exit(work(sys.argv[2], int(sys.argv[3])))
    sys.exit(main())
