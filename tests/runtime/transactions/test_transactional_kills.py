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
from tests.runtime.workers import ForkServer, all_done, payment, queue_facts, until

MOMENTS = 100
SIDES = ("credit", "debit")
_LEASE = 1.0


def _kill_in_between(fork_server: ForkServer, seconds: float) -> bool:
    """Execute an attempt in one process, and kill it so long after its first write; return whether that was in time."""
    pid = fork_server.next_pid()
    fork_server.fork()
    os.kill(pid, signal.SIGUSR2)
    until(lambda: fork_server.has_printed("wrote", pid), "the first write")
    moment = time.monotonic() + seconds
    while time.monotonic() < moment and not fork_server.has_printed("answered", pid):
        time.sleep(0)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), "its end")
    return not fork_server.has_printed("answered", pid)


def test_rows_equal_completions_after_a_hundred_kills_between_first_write_and_answer(postgres: PostgresStorage) -> None:
    rng = random.Random(7)
    squid = Squid(postgres, payment)
    with raw(postgres) as connection:
        # nothing in this table keeps a row from being written twice
        connection.execute("CREATE TABLE bookings (run_id text, token int, side text)")
    booked = {"table": f"{postgres.schema}.bookings"}
    runs = [receipt.run_id for receipt in squid.start_many("payment", [booked] * (2 * MOMENTS))]
    kills, late, longest = 0, 0, 0.02
    with children() as started:
        fork_server = ForkServer(postgres, _LEASE)
        started.append(fork_server.child)
        for _ in range(3):
            fork_server.fork()
        while kills < MOMENTS:
            in_time = _kill_in_between(fork_server, rng.uniform(0, longest))
            kills, late = kills + in_time, late + (not in_time)
            # moments are drawn from a window that follows how long the way to the answer takes on this machine
            longest *= 1.1 if in_time else 0.8
    done = {fact.claim_id for fact in queue_facts(postgres, "attempt_completed")}
    killed = Counter(fact.claim_id in done for fact in queue_facts(postgres, "attempt_claimed"))
    committed = killed[True] - late
    print(f"kills={kills} committed={committed} rolled_back={killed[False]} beside={late} killed after the answer")
    # when everything is executed to its end by a worker that is not killed
    until(lambda: squid.worker(until_idle=True, concurrency=4) and all_done(postgres, runs)(), "all runs")
    # then each run has its two rows once, by the very claim whose completion is on record
    completions = queue_facts(postgres, "attempt_completed")
    assert sorted(fact.run_id for fact in completions) == sorted(runs)
    with raw(postgres) as connection:
        rows = connection.execute("SELECT run_id, token, side FROM bookings").fetchall()
    assert sorted(rows) == sorted((fact.run_id, fact.result, side) for fact in completions for side in SIDES)
    assert any(fact.result > 1 for fact in completions), "some were killed before they had committed"
    assert verify(postgres) == []
