"""What a step may do to its worker's process: the journal's promises hold, and the work goes on."""

import os
import signal
from functools import partial
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, verify
from tests.processes import Child, children
from tests.runtime.processes.process_changes import WORKFLOWS, worker_process
from tests.runtime.workers import PATIENCE, facts_of, status_of, until, wait_for_lines

OPTIONS: dict[str, Any] = {"lease": 30, "poll": 0.1, "concurrency": 4, "grace": 1}


def completed(storage: PostgresStorage, *runs: str) -> bool:
    return all(status_of(storage, run) == "completed" for run in runs)


def result_of(storage: PostgresStorage, run_id: str) -> Any:
    """Return the result of a run's only step, which was executed and settled once."""
    (done,) = facts_of(storage, run_id, "attempt_completed")
    assert len(facts_of(storage, run_id, "attempt_claimed")) == 1
    return done.result


def end_of(child: Child) -> str:
    child.process.terminate()
    assert child.end(PATIENCE) == 0
    return child.errors()


def test_a_forked_process_that_comes_to_the_end_of_its_step_ends_there(postgres: PostgresStorage) -> None:
    squid = Squid(postgres, WORKFLOWS)
    codes = {"fork_and_return": 0, "fork_and_raise": 1, "fork_and_exit": 7, "fork_and_use_the_journal": 0}
    with children() as started:
        started.append(child := worker_process(postgres, **OPTIONS))
        pid = wait_for_lines(child, "ready")[0][0]
        # given steps whose children return, raise, exit, and read the journal first; in threads and in transactions
        expected = {
            squid.start(workflow, {"change": change}).run_id: code
            for workflow in ("changing", "changing_in_transaction")
            for change, code in codes.items()
        }
        # and such that fork in the loop that all async steps share
        expected |= {squid.start("changing_async", {"change": ""}).run_id: 0 for _ in range(2)}
        unchanging = [squid.start("unchanging").run_id for _ in range(5)]
        until(lambda: completed(postgres, *expected, *unchanging), "the end of all runs")
        error = end_of(child)
    # then each child has ended with the code that it wanted, said why, and settled nothing
    assert {run: result_of(postgres, run) for run in expected} == expected
    assert error.count("came to the end of the step") == len(expected)
    assert child.lines.count(f"over {pid}") == 1
    assert sum(line.startswith("read ") for line in child.lines) == 2
    assert verify(postgres) == []


def test_a_child_that_outlives_its_worker_keeps_none_of_its_sessions_open(postgres: PostgresStorage) -> None:
    squid = Squid(postgres, WORKFLOWS)
    sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'squid_dagster' AND pid <> pg_backend_pid()"
    squid.start("unchanging")
    before = set(postgres.rows(sessions))
    with children() as started:
        # given a worker in the middle of a transaction, of which a child was forked
        started.append(child := worker_process(postgres, **OPTIONS))
        wait_for_lines(child, "ready")
        stays = squid.start("changing_in_transaction", {"change": "leave_a_child_and_stay"}).run_id
        orphan = int(wait_for_lines(child, "orphan")[0][0])
        try:
            assert set(postgres.rows(sessions)) - before
            # when the worker is killed
            os.kill(child.process.pid, signal.SIGKILL)
            # then the server hears of it at once, though the child is alive
            until(lambda: not set(postgres.rows(sessions)) - before, "the end of the worker's sessions")
            os.kill(orphan, 0)
        finally:
            os.kill(orphan, signal.SIGKILL)
    assert status_of(postgres, stays) == "running"


@pytest.mark.parametrize(
    "changes",
    [
        ["terminate_a_process", "close_standard_streams", "lower_the_recursion_limit", "change_the_process"],
        ["close_descriptors"],
    ],
    ids=lambda changes: changes[0],
)
def test_a_worker_goes_on_whatever_steps_do_to_its_process(postgres: PostgresStorage, changes: list[str]) -> None:
    squid = Squid(postgres, WORKFLOWS)
    with children() as started:
        started.append(child := worker_process(postgres, **OPTIONS | {"lease": 3}))
        wait_for_lines(child, "ready")
        for change in changes:
            run = squid.start("changing", {"change": change}).run_id
            unchanging = [squid.start("unchanging").run_id for _ in range(5)]
            until(partial(completed, postgres, run, *unchanging), f"the end of all runs, beside {change}")
            (fact,) = facts_of(postgres, run, "attempt_completed")
            assert fact.result == (-signal.SIGTERM if change == "terminate_a_process" else 0)
        after = [squid.start("unchanging").run_id for _ in range(5)]
        until(lambda: completed(postgres, *after), "the end of runs that came afterwards")
        assert child.process.poll() is None
        end_of(child)
    assert verify(postgres) == []
