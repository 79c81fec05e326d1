"""Workers that are stopped beyond their lease, or killed: what they held is done elsewhere, and they change nothing."""

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, verify
from tests.processes import Child, children
from tests.runtime.workers import (
    PATIENCE,
    counts_of,
    facts_of,
    file_wait,
    lease_end,
    running_worker,
    status_of,
    until,
    wait_for_lines,
    worker_process,
)

LEASE = 2.0  # seconds


def hold(storage: PostgresStorage, started: list[Child], file: Path, **payload: Any) -> tuple[Child, str]:
    """Return a worker process that is in the middle of the only step of a run, and the run."""
    run_id = Squid(storage, file_wait).start("file_wait", {"file": str(file), **payload}).run_id
    child = worker_process(storage, lease=LEASE, concurrency=1)
    started.append(child)
    wait_for_lines(child, "begun")
    return child, run_id


def suspend(child: Child) -> None:
    """Stop a process where it is, and wait until all of its threads have."""
    os.kill(child.process.pid, signal.SIGSTOP)
    until(lambda: _state(child.process.pid) == "T", "the process to stop")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_out_the_lease(storage: PostgresStorage, run_id: str) -> None:
    """Wait until the lease is over, by the clock that decides."""
    until(lambda: storage.now() > lease_end(storage, run_id), "the end of the lease")


@pytest.mark.parametrize("fails", [False, True], ids=["completion", "failure"])
def test_a_zombies_outcome_is_refused_after_another_has_completed_the_attempt(
    postgres: PostgresStorage, tmp_path: Path, fails: bool
) -> None:
    file = tmp_path / "file"
    with children() as started:
        # given a worker that is suspended in the middle of a step, beyond its lease
        zombie, run_id = hold(postgres, started, file, fails=fails)
        suspend(zombie)
        wait_out_the_lease(postgres, run_id)
        # when another one has completed the attempt, in its own way
        agent = Squid(postgres, file_wait).dispatch_agent()
        claim = agent.claim_next("heir")
        assert claim is not None
        agent.complete(claim, {"by": "heir"})
        assert status_of(postgres, run_id) == "completed"
        before = postgres.read_run(run_id)
        # and the zombie wakes, and comes to its end
        file.touch()
        os.kill(zombie.process.pid, signal.SIGCONT)
        until(lambda: any("refused" in line or "has ended" in line for line in zombie.lines), "the refusal")
        zombie.process.terminate()
        assert zombie.end(PATIENCE) == 0
        counts = counts_of(zombie)
    # then nothing of it counts, and nothing has changed
    assert (counts["refused"], counts["completed"], counts["failed"]) == (1, 0, 0)
    assert postgres.read_run(run_id) == before
    assert verify(postgres) == []


@pytest.mark.parametrize("taken_over", [True, False], ids=["taken over", "not taken over"])
def test_a_zombies_heartbeat_is_refused_and_tells_its_step(
    postgres: PostgresStorage, tmp_path: Path, taken_over: bool
) -> None:
    with children() as started:
        # given a worker that is suspended beyond its lease
        zombie, run_id = hold(postgres, started, tmp_path / "never")
        suspend(zombie)
        wait_out_the_lease(postgres, run_id)
        if taken_over:
            assert (
                Squid(postgres, file_wait).dispatch_agent().claim_next("heir", lease=timedelta(minutes=5)) is not None
            )
        before = postgres.read_run(run_id)
        # when it wakes, and nothing but its heartbeat can tell it
        os.kill(zombie.process.pid, signal.SIGCONT)
        wait_for_lines(zombie, "cancelled")
        until(lambda: [line for line in zombie.lines if line.startswith("log WARNING") and "lost" in line], "the word")
        until(lambda: any("drop the result" in line for line in zombie.lines), "the refusal of its result")
        os.kill(zombie.process.pid, signal.SIGKILL)
        entries = postgres.read_run(run_id)
    # then the lease is what it was; the zombie itself may have claimed the attempt anew, if no other worker has
    assert entries[: len(before)] == before
    assert [entry.fact.type for entry in entries[len(before) :]] in ([], ["attempt_claimed"])
    if taken_over:
        assert entries == before


@pytest.mark.parametrize("completed", [True, False], ids=["completed elsewhere", "taken over"])
def test_a_zombie_starts_no_children(postgres: PostgresStorage, tmp_path: Path, completed: bool) -> None:
    with children() as started:
        # given a worker that is suspended in the middle of a step, beyond its lease, and another that has it now
        zombie, run_id = hold(postgres, started, tmp_path / "never", child=True)
        suspend(zombie)
        wait_out_the_lease(postgres, run_id)
        agent = Squid(postgres, file_wait).dispatch_agent()
        claim = agent.claim_next("heir")
        assert claim is not None
        if completed:
            agent.complete(claim, {"by": "heir"})
        before = postgres.read_run(run_id)
        # when the zombie wakes, and goes on to start a child
        os.kill(zombie.process.pid, signal.SIGCONT)
        said = wait_for_lines(zombie, "child")
        os.kill(zombie.process.pid, signal.SIGKILL)
    # then it is refused, and nothing is written
    assert said == [["TerminalRun" if completed else "StaleClaim"]]
    assert postgres.read_run(run_id) == before
    assert len(Squid(postgres, file_wait).list_runs().runs) == 1


def test_a_late_completion_is_refused_though_nobody_has_taken_over(postgres: PostgresStorage, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with children() as started:
        zombie, run_id = hold(postgres, started, file)
        Squid(postgres, file_wait).pause_queue("default")  # so that it does not claim it anew by itself
        suspend(zombie)
        wait_out_the_lease(postgres, run_id)
        before = postgres.read_run(run_id)
        file.touch()
        os.kill(zombie.process.pid, signal.SIGCONT)
        until(lambda: any("ran out at" in line for line in zombie.lines), "the refusal: the lease ran out")
        zombie.process.terminate()
        assert zombie.end(PATIENCE) == 0
        assert counts_of(zombie)["refused"] == 1
    assert postgres.read_run(run_id) == before
    assert status_of(postgres, run_id) == "running"
    Squid(postgres, file_wait).resume_queue("default")
    assert Squid(postgres, file_wait).worker(until_idle=True).completed == 1


def test_the_attempt_of_a_killed_worker_runs_elsewhere_within_a_second_of_its_lease(
    postgres: PostgresStorage, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    with children() as started:
        # given a worker in the middle of a step, and another one with nothing to do and no housekeeping
        doomed, run_id = hold(postgres, started, file)
        squid = Squid(postgres, file_wait)
        with running_worker(squid, housekeeping=None):
            # when the first is killed
            doomed.kill()
            file.touch()
            # then the other takes over, without any recovery
            until(lambda: status_of(postgres, run_id) == "completed", "the run's end")
    first, second = facts_of(postgres, run_id, "attempt_claimed")
    leases = [first.lease_until, *(fact.lease_until for fact in facts_of(postgres, run_id, "attempt_heartbeat"))]
    lease_until = max(lease for lease in leases if lease <= second.occurred_at)
    assert second.occurred_at - lease_until <= timedelta(seconds=1)
    assert (first.fencing_token, second.fencing_token) == (1, 2)
    assert len(facts_of(postgres, run_id, "attempt_completed")) == 1
