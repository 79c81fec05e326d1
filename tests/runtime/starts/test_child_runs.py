"""Queues, definitions, payloads and parents of child runs."""

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.errors import (
    ConflictingCommand,
)
from squid_dagster.workflow import Fail, StepContext, Workflow
from tests.runtime.runs import MakeSquid, complete_run, drain, facts, finish, run_facts, unit
from tests.runtime.starts.child_workflows import Refund, claimed, one_child, parent, refund


def test_children_go_to_their_parents_queue_unless_another_is_named(make_squid: MakeSquid) -> None:
    def act(ctx: StepContext) -> list[str]:
        usual = ctx.start_child_run("refund", {"amount": 1}, child_key="a")
        return [usual.run_id, ctx.start_child_run("refund", {"amount": 1}, child_key="b", queue="fast").run_id]

    squid = make_squid([parent(act), refund()])
    run_id = squid.start("order", queue="slow").run_id
    drain(squid, "slow")
    usual, named = squid.inspect_run(run_id).outputs["claim"]
    assert squid.inspect_run(usual).queue == "slow"
    assert squid.inspect_run(named).queue == "fast"


def test_a_workflow_given_as_an_object_is_started_in_its_own_version(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    old, new = refund("1"), refund("2", wait=5)

    def act(ctx: StepContext) -> list[str]:
        chosen = {"old": old, "new": new, "named": "refund"}
        return [ctx.start_child_run(wf, {"amount": 1}, child_key=key).run_id for key, wf in chosen.items()]

    squid = make_squid([old, new, parent(act)])
    children = complete_run(squid, clock, "order").outputs["claim"]
    versions = [facts(squid, child, "run_started")[0].definition_version for child in children]
    assert versions == ["1", "2", "2"]


def test_a_payload_may_be_an_object_of_the_contract(make_squid: MakeSquid, clock: VirtualClock) -> None:
    def act(ctx: StepContext) -> str:
        first = ctx.start_child_run("refund", Refund(amount=3), child_key="a")
        assert ctx.start_child_run("refund", Refund(amount=3), child_key="a").run_id == first.run_id
        return str(first.run_id)

    squid = make_squid([parent(act), refund()])
    child = complete_run(squid, clock, "order").outputs["claim"]
    assert finish(squid, clock, child).outputs == {"pay": 3}


def test_a_key_is_answered_after_the_childs_definition_changed(make_squid: MakeSquid) -> None:
    first_squid = make_squid([parent(one_child), refund("1")])
    first_squid.start("order")
    claim = claimed(first_squid)
    first = first_squid.start_child_run(claim, "refund", {"amount": 5}, child_key="a")
    newer = make_squid([parent(one_child), refund("2", wait=3)])
    again = newer.start_child_run(claim, "refund", {"amount": 5}, child_key="a")
    assert (again.run_id, again.received_at, again.repeated) == (first.run_id, first.received_at, True)
    with pytest.raises(ConflictingCommand):
        newer.start_child_run(claim, "refund", {"amount": 6}, child_key="a")


def test_a_child_that_cannot_be_started_fails_the_step_with_a_reason(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    def act(ctx: StepContext) -> None:
        ctx.start_child_run("refund", {"amount": "much"}, child_key="a")

    squid = make_squid([parent(act), refund()])
    snapshot = complete_run(squid, clock, "order")
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert snapshot.error["type"] == "InvalidPayload"


def test_children_of_children_know_their_own_parents(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("tree", payload=Refund)

    @wf.step
    def grow(ctx: StepContext, amount: int) -> str | None:
        if amount == 0:
            raise Fail("a leaf")
        return str(ctx.start_child_run("tree", {"amount": amount - 1}, child_key="next").run_id)

    wf.route(grow, to="complete")
    squid = make_squid(wf)
    run_id = squid.start("tree", {"amount": 3}).run_id
    drain(squid)
    line = [run_id]
    while children := squid.inspect_run(line[-1]).child_runs:
        line.append(children[0].child_run_id)
    assert len(line) == 4
    above = [squid.inspect_run(run_id).parent_run for run_id in line]
    assert [parent["run_id"] if parent else None for parent in above] == [None, *line[:-1]]
    assert squid.inspect_run(line[-1]).status == "failed"
    assert squid.inspect_run(run_id).status == "completed"


def test_a_link_and_its_child_are_written_together_or_the_link_first(make_squid: MakeSquid) -> None:
    squid = make_squid([parent(one_child), refund()])
    run_id = squid.start("order").run_id
    claim = claimed(squid)
    before = squid.journal.cut()
    child = squid.start_child_run(claim, "refund", {"amount": 5}, child_key="a").run_id
    written = [(e.fact.type, e.thread) for e in squid.journal.read_between(before, squid.journal.cut())]
    link = ("child_run_started", f"squid:run:{run_id}")
    assert link in written
    assert [fact_type for fact_type, thread in written if thread == f"squid:run:{child}"] == run_facts(squid, child)
    if not squid.journal.atomic_across_threads:
        assert written[0] == link
    assert not unit(squid, run_id).anomalies
    assert not unit(squid, child).anomalies
