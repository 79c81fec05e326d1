"""The simulation: random workflows under every kind of fault, bugs that it must catch, and schedules that repeat."""

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated

import pytest

from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.testing import simulate
from squid_dagster.testing.simulation import SimulationFailed
from squid_dagster.testing.simulation.__main__ import main
from squid_dagster.testing.simulation.campaign import quiet, repeat
from squid_dagster.testing.simulation.environment import primitives
from squid_dagster.testing.simulation.environment.machine import Machine, SimulatedThread
from squid_dagster.testing.simulation.environment.primitives import VirtualTime
from squid_dagster.testing.simulation.faults import Kind
from squid_dagster.testing.simulation.scenario import random_scenario
from squid_dagster.testing.simulation.schedule import expectation, play
from squid_dagster.workflow import Resource, Retry, StepContext, Workflow
from tests.simulation.bugs import BUGS, hunt
from tests.simulation.planting import planted

SEED = int(os.environ.get("SQUID_SIMULATE_SEED", "0"))
FAST = (
    "an expired claim may act",
    "a dead letter one delivery too early",
    "compensations in the wrong order",
    "plans are not fenced by a revision",
    "a claim takes what another holds",
)


def test_tasks_of_a_simulated_process_are_kept_apart_by_the_locks_of_its_store() -> None:
    # All tasks run on one thread, which a real lock would let in again.
    with VirtualTime():
        store = FoldDispatchStore(MemoryStorage())
    assert isinstance(store._folds.lock, primitives._RLock)


def test_every_run_of_random_workflows_ends_as_it_does_without_faults() -> None:
    command = [sys.executable, "-m", "squid_dagster.testing.simulation", "--seed", str(SEED), "--schedules", "80"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("SIMULATION OK: schedules=80 faults=")


@pytest.mark.parametrize("name", FAST)
def test_a_planted_bug_is_caught(name: str) -> None:
    bug = next(candidate for candidate in BUGS if candidate.name == name)
    assert hunt(bug, 300).played is not None


def test_the_same_seed_gives_the_same_schedule() -> None:
    scenario = random_scenario(4)
    with quiet():
        expected = expectation(scenario)
        first, again = (play(scenario, expected, 4001) for _ in range(2))
        repeated = play(scenario, expected, 4001, faults=first.faults)
    assert first.faults == again.faults == repeated.faults
    assert (first.seconds, first.switches) == (again.seconds, again.switches) == (repeated.seconds, repeated.switches)


def test_a_failing_schedule_shrinks_to_the_faults_that_it_takes_and_can_be_repeated() -> None:
    bug = next(candidate for candidate in BUGS if candidate.name == "an expired claim may act")
    failing = hunt(bug, 300).played
    assert failing is not None
    with planted(bug):
        failure = repeat(failing.seed)
        assert failure is not None
        assert 1 <= len(failure.fault_numbers) < len(failing.faults)
        assert failure.problems
        assert f"seed {failing.seed}, faults kept: " in str(failure)
        assert repeat(failing.seed, failure.fault_numbers) is not None
        assert repeat(failing.seed, failure.fault_numbers[1:]) is None
    assert repeat(failing.seed, failure.fault_numbers) is None


def test_a_machine_that_was_closed_leaves_nothing_in_memory() -> None:
    def played() -> weakref.ref[SimulatedThread]:
        machine = Machine()
        process = machine.launch("waits", lambda: machine.wait(1000))
        machine.run(1)
        gc.collect()  # sees the live greenlet in the tuple of what is due
        machine.close()
        return weakref.ref(process.threads[0])

    thread = played()
    gc.collect()
    assert thread() is None


def test_all_kinds_of_faults_befall() -> None:
    missing = set(Kind) - {Kind.CLOCK_BACK}
    with quiet():
        for number in range(10):
            if not missing:
                break
            scenario = random_scenario(number)
            expected = expectation(scenario)
            for offset in range(4):
                missing -= {fault.kind for fault in play(scenario, expected, number * 1000 + offset).faults}
    assert not missing


class Bank:
    """What a step acts on: it remembers the keys."""

    def __init__(self) -> None:
        self.paid: dict[str, int] = {}


def payments(idempotent: bool) -> Workflow:
    wf = Workflow("payments")

    @wf.step(retry=Retry(max_attempts=3, initial=timedelta(seconds=1)))
    def pay(ctx: StepContext, bank: Annotated[Bank, Resource("bank")]) -> int:
        if not idempotent or ctx.idempotency_key not in bank.paid:
            bank.paid[ctx.idempotency_key] = bank.paid.get(ctx.idempotency_key, 0) + 100
        return bank.paid[ctx.idempotency_key]

    @wf.step
    async def receipt(pay: int) -> str:
        return f"{pay} paid"

    return wf


def bank() -> Mapping[str, object]:
    return {"bank": Bank()}


def test_a_workflow_of_the_users_own_is_simulated() -> None:
    report = simulate(payments(idempotent=True), [None, None], resources=bank, schedules=30, seed=SEED)
    assert str(report).startswith("SIMULATION OK: schedules=30 faults=")
    assert str(report).endswith(" violations=0")


def test_a_step_that_is_not_idempotent_is_found() -> None:
    with pytest.raises(SimulationFailed, match=r"SIMULATION FAILED: schedules=60 .*\nseed ") as caught:
        simulate(payments(idempotent=False), [None], resources=bank, schedules=60)
    assert "receipt:1 ok" in str(caught.value)


def test_a_simulation_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="schedules must be a whole number"):
        simulate(schedules=0)
    with pytest.raises(InvalidArgument, match="payloads for other"):
        simulate(payments(idempotent=True), {"other": [None]})


def test_the_command_prints_progress_and_one_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--schedules", "10", "--processes", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("SIMULATION OK: schedules=10 faults=")
    assert main(["--repeat", "3001"]) == 0
    assert capsys.readouterr().out == "seed 3001 holds\n"
    assert main(["--workflow", "tests.nothing:here", "--repeat", "1"]) == 2
