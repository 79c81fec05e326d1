"""The agent of one queue, operation by operation, with the results that callers build on."""

from collections.abc import Collection
from typing import Any

import pytest

from squid_dagster.agents import DispatchAgent
from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import ClaimRef
from squid_dagster.journal.contract.notifier import LocalNotifier
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.errors import (
    ConflictingCompletion,
    ExpiredClaim,
    InvalidArgument,
    InvalidFact,
    InvalidThread,
    NotFound,
    StaleClaim,
    TerminalRun,
)
from tests.facts import runnable
from tests.runtime.agents.orders import LEASE, claimed, orders, unscheduled
from tests.runtime.runs import MakeSquid, drain, facts, planned_steps, run_facts, seconds, state_of, unit


def test_a_claim_carries_the_agent_the_attempt_the_lease_and_the_only_copy_of_its_token(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(orders())
    agent, claim = claimed(squid, amount=7)
    assert claim.agent is agent
    assert (claim.attempt.step, claim.attempt.input) == ("charge", {"amount": 7})
    assert (claim.attempt.status, claim.attempt.owner_id, claim.attempt.fencing_token) == ("claimed", "w", 1)
    assert claim.lease_until == clock.now() + LEASE
    assert claim.claim_id == claim.attempt.claim_id
    assert claim.claim_token
    assert claim.claim_token not in repr(claim)
    assert claim.claim_token not in repr(squid.journal.read_run(claim.attempt.run_id))
    assert agent.claim_next("w") is None


def test_many_are_claimed_at_once_in_claim_order(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    runs = [squid.start("orders", {}, priority=priority).run_id for priority in (0, 5, 0, 9)]
    claims = squid.dispatch_agent().claim_many("w", 3)
    assert [claim.attempt.run_id for claim in claims] == [runs[3], runs[1], runs[0]]
    assert len({claim.claim_token for claim in claims}) == 3


def test_a_heartbeat_extends_a_lease_and_never_shortens_it(make_squid: MakeSquid, clock: VirtualClock) -> None:
    agent, claim = claimed(make_squid(orders()))
    clock.advance(seconds(50))
    result = agent.heartbeat(claim, lease=LEASE)
    assert result.lease_until == result.attempt.lease_until == clock.now() + LEASE
    assert agent.heartbeat(claim, lease=seconds(1)).lease_until == clock.now() + LEASE


def test_a_completion_is_applied_and_planned_on_at_once(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    agent, claim = claimed(squid)
    result = agent.complete(claim, 7)
    assert (result.agent, result.attempt.status, result.attempt.result) == (agent, "completed", 7)
    run_id = claim.attempt.run_id
    assert run_facts(squid, run_id)[-2:] == ["runnable_applied", "runnables_planned"]
    assert planned_steps(squid, run_id) == ["charge:1:1", "ship:1:1"]
    written = state_of(squid.journal)
    assert agent.complete(claim, 7).attempt.status == "completed", "repeating it is no error"
    assert agent.complete(claim.claim.ref, 7).attempt.status == "completed"
    with pytest.raises(ConflictingCompletion, match="first one stands"):
        agent.complete(claim, 8)
    with pytest.raises(StaleClaim):
        agent.fail(claim, {"message": "after all"})
    assert state_of(squid.journal) == written


def test_a_failure_follows_the_error_route_or_is_retried(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(orders())
    agent, claim = claimed(squid)
    failed = agent.fail(claim, {"message": "busy", "api_key": "k"}, retry_after=seconds(5))
    assert (failed.attempt.status, failed.attempt.error) == ("failed", {"message": "busy", "api_key": "[REDACTED]"})
    assert planned_steps(squid, claim.attempt.run_id)[-1] == "charge:1:2"
    assert agent.fail(claim, {"message": "busy", "api_key": "k"}, retry_after=seconds(5)).attempt.status == "failed"
    assert agent.claim_next("w") is None
    clock.advance(seconds(5))
    again = agent.claim_next("w")
    assert again is not None
    assert (again.attempt.attempt_number, again.attempt.fencing_token) == (2, 2)
    agent.fail(again, {"message": "gone"})
    assert planned_steps(squid, claim.attempt.run_id)[-1] == "apologise:1:1"
    assert not unit(squid, claim.attempt.run_id).anomalies


def test_a_released_attempt_is_there_for_the_next_one_and_counts_as_nothing(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    agent, claim = claimed(squid)
    released = agent.release(claim, "shutting down")
    assert (released.attempt.status, released.attempt.deliveries, released.attempt.owner_id) == ("available", 0, None)
    assert facts(squid, claim.attempt.run_id, "attempt_released")[0].reason == "shutting down"
    again = agent.claim_next("v")
    assert again is not None
    assert (again.attempt.attempt_number, again.attempt.deliveries, again.attempt.fencing_token) == (1, 1, 2)


@pytest.mark.parametrize("operation", ["heartbeat", "complete", "fail", "release"])
def test_who_does_not_hold_the_claim_changes_nothing(
    make_squid: MakeSquid, clock: VirtualClock, operation: str
) -> None:
    squid = make_squid(orders())
    agent, claim = claimed(squid)
    ref = claim.claim.ref
    arguments: tuple[Any, ...] = ({"message": "no"},) if operation == "fail" else ()
    written = state_of(squid.journal)

    def refused(other: ClaimRef, error: type[Exception]) -> None:
        with pytest.raises(error):
            getattr(agent, operation)(other, *arguments)

    refused(ClaimRef(ref.queue, ref.run_id, ref.runnable_key, ref.claim_id, "another token"), StaleClaim)
    refused(ClaimRef(ref.queue, ref.run_id, ref.runnable_key, "another id", ref.token), StaleClaim)
    refused(ClaimRef(ref.queue, ref.run_id, "no such attempt", ref.claim_id, ref.token), NotFound)
    refused(ClaimRef("elsewhere", ref.run_id, ref.runnable_key, ref.claim_id, ref.token), NotFound)
    refused(ClaimRef(ref.queue, "nobody", ref.runnable_key, ref.claim_id, ref.token), NotFound)
    clock.advance(LEASE)
    refused(ref, ExpiredClaim)
    assert state_of(squid.journal) == written
    taken = agent.claim_next("v")
    assert taken is not None
    refused(ref, StaleClaim)
    squid.cancel(ref.run_id)
    refused(taken.claim.ref, TerminalRun)


def test_what_is_visible_and_what_has_expired_can_be_seen(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(orders())
    agent, claim = claimed(squid)
    waiting = squid.start("orders").run_id
    assert [attempt.run_id for attempt in agent.visible_attempts()] == [waiting]
    assert agent.expired_claims() == []
    clock.advance(LEASE)
    assert [expired.runnable_key for expired in agent.expired_claims()] == [claim.attempt.runnable_key]
    assert [attempt.run_id for attempt in agent.visible_attempts()] == [waiting]
    assert set(agent.projection.runs) == {waiting, claim.attempt.run_id}
    assert repr(agent) == "DispatchAgent('default')"


@pytest.mark.parametrize("result", [object(), {1, 2}, float("nan"), {"x": float("inf")}])
def test_a_result_that_is_not_json_is_refused_and_another_is_taken(make_squid: MakeSquid, result: object) -> None:
    squid = make_squid(orders())
    agent, claim = claimed(squid)
    written = state_of(squid.journal)
    with pytest.raises(InvalidFact):
        agent.complete(claim, result)
    assert state_of(squid.journal) == written
    assert agent.complete(claim, "fine").attempt.status == "completed"


def test_bad_arguments_are_named(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    agent, claim = claimed(squid)
    for act, error in (
        (lambda: squid.dispatch_agent("a b"), InvalidThread),
        (lambda: agent.claim_next(""), InvalidArgument),
        (lambda: agent.claim_many("w", 0), InvalidArgument),
        (lambda: agent.claim_many("w", 10_000), InvalidArgument),
        (lambda: agent.claim_next("w", lease=seconds(0)), InvalidArgument),
        (lambda: agent.heartbeat(claim, lease=seconds(-1)), InvalidArgument),
        (lambda: agent.release(claim, ""), InvalidArgument),
    ):
        with pytest.raises(error):
            act()


def test_planned_runnables_are_scheduled_once(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, planned = unscheduled(squid)
    agent = squid.dispatch_agent()
    assert agent.schedule_attempts(run_id, [planned]) == [planned]
    scheduled = facts(squid, run_id, "attempt_scheduled")[-1]
    assert (scheduled.runnable_key, scheduled.workflow) == (planned.runnable_key, "orders")
    written = state_of(squid.journal)
    assert agent.schedule_attempts(run_id, [planned]) == []
    assert state_of(squid.journal) == written


def test_a_runnable_of_another_run_or_queue_or_that_nobody_planned_is_refused(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, planned = unscheduled(squid)
    written = state_of(squid.journal)
    for bad in (
        runnable("another", "extra"),
        planned.model_copy(update={"queue": "slow"}),
        runnable(run_id, "never_planned"),
    ):
        with pytest.raises(InvalidArgument, match=bad.runnable_key):
            squid.dispatch_agent().schedule_attempts(run_id, [planned, bad])
    assert state_of(squid.journal) == written, "all or nothing"


def test_nothing_is_scheduled_for_a_run_that_has_ended(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, planned = unscheduled(squid)
    squid.cancel(run_id)
    written = state_of(squid.journal)
    assert squid.dispatch_agent().schedule_attempts(run_id, [planned]) == []
    assert state_of(squid.journal) == written


def test_that_workers_were_told_is_noted(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, planned = unscheduled(squid)
    squid.dispatch_agent().schedule_attempts(run_id, [planned])
    assert [fact.runnable_key for fact in facts(squid, run_id, "live_wakeup_emitted")] == [planned.runnable_key]
    assert not unit(squid, run_id).anomalies


def test_that_workers_were_told_is_noted_only_where_that_is_wanted_and_true(make_squid: MakeSquid) -> None:
    class BrokenNotifier(LocalNotifier):
        def notify(self, queues: Collection[str]) -> None:
            raise RuntimeError("away")

    for options in ({"record_wakeups": False}, {"notifier": BrokenNotifier(MemoryStorage())}):
        squid = make_squid(orders(), **options)
        run_id, planned = unscheduled(squid)
        assert squid.dispatch_agent().schedule_attempts(run_id, [planned]) == [planned]
        assert facts(squid, run_id, "live_wakeup_emitted") == []


class FastWorkerNotifier(LocalNotifier):
    """A notifier whose worker ends the run before the wakeup can be noted."""

    def __init__(self, squid: Squid) -> None:
        super().__init__(squid.journal)
        self._squid = squid

    def notify(self, queues: Collection[str]) -> None:
        drain(self._squid)
        for row in self._squid.list_runs(open_only=True).runs:
            self._squid.cancel(row.run_id)


def test_a_note_that_comes_too_late_is_dropped(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, planned = unscheduled(squid, "ship")
    runtime = squid.runtime
    agent = DispatchAgent(
        runtime.storage, runtime.dispatch, "default", plan=runtime.plan, notifier=FastWorkerNotifier(squid)
    )
    assert agent.schedule_attempts(run_id, [planned]) == [planned]
    assert facts(squid, run_id, "live_wakeup_emitted") == []
    assert not unit(squid, run_id).anomalies
