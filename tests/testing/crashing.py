"""A process that starts a run and executes it, and ends for real after the append that it is told."""

import sys

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.testing import InjectedStorage, Plan, execute_until_blocked, exit_process, make_squid
from tests.facts import T0
from tests.testing.flows import review


def main(url: str, schema: str, number: str) -> None:
    """Crash after append `number`, with every append of a commit by itself."""
    journal = PostgresStorage(url, schema, clock=VirtualClock(T0))
    storage = InjectedStorage(journal, Plan(crash_after=int(number), crash=exit_process), atomic_across_threads=False)
    app = make_squid(review(), storage=storage)
    try:
        app.start("review", {"amount": 21})
        print("started", flush=True)
        execute_until_blocked(app, "run-1")
    finally:
        print("finally", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
