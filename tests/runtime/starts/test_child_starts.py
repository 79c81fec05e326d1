"""Child runs: started by a step, linked on the parent, once for the step and the key, whatever is repeated."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from squid_dagster.agents import ClaimResult
from squid_dagster.api import Squid
from squid_dagster.journal import MemoryStorage, PostgresStorage
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.postgres.transaction import Transaction
from squid_dagster.protocol.errors import (
    ConflictingCommand,
    ExpiredClaim,
    InvalidArgument,
    InvalidPayload,
    InvalidThread,
    NotFound,
    SquidError,
    StaleClaim,
    TerminalRun,
)
from squid_dagster.runtime.commands.child_runs import start_child_run, start_linked_child
from squid_dagster.workflow import Fail, Manual, Retry, StepContext, Workflow, path
from tests.runtime.runs import MakeSquid, complete_run, drain, facts, finish, run_facts, state_of, unit


class Refund(BaseModel):
    amount: int
    note: str = "none"


def refund(version: str | None = None, wait: int = 0) -> Workflow:
    wf = Workflow("refund", payload=Refund, version=version, triggers=[Manual("api"), Manual("desk")])

    @wf.step
    def pay(amount: int) -> int:
        return amount

    wf.wait("settle", timedelta(hours=1 + wait))
    wf.route(pay, to="settle")
    wf.route("settle", to="complete")
    return wf


def parent(act: Callable[[StepContext], Any], **options: Any) -> Workflow:
    wf = Workflow("order")

    @wf.step(**options)
    def claim(ctx: StepContext) -> Any:
        return act(ctx)

    wf.route(claim, to="complete")
    return wf


def one_child(ctx: StepContext) -> str:
    return str(
        ctx.start_child_run("refund", {"amount": 5}, child_key="a", metadata={"why": "late", "token": "t"}).run_id
    )


def context(run_id: str, step: str = "claim", attempt: int = 1) -> StepContext:
    """What a step of a run would be given."""
    key = f"{run_id}:{step}:1"
    return StepContext(
        run_id=run_id,
        workflow="order",
        step=step,
        runnable_key=f"{key}:{attempt}",
        idempotency_key=key,
        attempt=attempt,
    )


def claimed(squid: Squid, lease: timedelta = timedelta(minutes=5)) -> ClaimResult:
    """Return a claim on what is due next."""
    claim = squid.dispatch_agent().claim_next("w", lease=lease)
    assert claim is not None
    return claim


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


# --- the fence ------------------------------------------------------------------------------------------------------


def test_a_context_made_by_hand_starts_no_children(make_squid: MakeSquid) -> None:
    squid = make_squid([parent(one_child), refund()])
    run_id = squid.start("order").run_id
    claimed(squid)
    written = state_of(squid.journal)
    with pytest.raises(StaleClaim, match="holds no claim"):
        squid.start_child_run(context(run_id), "refund", {"amount": 5}, child_key="a")
    with pytest.raises(RuntimeError, match="child_starter"):
        context(run_id).start_child_run("refund", {"amount": 5}, child_key="a")
    assert state_of(squid.journal) == written


def test_a_steps_own_way_to_children_serves_no_other_run(make_squid: MakeSquid, clock: VirtualClock) -> None:
    refused: list[str] = []

    def act(ctx: StepContext) -> None:
        for forged in (replace(ctx, run_id=victim), replace(context(victim), child_starter=ctx.child_starter)):
            with pytest.raises(StaleClaim, match=victim) as caught:
                forged.start_child_run("refund", {"amount": 5}, child_key="a")
            refused.append(str(caught.value))
        assert "child_starter" not in repr(ctx)

    squid = make_squid([parent(act), refund()])
    victim = squid.start("order", queue="elsewhere").run_id
    assert complete_run(squid, clock, "order").status == "completed"
    assert len(refused) == 2
    assert facts(squid, victim, "child_run_started") == []


def test_a_step_may_use_any_squid_on_the_journal_for_its_children(make_squid: MakeSquid, clock: VirtualClock) -> None:
    def act(ctx: StepContext) -> list[str]:
        return [squid.start_child_run(ctx, "refund", {"amount": 5}, child_key="a").run_id for squid in (mine, other)]

    mine, other = make_squid([parent(act), refund()]), make_squid(refund())
    first, again = complete_run(mine, clock, "order").outputs["claim"]
    assert first == again


def _take_over(squid: Squid, claim: ClaimResult, clock: VirtualClock) -> None:
    clock.advance(claim.lease_until - clock.now())
    claimed(squid)


def _complete(squid: Squid, claim: ClaimResult, clock: VirtualClock) -> None:
    squid.dispatch_agent().complete(claim, "done")


def _fail(squid: Squid, claim: ClaimResult, clock: VirtualClock) -> None:
    squid.dispatch_agent().fail(claim, {"message": "no"}, retry_after=timedelta(minutes=1))


def _give_back(squid: Squid, claim: ClaimResult, clock: VirtualClock) -> None:
    squid.dispatch_agent().release(claim)


def _let_it_run_out(squid: Squid, claim: ClaimResult, clock: VirtualClock) -> None:
    clock.advance(claim.lease_until - clock.now())


def _cancel(squid: Squid, claim: ClaimResult, clock: VirtualClock) -> None:
    squid.cancel(claim.attempt.run_id)


@pytest.mark.parametrize(
    ("happens", "error"),
    [
        (_take_over, StaleClaim),
        (_complete, StaleClaim),
        (_fail, StaleClaim),
        (_give_back, StaleClaim),
        (_let_it_run_out, ExpiredClaim),
        (_cancel, TerminalRun),
    ],
)
def test_a_claim_that_does_not_hold_any_more_starts_no_children(
    make_squid: MakeSquid,
    clock: VirtualClock,
    happens: Callable[[Squid, ClaimResult, VirtualClock], None],
    error: type[SquidError],
) -> None:
    wf = Workflow("order")
    wf.step(name="claim")(one_child)
    wf.step(name="after", after=["claim"])(lambda: None)
    squid = make_squid([wf, refund()])
    squid.start("order")
    claim = claimed(squid, timedelta(minutes=1))
    start = partial(squid.start_child_run, claim, "refund", {"amount": 5}, queue="children")
    assert start(child_key="a").run_id == start(child_key="a").run_id
    happens(squid, claim, clock)
    written = state_of(squid.journal)
    for key in ("a", "b"):  # one that it has, and one more
        with pytest.raises(error):
            start(child_key=key)
    assert state_of(squid.journal) == written


def test_a_claim_with_a_wrong_token_starts_no_children(make_squid: MakeSquid) -> None:
    squid = make_squid([parent(one_child), refund()])
    squid.start("order")
    claim = claimed(squid)
    forged = replace(claim, claim=replace(claim.claim, ref=replace(claim.claim.ref, token="guessed")))
    with pytest.raises(StaleClaim):
        squid.start_child_run(forged, "refund", {"amount": 5}, child_key="a")
    assert facts(squid, claim.attempt.run_id, "child_run_started") == []


def test_a_zombie_whose_step_another_worker_completed_starts_no_children(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    def act(ctx: StepContext) -> None:
        if ctx.fencing_token == 1:  # the zombie: another worker takes over and completes the step while it runs
            clock.advance(timedelta(hours=1))
            assert squid.execute_next() is not None
        ctx.start_child_run("refund", {"amount": 5}, child_key=f"by-{ctx.fencing_token}")

    wf = Workflow("order")
    wf.step(name="claim")(act)
    wf.step(name="after", after=["claim"])(lambda: None)
    squid = make_squid([wf, refund()])
    run_id = squid.start("order").run_id
    with pytest.raises(StaleClaim):
        squid.execute_next()
    assert [link.child_key for link in facts(squid, run_id, "child_run_started")] == ["by-2"]


def test_a_takeover_in_the_middle_of_a_child_start_is_seen(clock: VirtualClock) -> None:
    class Disturbed(MemoryStorage):
        """Let another worker take over between the check of the fence and the commit, once."""

        armed = False

        def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
            if self.armed:
                self.armed = False
                clock.advance(timedelta(hours=1))
                claimed(squid)
            return super().commit(appends, commit_id)

    storage = Disturbed(clock)
    squid = Squid(storage, [parent(one_child), refund()])
    run_id = squid.start("order").run_id
    claim = claimed(squid)
    storage.armed = True
    with pytest.raises(StaleClaim):
        squid.start_child_run(claim, "refund", {"amount": 5}, child_key="a")
    assert facts(squid, run_id, "child_run_started") == []


def test_the_fence_costs_no_round_trip(postgres_virtual: PostgresStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    squid = Squid(postgres_virtual, [parent(one_child), refund()])
    run_id = squid.start("order").run_id
    claim = claimed(squid)
    sent: list[str] = []
    for name in ("_execute", "read_runs"):
        monkeypatch.setattr(Transaction, name, _counted(getattr(Transaction, name), sent))
    start_child_run(squid.runtime, claim.claim, "refund", {"amount": 5}, child_key="a")
    fenced, sent[:] = list(sent), []
    (link,) = facts(squid, run_id, "child_run_started")
    unfenced = link.model_copy(update={"child_run_id": "unfenced", "child_key": "b"})
    start_linked_child(squid.runtime, unfenced)
    assert fenced == sent


def _counted(method: Callable[..., Any], sent: list[str]) -> Callable[..., Any]:
    def counted(*given: Any) -> Any:
        sent.append(method.__name__)
        return method(*given)

    return counted


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
    above = [squid.inspect_run(each).parent_run for each in line]
    assert [each["run_id"] if each else None for each in above] == [None, *line[:-1]]
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


def test_a_step_outside_of_a_worker_says_what_is_missing() -> None:
    with pytest.raises(RuntimeError, match="child_starter"):
        context("r").start_child_run("refund", {"amount": 5}, child_key="a")
