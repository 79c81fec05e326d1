"""Processes that give the same commands at once: `python -m tests.runtime.commands.command_processes URL SCHEMA RUNS`.

A process prints `ready`, waits until the test releases an advisory lock, and prints one line for each receipt.
"""

import json
import sys
from collections.abc import Callable

import psycopg

from squid_dagster import Receipt
from squid_dagster.api import Squid
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.workflow import Cron, Workflow
from tests.journal.access import plain_url

START_LOCK = 20_260_101
WINDOW = {"start_at": "2026-01-01T00:00:00Z", "end_at": "2026-01-02T00:00:00Z"}


def review() -> Workflow:
    """Build the workflow that all processes know."""
    wf = Workflow("review", triggers=[Cron("0 0 * * *", name="nightly")])
    wf.approval("ask")
    wf.step(name="act")(lambda: None)
    wf.route("ask", to="act")
    wf.route("ask", on="error", to="fail")
    wf.route("act", to="complete")
    return wf


def commands(squid: Squid, runs: dict[str, str]) -> dict[str, Callable[[], Receipt]]:
    """Return the commands that every process gives, with the same keys."""
    return {
        "start": lambda: squid.start("review", idempotency_key="k"),
        "approve": lambda: squid.approve(runs["approve"], actor="ada", idempotency_key="k"),
        "reject": lambda: squid.reject(runs["reject"], actor="ada", idempotency_key="k"),
        "cancel": lambda: squid.cancel(runs["cancel"], cascade=True, idempotency_key="k"),
        "replay": lambda: squid.replay(runs["replay"], idempotency_key="k"),
        "cron": lambda: squid.start_cron("review", "nightly", intended_window=WINDOW),
        "signal": lambda: squid.start_cron("review", "nightly", signal_id="tick-1"),
    }


def main() -> None:
    """Wait for the lock, then give all commands."""
    url, schema, runs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    with Squid(PostgresStorage(url, schema), review()) as squid, psycopg.connect(plain_url(url)) as connection:
        squid.journal.revision("squid:run:warm-up")
        print("ready", flush=True)
        connection.execute("SELECT pg_advisory_lock_shared(%s)", (START_LOCK,))
        for name, command in commands(squid, runs).items():
            receipt = command()
            said = [name, receipt.run_id, receipt.received_at.isoformat(), receipt.repeated]
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
