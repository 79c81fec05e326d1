"""Child starts are checked against the claim of the step that asks for them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from squid_dagster.agents import ClaimResult
from squid_dagster.api import Squid
from squid_dagster.journal import MemoryStorage, PostgresStorage
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.postgres.transaction import Transaction
from squid_dagster.protocol.errors import (
    ExpiredClaim,
    SquidError,
    StaleClaim,
    TerminalRun,
)
from squid_dagster.runtime.commands.child_runs import start_child_run, start_linked_child
from squid_dagster.workflow import StepContext, Workflow
from tests.runtime.runs import MakeSquid, complete_run, facts, state_of
from tests.runtime.starts.child_workflows import claimed, context, one_child, parent, refund


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
    class InterleavedStorage(MemoryStorage):
        """Let another worker take over between the check of the fence and the commit, once."""

        armed = False

        def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
            if self.armed:
                self.armed = False
                clock.advance(timedelta(hours=1))
                claimed(squid)
            return super().commit(appends, commit_id)

    storage = InterleavedStorage(clock)
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
