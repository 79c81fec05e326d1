"""`make demo`: several processes write one journal; one is killed, the views are dropped and rebuilt under the others.

Everything happens on an embedded Postgres in a directory of its own, which is gone afterwards.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from psycopg import sql

from examples.payments import QUEUE, STEPS
from squid_dagster.journal import PostgresStorage, rebuild_views, verify
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.postgres.connection import borrow
from squid_dagster.journal.postgres.schema import VIEWS
from squid_dagster.protocol import AttemptClaimed, Entry, RunnableApplied, dispatch_thread, run_thread

WORKERS, SECONDS = 4, 6.0


def say(text: str = "") -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def facts_written(storage: PostgresStorage) -> int:
    """Count entries, roughly: the last position that is sure."""
    return storage.cut()


def watch(storage: PostgresStorage, until: Callable[[], bool], what: str) -> None:
    """Show progress until a condition holds."""
    while not until():
        say(f"    {facts_written(storage):>7,} facts   {what}")
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline and not until():
            time.sleep(0.02)


def kill_while_holding(storage: PostgresStorage, worker: subprocess.Popen[bytes], name: str) -> int:
    """Kill a worker at a moment when it holds claims; return how many."""
    while True:
        worker.send_signal(signal.SIGSTOP)
        held = storage.rows("SELECT FROM {schema}.attempts WHERE status = 'claimed' AND owner_id = %s", name)
        if held:
            worker.kill()
            return len(held)
        worker.send_signal(signal.SIGCONT)


def drop_views(storage: PostgresStorage) -> None:
    """Throw the live views away."""
    with borrow(storage.engine) as connection:
        for view in VIEWS:
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier("demo", view)))


def main() -> int:
    """Run the demo; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="squid-demo-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        say("==> starting an embedded Postgres")
        server = EmbeddedPostgres(Path(directory) / "postgres")
        storage = PostgresStorage(server.ensure_running(), "demo")
        workers: list[subprocess.Popen[bytes]] = []
        try:
            storage.upgrade()
            return show(storage, server.ensure_running(), workers)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
            storage.close()
            server.stop()


def show(storage: PostgresStorage, url: str, workers: list[subprocess.Popen[bytes]]) -> int:
    """Let workers write, kill one, drop and rebuild the views, then read everything back."""
    say(
        f"==> {WORKERS} processes write one journal: they start runs of {len(STEPS)} steps, claim attempts, settle them"
    )
    for number in range(WORKERS):
        command = [sys.executable, "-m", "examples.payments", url, "demo", f"worker-{number}", str(SECONDS)]
        workers.append(subprocess.Popen(command))
    watch(storage, lambda: facts_written(storage) > 2_000, "working")

    held = kill_while_holding(storage, workers[0], "worker-0")
    say(f"==> SIGKILL for worker-0, which holds {held} claims; their leases run out in 2 s, and others take over")
    mark = facts_written(storage)
    watch(storage, lambda: facts_written(storage) > mark + 1_000, "the others go on")

    say("==> DROP TABLE for all live views; appends are refused until they are back, and lose nothing")
    drop_views(storage)
    began = time.perf_counter()
    rebuilt = rebuild_views(storage)
    say(f"    rebuilt from {rebuilt.entries:,} facts of {rebuilt.runs:,} runs in {time.perf_counter() - began:.2f} s")
    say("==> rebuild once more, with the writers at work")
    rebuilt = rebuild_views(storage)
    say(f"    rebuilt from {rebuilt.entries:,} facts; {rebuilt.tail_runs} runs went on meanwhile and were folded last")
    watch(storage, lambda: all(worker.poll() is not None for worker in workers), "draining the queue")

    failed = [worker.returncode for worker in workers[1:] if worker.returncode != 0]
    say("==> reading it back")
    return report(storage, failed)


def told(entry: Entry) -> str:
    """Tell a fact in one line: its type, and the field that says most."""
    fact = entry.fact
    details = ("step", "owner_id", "result", "status", "signal_type", "workflow")
    shown = next((f"{name}={getattr(fact, name)}" for name in details if getattr(fact, name, None)), "")
    return f"{fact.occurred_at:%H:%M:%S.%f}  {fact.type:<20} {shown}"


def report(storage: PostgresStorage, failed: list[int]) -> int:
    """Tell from the facts alone what happened, and whether all is well."""
    entries = storage.read_between(0, storage.cut())
    types = Counter(entry.fact.type for entry in entries)
    for name, number in types.most_common():
        say(f"    {number:>7,}  {name}")
    claims = Counter(e.fact.runnable_key for e in entries if isinstance(e.fact, AttemptClaimed))
    again = [key for key, number in claims.items() if number > 1]
    redelivered = again[0].split(":")[0] if again else "worker-1-0"
    say(f"\n    the thread {run_thread(redelivered)} and its attempts on {dispatch_thread(QUEUE)}:")
    for entry in storage.read_run(redelivered):
        say(f"    {entry.position:>7}  {entry.thread.split(':')[1]:<11} {entry.seq:>5}  {told(entry)}")

    statuses: Counter[str] = Counter(dict(storage.rows("SELECT status, count(*) FROM {schema}.runs GROUP BY status")))
    runs, completed = sum(statuses.values()), statuses["completed"]
    applied = Counter((e.fact.runnable_key) for e in entries if isinstance(e.fact, RunnableApplied))
    lost = runs * len(STEPS) - len(applied)
    doubled = sum(number - 1 for number in applied.values())
    findings = verify(storage)
    well = not (lost or doubled or findings or failed) and runs == completed
    say(
        f"\n{'DEMO OK' if well else 'DEMO FAILED'}: facts={len(entries)} runs={runs} completed={completed} "
        f"redelivered={len(again)} lost={lost} doubled={doubled} findings={len(findings)}"
    )
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
