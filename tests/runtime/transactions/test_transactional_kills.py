"""A process is killed at a hundred random moments between a step's first write and the answer of the commit."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, verify
from tests.journal.access import raw
from tests.processes import children
from tests.runtime.workers import Nursery, all_done, payment, queue_facts, until

MOMENTS = 100
SIDES = ("credit", "debit")
_LEASE = 1.0


def _kill_in_between(nursery: Nursery, seconds: float) -> bool:
    """Let one process execute an attempt, and kill it so long after its first write; tell whether that was in time."""
    pid = nursery.take()
    nursery.ask()
    os.kill(pid, signal.SIGUSR2)
    until(lambda: nursery.said("wrote", pid), "the first write")
    moment = time.monotonic() + seconds
    while time.monotonic() < moment and not nursery.said("answered", pid):
        time.sleep(0)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), "its end")
    return not nursery.said("answered", pid)


def test_rows_equal_completions_after_a_hundred_kills_between_first_write_and_answer(postgres: PostgresStorage) -> None:
    rng = random.Random(7)
    squid = Squid(postgres, payment)
    with raw(postgres) as connection:
        # nothing in this table keeps a row from being written twice
        connection.execute("CREATE TABLE bookings (run_id text, token int, side text)")
    booked = {"table": f"{postgres.schema}.bookings"}
    runs = [each.run_id for each in squid.start_many("payment", [booked] * (2 * MOMENTS))]
    kills, late, longest = 0, 0, 0.02
    with children() as started:
        nursery = Nursery(postgres, _LEASE)
        started.append(nursery.child)
        for _ in range(3):
            nursery.ask()
        while kills < MOMENTS:
            in_time = _kill_in_between(nursery, rng.uniform(0, longest))
            kills, late = kills + in_time, late + (not in_time)
            # moments are drawn from a window that follows how long the way to the answer takes on this machine
            longest *= 1.1 if in_time else 0.8
    done = {fact.claim_id for fact in queue_facts(postgres, "attempt_completed")}
    killed = Counter(fact.claim_id in done for fact in queue_facts(postgres, "attempt_claimed"))
    committed = killed[True] - late
    print(f"kills={kills} committed={committed} rolled_back={killed[False]} beside={late} killed after the answer")
    # when everything is run to its end by somebody who is not killed
    until(lambda: squid.worker(until_idle=True, concurrency=4) and all_done(postgres, runs)(), "all runs")
    # then each run has its two rows once, by the very claim whose completion is on record
    completions = queue_facts(postgres, "attempt_completed")
    assert sorted(fact.run_id for fact in completions) == sorted(runs)
    with raw(postgres) as connection:
        rows = connection.execute("SELECT run_id, token, side FROM bookings").fetchall()
    assert sorted(rows) == sorted((fact.run_id, fact.result, side) for fact in completions for side in SIDES)
    assert any(fact.result > 1 for fact in completions), "some were killed before they had committed"
    assert verify(postgres) == []
