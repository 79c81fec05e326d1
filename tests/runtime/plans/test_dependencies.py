"""Workflows of dependencies: a step begins as soon as its own dependencies are durable, and joins are planned once."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from squid_dagster.agents import ClaimResult
from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Completed, Settlement
from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import run_thread
from squid_dagster.protocol.errors import Conflict
from squid_dagster.runtime.execution.settlement import settle
from squid_dagster.workflow import Workflow
from tests.runtime.runs import (
    MakeSquid,
    applied_steps,
    complete_run,
    drain,
    facts,
    finish,
    planned_steps,
    seconds,
    unit,
)


class Order(BaseModel):
    amount: int = 1


def nothing() -> None:
    """Succeed."""


def diamond() -> Workflow:
    wf = Workflow("orders", payload=Order)

    @wf.step
    def load(amount: int) -> int:
        return amount

    @wf.step
    def left(load: int) -> int:
        return load + 1

    @wf.step
    def right(load: int) -> int:
        return load * 10

    @wf.step
    def join(left: int, right: int) -> list[int]:
        return [left, right]

    return wf


def claim_all(squid: Squid, most: int = 100) -> dict[str, ClaimResult]:
    """Claim what is due, by step."""
    return {claim.attempt.step: claim for claim in squid.dispatch_agent().claim_many("w", most)}


def test_edges_follow_from_parameters_and_results_meet_in_the_join(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(diamond())
    snapshot = complete_run(squid, clock, "orders", {"amount": 4})
    assert snapshot.status == "completed"
    assert snapshot.outputs == {"load": 4, "left": 5, "right": 40, "join": [5, 40]}
    assert all(fact.transition is None for fact in facts(squid, snapshot.run_id, "runnable_applied"))
    assert not snapshot.anomalies


def test_all_roots_begin_at_once(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("orders")
    for name in ("a", "b", "c"):
        wf.step(name=name)(nothing)
    squid = make_squid(wf)
    run_id = squid.start("orders").run_id
    assert planned_steps(squid, run_id) == ["a:1:1", "b:1:1", "c:1:1"]
    assert set(claim_all(squid)) == {"a", "b", "c"}


def test_a_step_begins_when_its_own_dependencies_are_done_whatever_else_is_still_running(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    wf = Workflow("orders")
    for name, after in {
        "slow": [],
        "a": [],
        "b": ["a"],
        "c": ["b"],
        "d": ["c"],
        "end": ["slow", "d"],
    }.items():
        wf.step(name=name, after=after)(nothing)
    squid = make_squid(wf)
    run_id = squid.start("orders").run_id
    agent = squid.dispatch_agent()
    held = claim_all(squid)
    slow = held.pop("slow")  # of the first level, and not done until the very end
    for expected in ("a", "b", "c", "d"):
        assert list(held) == [expected]
        agent.complete(held[expected])
        held = claim_all(squid)
    assert held == {}
    assert applied_steps(squid, run_id) == ["a:1", "b:1", "c:1", "d:1"]
    agent.complete(slow)
    assert list(claim_all(squid)) == ["end"]


def test_a_join_waits_for_all_of_its_dependencies(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(diamond())
    run_id = squid.start("orders").run_id
    squid.execute_next()
    held = claim_all(squid)
    squid.dispatch_agent().complete(held["right"], 10)
    assert "join:1:1" not in planned_steps(squid, run_id)
    assert squid.inspect_run(run_id).status == "running"
    squid.dispatch_agent().complete(held["left"], 2)
    assert planned_steps(squid, run_id).count("join:1:1") == 1
    assert finish(squid, clock, run_id).outputs["join"] == [2, 10]


def test_two_siblings_settled_in_one_commit_plan_the_join_once(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(diamond())
    run_id = squid.start("orders").run_id
    squid.execute_next()
    held = claim_all(squid)
    answers = settle(
        squid.runtime, [Settlement(held_attempt.claim.ref, Completed(7)) for held_attempt in held.values()]
    ).answers
    assert [answer.error for answer in answers] == [None, None]
    assert planned_steps(squid, run_id).count("join:1:1") == 1
    assert finish(squid, clock, run_id).outputs["join"] == [7, 7]
    assert not unit(squid, run_id).anomalies


class BarrierStorage(MemoryStorage):
    """Two writers that have read the same run wait for each other before they write: one of them meets a conflict."""

    def __init__(self, clock: VirtualClock, *, atomic: bool) -> None:
        super().__init__(clock, atomic_across_threads=atomic)
        self.barrier: Barrier | None = None
        self.conflicts = 0

    def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
        barrier = self.barrier
        if barrier is not None and any(one.thread.startswith(run_thread("")) for one in appends):
            barrier.wait(30)
            self.barrier = None
        try:
            return super().commit(appends, commit_id)
        except Conflict:
            self.conflicts += 1
            raise


def both_at_once(squid: Squid, held: dict[str, ClaimResult]) -> None:
    """Complete all held attempts, each from a thread of its own, as good as at the same time."""
    together = Barrier(len(held))

    def complete(claim: ClaimResult) -> None:
        together.wait(30)
        squid.dispatch_agent().complete(claim, claim.attempt.step)

    with ThreadPoolExecutor(len(held)) as pool:
        for done in [pool.submit(complete, claim) for claim in held.values()]:
            done.result(30)


def fan(width: int) -> Workflow:
    wf = Workflow("fan")
    names = [f"s{n}" for n in range(width)]
    for name in names:
        wf.step(name=name)(nothing)
    wf.step(name="join", after=names)(nothing)
    return wf


def test_siblings_that_finish_at_once_on_postgres_plan_the_join_once(postgres_virtual: PostgresStorage) -> None:
    squid = Squid(postgres_virtual, fan(8))
    runs = [squid.start("fan").run_id for _ in range(5)]
    for _ in runs:
        both_at_once(squid, claim_all(squid, 8))
    drain(squid)
    for run_id in runs:
        assert planned_steps(squid, run_id).count("join:1:1") == 1
        assert squid.inspect_run(run_id).status == "completed"
        assert not unit(squid, run_id).anomalies
    squid.runtime.notifier.close()


@pytest.mark.parametrize("atomic", [True, False])
def test_a_sibling_that_meets_a_conflict_in_memory_plans_anew(clock: VirtualClock, atomic: bool) -> None:
    storage = BarrierStorage(clock, atomic=atomic)
    squid = Squid(storage, fan(2))
    run_id = squid.start("fan").run_id
    held = claim_all(squid)
    storage.barrier = Barrier(2)
    both_at_once(squid, held)
    assert storage.conflicts >= 1
    assert planned_steps(squid, run_id).count("join:1:1") == 1
    assert finish(squid, clock, run_id).status == "completed"
    assert not unit(squid, run_id).anomalies


def test_waits_and_logs_take_part_in_dependencies(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("orders")
    wf.step(name="order")(nothing)
    wf.wait("settle", seconds(60), after=["order"])
    wf.log("note", "ordered", after=["order"])
    wf.step(name="collect", after=["settle", "note"])(nothing)
    squid = make_squid(wf)
    run_id = squid.start("orders").run_id
    drain(squid)
    assert applied_steps(squid, run_id) == ["order:1", "note:1"]
    assert finish(squid, clock, run_id).status == "completed"
    assert applied_steps(squid, run_id)[-2:] == ["settle:1", "collect:1"]


def test_the_payload_and_every_output_reach_a_step_far_behind_a_join(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    wf = diamond()

    @wf.step
    def report(amount: int, load: int, left: int, join: list[int]) -> list[Any]:
        return [amount, load, left, join]

    squid = make_squid(wf)
    assert complete_run(squid, clock, "orders", {"amount": 3}).outputs["report"] == [3, 3, 4, [4, 30]]


def test_a_dead_end_branch_belongs_to_the_run(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("orders")
    for name, after in {"a": [], "side": ["a"], "b": ["a"], "c": ["b"]}.items():
        wf.step(name=name, after=after)(nothing)
    squid = make_squid(wf)
    run_id = squid.start("orders").run_id
    squid.execute_next()
    held = claim_all(squid)
    squid.dispatch_agent().complete(held["b"])
    drain(squid)
    assert not squid.inspect_run(run_id).terminal, "a side step is still at work"
    squid.dispatch_agent().complete(held["side"])
    assert squid.inspect_run(run_id).status == "completed"
