"""Dagster's processes and storage may go at any time: work goes on after the lease, and is done once."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from examples import ledger
from squid_dagster.journal import verify
from squid_dagster.journal.contract.queries import QueueRow
from tests.plugin.processes import gated_location
from tests.plugin.processes.daemon import Shore, is_running, wait_for
from tests.runtime.runs import facts

RUNS = {"tide": 130, "rock": 70}
ENOUGH = 50


@pytest.fixture
def shore(postgres_url: str, schema: str) -> Iterator[Shore]:
    """An empty journal, and Dagster's processes, not started yet."""
    with tempfile.TemporaryDirectory(prefix="squid-shore-", dir="/tmp") as folder:
        made = Shore(Path(folder), postgres_url, schema)
        try:
            yield made
        finally:
            made.close()


def in_flight(shore: Shore) -> QueueRow | None:
    """Give what is in flight, once enough is under lease and enough waits for its time."""
    row = shore.flight()
    return row if row is not None and min(row.claimed, row.scheduled) >= ENOUGH else None


def kill_everything(shore: Shore) -> None:
    """End daemon, webserver, code server and run workers by SIGKILL, and remove Dagster's storage directory."""
    # One that has just ended by itself may still be listed.
    workers = wait_for(lambda: [pid for pid in shore.drains().values() if is_running(pid)] or None, shore.stack)
    shore.stack.kill()
    wait_for(lambda: not any(is_running(pid) for pid in workers), shore.stack)
    shore.stack.wipe()
    assert not shore.stack.home.exists()


def lost_claims(shore: Shore) -> int:
    """Count claims of which nothing was heard any more, because their worker was killed."""
    runs = shore.squid.list_runs(limit=500, workflow="rock").runs
    claims = [len(facts(shore.squid, run.run_id, "attempt_claimed")) for run in runs]
    return sum(claims) - len(runs) * len(gated_location.STEPS["rock"])


def done_once(shore: Shore) -> None:
    """Check that every step of every run was applied once, and that its effect stands once in the ledger."""
    runs = shore.squid.list_runs(limit=500).runs
    assert {run.status for run in runs} == {"completed"}
    expected = {f"{run.run_id}:{step}:1" for run in runs for step in gated_location.STEPS[run.workflow or ""]}
    _, effects = ledger.read(shore.book)
    assert dict(effects) == dict.fromkeys(expected, 1)
    for run in runs:
        applied = [fact.runnable_key for fact in facts(shore.squid, run.run_id, "runnable_applied")]
        assert len(applied) == len(set(applied)) == len(gated_location.STEPS[run.workflow or ""])
    assert shore.squid.runtime.queries.anomalies(None, 10) == []
    assert list(verify(shore.storage)) == []


@pytest.mark.timeout(400)
def test_two_hundred_runs_survive_that_dagster_is_killed_and_forgets_everything_twice(shore: Shore) -> None:
    for workflow, count in RUNS.items():
        shore.squid.start_many(workflow, [{"number": number} for number in range(count)])
    instances = []
    for _ in range(2):
        shore.stack.start()
        instances.append(shore.instance_id())
        # given so many under lease, and so many whose time has not come
        flight = wait_for(lambda: in_flight(shore), shore.stack)
        assert flight.claimed >= ENOUGH
        assert flight.scheduled >= ENOUGH
        assert shore.open_runs() == sum(RUNS.values())
        # when everything that Dagster is and knows goes
        kill_everything(shore)
    # then a Dagster that knows nothing of it leads all of them to their end
    shore.stack.start()
    instances.append(shore.instance_id())
    assert len(set(instances)) == 3
    shore.gate.touch()
    wait_for(lambda: shore.open_runs() == 0, shore.stack)
    done_once(shore)
    assert lost_claims(shore) >= ENOUGH


@pytest.mark.timeout(300)
def test_work_goes_on_whichever_process_ends(shore: Shore) -> None:
    stack, squid = shore.stack, shore.squid
    stack.start()
    run_id = squid.start("rock", {"number": 1}).run_id
    first = wait_for(lambda: shore.holder(run_id), stack)
    # when the Dagster run is terminated in the UI
    assert shore.terminate(first) == "TerminateRunSuccess"
    # then the claim comes back with a fact, and another run takes over
    second = wait_for(lambda: shore.holder(run_id, first), stack)
    assert len(facts(squid, run_id, "attempt_released")) == 1
    with shore.instance() as instance:
        ended = instance.get_run_by_id(first)
        assert ended is not None
        assert ended.status is dg.DagsterRunStatus.CANCELED
    # when the run worker is killed
    os.kill(shore.drains()[second], signal.SIGKILL)
    # then another one takes over when the lease has run out
    third = wait_for(lambda: shore.holder(run_id, second), stack)
    # when daemon and webserver are killed, work goes on without them
    stack.kill("daemon", "webserver")
    other = squid.start("tide", {"number": 1}).run_id
    wait_for(lambda: facts(squid, other, "attempt_completed"), shore.stack)
    stack.start("webserver", "daemon")
    assert shore.holder(run_id) == third
    shore.gate.touch()
    wait_for(lambda: shore.open_runs() == 0, shore.stack)
    done_once(shore)
    claims = facts(squid, run_id, "attempt_claimed")
    assert [claim.fencing_token for claim in claims if ":hold:" in claim.runnable_key] == [1, 2, 3]
