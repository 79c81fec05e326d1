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
from tests.plugin.processes.daemon import Deployment, is_running, wait_for
from tests.runtime.runs import facts
from tests.scratch import SCRATCH

RUNS = {"deferring": 130, "holding": 70}
ENOUGH = 50


@pytest.fixture
def deployment(postgres_url: str, schema: str) -> Iterator[Deployment]:
    """An empty journal, and Dagster's processes, not started yet."""
    with tempfile.TemporaryDirectory(prefix="squid-shore-", dir=SCRATCH) as folder:
        made = Deployment(Path(folder), postgres_url, schema)
        try:
            yield made
        finally:
            made.close()


def in_flight(deployment: Deployment) -> QueueRow | None:
    """Return the row of the queue, once enough is under lease and enough waits for its time."""
    row = deployment.flight()
    return row if row is not None and min(row.claimed, row.scheduled) >= ENOUGH else None


def kill_everything(deployment: Deployment) -> None:
    """End daemon, webserver, code server and run workers by SIGKILL, and remove Dagster's storage directory."""
    # One that has just ended by itself may still be listed.
    workers = wait_for(
        lambda: [pid for pid in deployment.drains().values() if is_running(pid)] or None, deployment.stack
    )
    deployment.stack.kill()
    wait_for(lambda: not any(is_running(pid) for pid in workers), deployment.stack)
    deployment.stack.wipe()
    assert not deployment.stack.home.exists()


def lost_claims(deployment: Deployment) -> int:
    """Count claims of which nothing was heard any more, because their worker was killed."""
    runs = deployment.squid.list_runs(limit=500, workflow="holding").runs
    claims = [len(facts(deployment.squid, run.run_id, "attempt_claimed")) for run in runs]
    return sum(claims) - len(runs) * len(gated_location.STEPS["holding"])


def done_once(deployment: Deployment) -> None:
    """Check that every step of every run was applied once, and that its effect stands once in the ledger."""
    runs = deployment.squid.list_runs(limit=500).runs
    assert {run.status for run in runs} == {"completed"}
    expected = {f"{run.run_id}:{step}:1" for run in runs for step in gated_location.STEPS[run.workflow or ""]}
    _, effects = ledger.read(deployment.book)
    assert dict(effects) == dict.fromkeys(expected, 1)
    for run in runs:
        applied = [fact.runnable_key for fact in facts(deployment.squid, run.run_id, "runnable_applied")]
        assert len(applied) == len(set(applied)) == len(gated_location.STEPS[run.workflow or ""])
    assert deployment.squid.runtime.queries.anomalies(None, 10) == []
    assert list(verify(deployment.storage)) == []


@pytest.mark.timeout(400)
def test_two_hundred_runs_survive_that_dagster_is_killed_and_forgets_everything_twice(deployment: Deployment) -> None:
    for workflow, count in RUNS.items():
        deployment.squid.start_many(workflow, [{"number": number} for number in range(count)])
    instances = []
    for _ in range(2):
        deployment.stack.start()
        instances.append(deployment.instance_id())
        # given so many under lease, and so many whose time has not come
        flight = wait_for(lambda: in_flight(deployment), deployment.stack)
        assert flight.claimed >= ENOUGH
        assert flight.scheduled >= ENOUGH
        assert deployment.open_runs() == sum(RUNS.values())
        # when everything that Dagster is and knows goes
        kill_everything(deployment)
    # then a Dagster that knows nothing of it leads all of them to their end
    deployment.stack.start()
    instances.append(deployment.instance_id())
    assert len(set(instances)) == 3
    deployment.gate.touch()
    wait_for(lambda: deployment.open_runs() == 0, deployment.stack)
    done_once(deployment)
    assert lost_claims(deployment) >= ENOUGH


@pytest.mark.timeout(300)
def test_work_goes_on_whichever_process_ends(deployment: Deployment) -> None:
    stack, squid = deployment.stack, deployment.squid
    stack.start()
    run_id = squid.start("holding", {"number": 1}).run_id
    first = wait_for(lambda: deployment.holder(run_id), stack)
    # when the Dagster run is terminated in the UI
    assert deployment.terminate(first) == "TerminateRunSuccess"
    # then the claim comes back with a fact, and another run takes over
    second = wait_for(lambda: deployment.holder(run_id, first), stack)
    assert len(facts(squid, run_id, "attempt_released")) == 1
    with deployment.instance() as instance:
        ended = instance.get_run_by_id(first)
        assert ended is not None
        assert ended.status is dg.DagsterRunStatus.CANCELED
    # when the run worker is killed
    os.kill(deployment.drains()[second], signal.SIGKILL)
    # then another one takes over when the lease has run out
    third = wait_for(lambda: deployment.holder(run_id, second), stack)
    # when daemon and webserver are killed, work goes on without them
    stack.kill("daemon", "webserver")
    other = squid.start("deferring", {"number": 1}).run_id
    wait_for(lambda: facts(squid, other, "attempt_completed"), deployment.stack)
    stack.start("webserver", "daemon")
    assert deployment.holder(run_id) == third
    deployment.gate.touch()
    wait_for(lambda: deployment.open_runs() == 0, deployment.stack)
    done_once(deployment)
    claims = facts(squid, run_id, "attempt_claimed")
    assert [claim.fencing_token for claim in claims if ":hold:" in claim.runnable_key] == [1, 2, 3]
