"""`make demo`: Dagster's daemon drives the example workflows; one of its run workers is killed in the middle of a step.

It runs on an embedded Postgres and a Dagster in a directory of their own, which is removed afterwards. The report at
the end is made of the facts in the journal, and of what the steps did outside of it.
"""

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from examples import MODULES, ledger
from examples.demo_location import LEASE_SECONDS
from examples.demo_report import say, tell, verdict
from examples.dev import USUAL_PORT
from examples.prepare import prepare
from examples.stack import Stack, StackError
from squid_dagster import Squid, load_workflows
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.embedded import EmbeddedPostgres

PATIENCE_SECONDS = 150.0
_RUNS = "{runsOrError(limit: 100) {... on Runs {results {runId jobName status}}}}"


def start_runs(squid: Squid) -> str:
    """Start runs of every workflow. Return the one whose run worker will be killed."""
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


def decide(squid: Squid, decided: set[str]) -> None:
    """Decide as the reviewer: approve, but reject amounts above 800."""
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


def kill_holder(squid: Squid, book: Path, run_id: str) -> bool:
    """Kill the run worker that is in the middle of the long step, once it has begun."""
    for key, pid in ledger.callers(book):
        if key == f"{run_id}:summarise:1":
            os.kill(pid, signal.SIGKILL)
            say(f"==> SIGKILL for run worker {pid}, in the middle of a step; its lease runs out in {LEASE_SECONDS:g} s")
            say(f"    {squid.explain_run(run_id).summary}")
            return True
    return False


class RunningDemo:
    """The state of the demo: what was decided and shown, and whether the run worker was killed."""

    def __init__(self, squid: Squid, book: Path) -> None:
        """Set the facade and the ledger's path."""
        self._squid, self._book = squid, book
        self._decided: set[str] = set()
        self._shown = ""
        self._ends = time.monotonic() + PATIENCE_SECONDS
        self.killed = False

    def watch(self, hit: str) -> None:
        """Wait until no run is open, or for `PATIENCE_SECONDS`. Meanwhile decide, kill and show."""
        while self._squid.list_runs(open_only=True, limit=1).runs and time.monotonic() < self._ends:
            self.killed = self.killed or kill_holder(self._squid, self._book, hit)
            decide(self._squid, self._decided)
            statuses = Counter(run.status for run in self._squid.list_runs(limit=500).runs)
            shown = ", ".join(f"{number} {status}" for status, number in sorted(statuses.items()))
            if shown != self._shown:
                self._shown = shown
                say(f"    {shown}")
            time.sleep(0.1)


def play(squid: Squid, stack: Stack, book: Path) -> bool:
    """Start runs and Dagster, kill a run worker, wait for the end. Return whether it went as expected."""
    say("==> starting runs: payments with approval, fan-out and join, a nightly cron, a saga, child runs")
    hit = start_runs(squid)
    say("==> starting Dagster: code location, daemon and webserver")
    stack.start()
    say(f"    at {stack.address}; its sensor looks for work and launches runs that drain the queue")
    running = RunningDemo(squid, book)
    running.watch(hit)
    runs: list[dict[str, Any]] = stack.ask(_RUNS)["runsOrError"]["results"]
    stack.stop("daemon")  # its schedule may have started another run just now
    running.watch(hit)
    say("==> stopping Dagster; what it did:")
    stack.stop()
    for (job, status), number in sorted(Counter((run["jobName"], run["status"]) for run in runs).items()):
        say(f"    {number} x {job} {status.lower()}")
    say("==> reading it back")
    tell(squid, hit)
    failed = [run["jobName"] for run in runs if run["status"] == "FAILURE"]
    return running.killed and failed in ([], ["squid_dispatch"])  # Dagster may not have noticed the kill


def main() -> int:
    """Run the demo. Return 0 when all is well."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all `finally` blocks run
    with tempfile.TemporaryDirectory(prefix="squid-demo-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        say("==> starting an embedded Postgres")
        server = EmbeddedPostgres(Path(folder) / "postgres")
        try:
            return run_in(Path(folder), server.ensure_running())
        except StackError as error:
            say(f"DEMO FAILED: {error}")
            return 1
        finally:
            server.stop()


def run_in(folder: Path, url: str) -> int:
    """Run the demo in a folder, on an empty database. Return 0 when all is well."""
    book = folder / "ledger.db"
    journal = PostgresStorage(url)
    journal.upgrade()
    prepare(journal)
    environment = {"SQUID_DATABASE_URL": url, "SQUID_SCHEMA": "", ledger.LEDGER: str(book)}
    stack = Stack(folder / "dagster", "examples.demo_location", environment)
    workflows = load_workflows(list(MODULES))
    with closing(journal), closing(stack), Squid(journal, workflows, lease=timedelta(seconds=LEASE_SECONDS)) as squid:
        well = play(squid, stack, book)
        say(f"\n    `make dev` shows these workflows in Dagster's UI, at http://127.0.0.1:{USUAL_PORT}\n")
        return verdict(squid, journal, book, well)


if __name__ == "__main__":
    sys.exit(main())
