"""Trying again: retries with backoff and jitter, deferrals, failures that are final, and what counts as an attempt."""

from collections.abc import Callable
from datetime import timedelta
from itertools import cycle
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.errors import (
    ExpiredClaim,
)
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.workflow import Defer, Fail, Retry, StepContext, Workflow, path
from tests.runtime.linear_workflow import Order
from tests.runtime.runs import (
    MakeSquid,
    applied_steps,
    complete_run,
    drain,
    facts,
    finish,
    planned_steps,
    run_facts,
    seconds,
    unit,
)
from tests.runtime.workers import facts_of

Step = Callable[[StepContext], Any]


def flaky(step: Step, retry: Retry | None = None) -> Workflow:
    """Build a workflow of one step that does what a test wants."""
    wf = Workflow("flaky")

    @wf.step(retry=retry)
    def call(ctx: StepContext) -> Any:
        return step(ctx)

    wf.route(call, to="complete")
    return wf


def fails_until(last: int, error: Exception | None = None) -> Step:
    def step(ctx: StepContext) -> int:
        if ctx.attempt < last:
            raise error or RuntimeError(f"attempt {ctx.attempt}")
        return ctx.attempt

    return step


def pauses(squid: Squid, run_id: str) -> list[float]:
    """Return the time between each failure and its retry, in seconds."""
    failures = facts(squid, run_id, "attempt_failed")
    return [(f.retry_visible_at - f.occurred_at).total_seconds() for f in failures if f.retry_visible_at is not None]


def test_a_retry_is_another_attempt_at_the_same_visit(make_squid: MakeSquid, clock: VirtualClock) -> None:
    seen: list[tuple[str, str, int, int]] = []

    def step(ctx: StepContext) -> str:
        seen.append((ctx.runnable_key, ctx.idempotency_key, ctx.attempt, ctx.fencing_token))
        if ctx.attempt == 1:
            raise ConnectionError("down")
        return "up"

    squid = make_squid(flaky(step, Retry(max_attempts=2)))
    snapshot = complete_run(squid, clock, "flaky")
    run = snapshot.run_id
    assert snapshot.outputs == {"call": "up"}
    assert seen == [(f"{run}:call:1:1", f"{run}:call:1", 1, 1), (f"{run}:call:1:2", f"{run}:call:1", 2, 2)]
    assert planned_steps(squid, run) == ["call:1:1", "call:1:2"]
    assert applied_steps(squid, run) == ["call:1"], "the failed attempt is never applied"
    failure = facts(squid, run, "attempt_failed")[0]
    mirrored = facts(squid, run, "runnables_planned")[1].runnables[0]
    assert failure.retry_runnable_key == mirrored.runnable_key
    assert failure.retry_visible_at == mirrored.visible_at
    assert len(facts(squid, run, "attempt_scheduled")) == 1, "the failure itself creates the retry"
    assert not snapshot.anomalies


def test_pauses_grow_by_the_factor_up_to_the_maximum(make_squid: MakeSquid, clock: VirtualClock) -> None:
    policy = Retry(max_attempts=6, initial=seconds(1), factor=3, maximum=seconds(20))
    squid = make_squid(flaky(fails_until(6), policy))
    snapshot = complete_run(squid, clock, "flaky")
    assert snapshot.status == "completed"
    assert pauses(squid, snapshot.run_id) == [1, 3, 9, 20, 20]


def test_jitter_takes_away_its_share_of_the_pause(make_squid: MakeSquid, clock: VirtualClock) -> None:
    chances = cycle([0.0, 0.5, 1.0])
    policy = Retry(max_attempts=4, initial=seconds(8), factor=1, jitter=0.5)
    squid = make_squid(flaky(fails_until(4), policy), random_unit=lambda: next(chances))
    snapshot = complete_run(squid, clock, "flaky")
    assert pauses(squid, snapshot.run_id) == [8, 6, 4]


def test_a_retry_is_not_claimed_before_its_time(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(flaky(fails_until(2), Retry(max_attempts=2, initial=seconds(10))))
    run_id = squid.start("flaky").run_id
    assert drain(squid) == 1
    clock.advance(seconds(9.999999))
    assert squid.execute_next() is None
    assert squid.inspect_run(run_id).next_visible_at == clock.now() + timedelta(microseconds=1)
    clock.advance(timedelta(microseconds=1))
    assert drain(squid) == 1
    assert squid.inspect_run(run_id).status == "completed"


def test_the_pause_counts_from_the_failure_not_from_the_claim(make_squid: MakeSquid, clock: VirtualClock) -> None:
    def step(ctx: StepContext) -> None:
        clock.advance(seconds(60))
        if ctx.attempt == 1:
            raise RuntimeError("slow to fail")

    squid = make_squid(flaky(step, Retry(max_attempts=2, initial=seconds(5))))
    run_id = squid.start("flaky").run_id
    drain(squid)
    failure, claim = (facts(squid, run_id, name)[0] for name in ("attempt_failed", "attempt_claimed"))
    assert failure.occurred_at == claim.occurred_at + seconds(60)
    assert failure.retry_visible_at == failure.occurred_at + seconds(5)


def test_exhausted_retries_end_the_run_with_the_last_error(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(flaky(fails_until(99), Retry(max_attempts=3)))
    snapshot = complete_run(squid, clock, "flaky")
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert snapshot.error["message"] == "attempt 3"
    assert [f.retry_runnable_key is None for f in facts(squid, snapshot.run_id, "attempt_failed")] == [
        False,
        False,
        True,
    ]
    assert not snapshot.anomalies


def test_exhausted_retries_follow_the_error_route(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = flaky(fails_until(99), Retry(max_attempts=2))
    wf.step(name="apologise")(lambda: "sorry")
    wf.route("call", on="error", to="apologise")
    wf.route("apologise", to="complete")
    squid = make_squid(wf)
    snapshot = complete_run(squid, clock, "flaky")
    assert snapshot.status == "completed"
    assert planned_steps(squid, snapshot.run_id) == ["call:1:1", "call:1:2", "apologise:1:1"]
    assert applied_steps(squid, snapshot.run_id) == ["call:1", "apologise:1"]


def test_a_step_without_a_policy_is_tried_once(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(flaky(fails_until(2)))
    snapshot = complete_run(squid, clock, "flaky")
    assert snapshot.status == "failed"
    assert planned_steps(squid, snapshot.run_id) == ["call:1:1"]


def test_fail_is_final_whatever_the_policy_says(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(flaky(fails_until(99, Fail("declined", details={"code": 51})), Retry(max_attempts=9)))
    snapshot = complete_run(squid, clock, "flaky")
    assert snapshot.status == "failed"
    assert snapshot.error == {"type": "Fail", "message": "declined", "details": {"code": 51}}
    assert len(facts(squid, snapshot.run_id, "attempt_claimed")) == 1


def test_retries_begin_anew_with_each_visit(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("flaky", entry="call")

    @wf.step(retry=Retry(max_attempts=2), max_visits=2)
    def call(ctx: StepContext) -> str:
        if ctx.attempt == 1:
            raise RuntimeError("first")
        return ctx.idempotency_key

    wf.route(call, to=call, when=path("call") != "never")
    wf.route(call, to="complete")
    squid = make_squid(wf)
    snapshot = complete_run(squid, clock, "flaky")
    assert planned_steps(squid, snapshot.run_id) == ["call:1:1", "call:1:2", "call:2:1", "call:2:2"]
    assert applied_steps(squid, snapshot.run_id) == ["call:1", "call:2"]


def defers(times: int) -> Step:
    left = [times]

    def step(ctx: StepContext) -> str:
        if left[0]:
            left[0] -= 1
            raise Defer("not ready", after=seconds(30))
        return f"attempt {ctx.attempt}, claim {ctx.fencing_token}"

    return step


def test_a_deferral_brings_the_same_attempt_back_and_counts_as_nothing(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(flaky(defers(20), Retry(max_attempts=1)))
    started = clock.now()
    snapshot = complete_run(squid, clock, "flaky")
    assert snapshot.outputs == {"call": "attempt 1, claim 21"}, "neither attempts nor deliveries run out"
    assert clock.now() == started + seconds(600)
    assert planned_steps(squid, snapshot.run_id) == ["call:1:1"]
    first = facts(squid, snapshot.run_id, "attempt_released")[0]
    assert (first.reason, first.visible_at) == ("not ready", first.occurred_at + seconds(30))
    assert not snapshot.anomalies


def test_a_deferred_attempt_leaves_the_runs_own_thread_alone_and_is_not_seen_before_its_time(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(flaky(defers(1)))
    run_id = squid.start("flaky").run_id
    before = run_facts(squid, run_id)
    assert drain(squid) == 1
    assert run_facts(squid, run_id) == before
    assert squid.inspect_run(run_id).next_visible_at == clock.now() + seconds(30)
    clock.advance(seconds(29))
    assert squid.execute_next() is None
    clock.advance(seconds(1))
    assert drain(squid) == 1


def test_a_deferred_attempt_may_fail_and_be_retried(make_squid: MakeSquid, clock: VirtualClock) -> None:
    calls: list[int] = []

    def step(ctx: StepContext) -> str:
        calls.append(ctx.attempt)
        if len(calls) == 1:
            raise Defer(after=seconds(5))
        if len(calls) == 2:
            raise RuntimeError("now it fails")
        return "done"

    squid = make_squid(flaky(step, Retry(max_attempts=2)))
    snapshot = complete_run(squid, clock, "flaky")
    assert snapshot.outputs == {"call": "done"}
    assert calls == [1, 1, 2]
    assert not snapshot.anomalies


def test_cancelling_a_run_ends_its_retry(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(flaky(fails_until(2), Retry(max_attempts=2, initial=seconds(10))))
    run_id = squid.start("flaky").run_id
    drain(squid)
    squid.cancel(run_id)
    clock.advance(seconds(60))
    assert squid.execute_next() is None
    assert finish(squid, clock, run_id).status == "cancelled"
    assert not unit(squid, run_id).anomalies


@pytest.mark.parametrize(
    "error", [SystemExit(3), RecursionError("deep"), AssertionError()], ids=lambda e: type(e).__name__
)
def test_whatever_a_step_raises_is_a_failure(make_squid: MakeSquid, clock: VirtualClock, error: BaseException) -> None:
    def step(ctx: StepContext) -> None:
        raise error

    squid = make_squid(flaky(step))
    snapshot = complete_run(squid, clock, "flaky")
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert snapshot.error["type"] == type(error).__name__


def test_an_input_that_the_function_cannot_take_fails_without_a_retry(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    wf = Workflow("flaky")

    @wf.step
    def give() -> str:
        return "not a number"

    @wf.step(retry=Retry(max_attempts=5))
    def take(give: int) -> int:
        return give

    squid = make_squid(wf)
    snapshot = complete_run(squid, clock, "flaky")
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert snapshot.error["code"] == "invalid_input"
    assert "not a number" not in repr(snapshot.error), "a value may be a secret"
    assert planned_steps(squid, snapshot.run_id) == ["give:1:1", "take:1:1"]


def test_defect_04_completion_time_is_taken_before_the_step_runs(make_squid: MakeSquid, clock: VirtualClock) -> None:
    # The original: durations are lost, retry and wait delays are too short, and a lease that was overrun goes
    # unnoticed. Here times are taken after the step, by the storage's clock.
    workflow = Workflow("slow", payload=Order)

    @workflow.step(retry=Retry(max_attempts=2, initial=timedelta(minutes=1)))
    def step(ctx: StepContext, amount: int) -> None:
        clock.advance(timedelta(minutes=amount))
        if ctx.attempt == 1:
            raise ValueError("later")

    squid = make_squid(workflow)
    run_id = squid.start("slow", {"amount": 3}).run_id
    squid.execute_next(lease=timedelta(hours=1))
    (claimed,), (failed,) = (
        facts_of(squid.journal, run_id, "attempt_claimed"),
        facts_of(squid.journal, run_id, "attempt_failed"),
    )
    assert failed.occurred_at - claimed.occurred_at == timedelta(minutes=3)
    assert failed.retry_visible_at - failed.occurred_at == timedelta(minutes=1)
    clock.advance(timedelta(minutes=1))
    with pytest.raises(ExpiredClaim):
        squid.execute_next(lease=timedelta(minutes=2))
    assert not facts_of(squid.journal, run_id, "attempt_completed")


def test_defect_07_two_answers_to_which_idempotency_key_a_retry_has(make_squid: MakeSquid) -> None:
    # The original: a retry's planned runnable and its attempt carry different keys. Here plan, queue and step agree.
    keys: list[str] = []
    workflow = Workflow("flaky")

    @workflow.step(retry=Retry(max_attempts=3, initial=timedelta(0)))
    def step(ctx: StepContext) -> None:
        keys.append(ctx.idempotency_key)
        if ctx.attempt < 3:
            raise ValueError("again")

    squid = make_squid(workflow)
    run_id = squid.start("flaky").run_id
    drain(squid)
    unit = RunUnit.fold(squid.journal.read_run(run_id))
    planned = [
        attempt.runnable.idempotency_key for attempt in unit.run.planned.values() if attempt.runnable is not None
    ]
    queued = [attempt.idempotency_key for attempt in unit.dispatch.attempts.values()]
    assert keys == planned == queued == [f"{run_id}:step:1"] * 3
