"""Child runs: started by a step, linked on the parent, once for the step and the key, whatever is repeated."""

from typing import Any

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.errors import (
    ConflictingCommand,
    InvalidArgument,
    InvalidPayload,
    InvalidThread,
    NotFound,
    SquidError,
    StaleClaim,
    TerminalRun,
)
from squid_dagster.workflow import Retry, StepContext, Workflow, path
from tests.runtime.runs import MakeSquid, complete_run, facts, finish, state_of
from tests.runtime.starts.child_workflows import Refund, claimed, context, one_child, parent, refund


def test_a_child_is_linked_to_its_parent_and_knows_it(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid([parent(one_child), refund("7")])
    snapshot = complete_run(squid, clock, "order")
    child_id = snapshot.outputs["claim"]
    (link,) = facts(squid, snapshot.run_id, "child_run_started")
    assert (link.child_run_id, link.child_workflow, link.child_trigger, link.child_key) == (
        child_id,
        "refund",
        "api",
        "a",
    )
    assert (link.origin.runnable_key, link.origin.step) == (f"{snapshot.run_id}:claim:1:1", "claim")
    assert link.metadata == {"why": "late", "token": "[REDACTED]"}
    started = facts(squid, child_id, "run_started")[0]
    assert started.input == {"amount": 5, "note": "none"}
    assert started.definition_version == "7"
    (view,) = snapshot.child_runs
    assert (view.child_run_id, view.child_key, view.step) == (child_id, "a", "claim")
    child = squid.inspect_run(child_id)
    assert child.parent_run is not None
    assert child.parent_run["run_id"] == snapshot.run_id
    assert (child.parent_run["step"], child.parent_run["child_key"]) == ("claim", "a")
    assert child.command_history[0].signal_type == "start_child_run"
    assert [row.run_id for row in squid.list_runs(parent_run_id=snapshot.run_id).runs] == [child_id]
    assert not snapshot.anomalies


def test_the_parent_waits_for_nobody_and_the_child_goes_on_alone(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid([parent(one_child), refund()])
    run_id = squid.start("order").run_id
    squid.execute_next()
    snapshot = squid.inspect_run(run_id)
    assert snapshot.status == "completed"
    assert squid.inspect_run(snapshot.outputs["claim"]).status == "running"
    assert finish(squid, clock, snapshot.outputs["claim"]).status == "completed"


def test_a_retried_step_finds_the_child_that_it_started_before(make_squid: MakeSquid, clock: VirtualClock) -> None:
    seen: list[tuple[str, bool]] = []

    def act(ctx: StepContext) -> None:
        receipt = ctx.start_child_run("refund", {"amount": 5}, child_key="a")
        seen.append((receipt.run_id, receipt.repeated))
        if ctx.attempt < 3:
            raise RuntimeError("after the child was started")

    squid = make_squid([parent(act, retry=Retry(max_attempts=3)), refund()])
    snapshot = complete_run(squid, clock, "order")
    assert len({run_id for run_id, _ in seen}) == 1
    assert [repeated for _, repeated in seen] == [False, True, True]
    (link,) = facts(squid, snapshot.run_id, "child_run_started")
    assert link.origin.attempt == 1, "the first link stands"
    assert len(facts(squid, seen[0][0], "run_started")) == 1


def test_a_key_counts_for_its_step_over_all_visits(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("order", entry="claim")
    seen: list[str] = []

    @wf.step(max_visits=2)
    def claim(ctx: StepContext) -> int:
        seen.append(ctx.start_child_run("refund", {"amount": 5}, child_key="a").run_id)
        return len(seen)

    @wf.step
    def other(ctx: StepContext) -> str:
        return str(ctx.start_child_run("refund", {"amount": 5}, child_key="a").run_id)

    wf.route(claim, to=claim, when=path("claim") < 2)
    wf.route(claim, to=other)
    wf.route(other, to="complete")
    squid = make_squid([wf, refund()])
    snapshot = complete_run(squid, clock, "order")
    assert seen[0] == seen[1]
    assert snapshot.outputs["other"] != seen[0], "another step has keys of its own"
    assert len(snapshot.child_runs) == 2


def test_one_step_may_start_many_children_in_many_workflows(make_squid: MakeSquid, clock: VirtualClock) -> None:
    async_parent = Workflow("order")

    @async_parent.step
    async def claim(ctx: StepContext) -> list[str]:
        many = [ctx.start_child_run("refund", {"amount": n}, child_key=f"n{n}").run_id for n in range(3)]
        return [*many, ctx.start_child_run("refund", {"amount": 9}, child_key="desk", trigger="desk").run_id]

    squid = make_squid([async_parent, refund()])
    children = complete_run(squid, clock, "order").outputs["claim"]
    assert len(set(children)) == 4
    assert [finish(squid, clock, child).outputs["pay"] for child in children] == [0, 1, 2, 9]
    assert squid.inspect_run(children[3]).trigger == "desk"


@pytest.mark.parametrize(
    ("workflow", "payload", "options"),
    [("refund", {"amount": 6}, {}), ("other", {"amount": 5}, {}), ("refund", {"amount": 5}, {"trigger": "desk"})],
    ids=["payload", "workflow", "trigger"],
)
def test_a_key_used_for_something_else_is_refused(
    make_squid: MakeSquid, workflow: str, payload: dict[str, Any], options: dict[str, Any]
) -> None:
    other = Workflow("other", payload=Refund)
    other.step(name="go")(lambda: None)
    squid = make_squid([parent(one_child), refund(), other])
    squid.start("order")
    claim = claimed(squid)
    squid.start_child_run(claim, "refund", {"amount": 5}, child_key="a")
    written = state_of(squid.journal)
    with pytest.raises(ConflictingCommand, match="child_key 'a'"):
        squid.start_child_run(claim, workflow, payload, child_key="a", **options)
    assert state_of(squid.journal) == written


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"payload": {"amount": "much"}}, InvalidPayload, "amount"),
        ({"payload": [1]}, InvalidPayload, "list"),
        ({"workflow": "nothing"}, NotFound, "nothing"),
        ({"trigger": "nightly"}, InvalidArgument, "nightly"),
        ({"child_key": "a b"}, InvalidThread, "child_key"),
        ({"child_key": ""}, InvalidThread, "child_key"),
        ({"queue": "a b"}, InvalidThread, "queue"),
        ({"metadata": {"x": object()}}, InvalidArgument, "JSON"),
        ({"parent": context("nobody")}, StaleClaim, "nobody"),
        ({"parent": "claim"}, InvalidArgument, "StepContext"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_child_that_makes_no_sense_is_refused_before_anything_is_written(
    make_squid: MakeSquid, arguments: dict[str, Any], error: type[SquidError], named: str
) -> None:
    squid = make_squid([parent(one_child), refund()])
    squid.start("order")
    claim = claimed(squid)
    written = state_of(squid.journal)
    usual = {"parent": claim, "workflow": "refund", "payload": {"amount": 5}, "child_key": "a"}
    with pytest.raises(error, match=named):
        squid.start_child_run(**{**usual, **arguments})
    assert state_of(squid.journal) == written


def test_a_parent_that_has_ended_starts_no_children(make_squid: MakeSquid) -> None:
    squid = make_squid([parent(one_child), refund()])
    run_id = squid.start("order").run_id
    claim = claimed(squid)
    squid.start_child_run(claim, "refund", {"amount": 5}, child_key="a")
    squid.dispatch_agent().complete(claim)
    written = state_of(squid.journal)
    with pytest.raises(TerminalRun, match=f"{run_id}.*completed"):
        squid.start_child_run(claim, "refund", {"amount": 5}, child_key="b")
    assert state_of(squid.journal) == written


def test_a_step_outside_of_a_worker_says_what_is_missing() -> None:
    with pytest.raises(RuntimeError, match="child_starter"):
        context("r").start_child_run("refund", {"amount": 5}, child_key="a")
