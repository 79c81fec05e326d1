"""Built-in steps, deadlines and priorities: wait, log, pause, approval; evidence that is stored, order that is kept."""

import logging
from datetime import timedelta

import pytest
from pydantic import BaseModel

from squid_dagster import Signal, SignalType
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.errors import InvalidFact, InvalidTransition
from squid_dagster.workflow import Deadline, StepContext, Workflow
from tests.runtime.runs import MakeSquid, applied_steps, claims, complete_run, drain, facts, finish, run_facts, seconds


class Order(BaseModel):
    amount: int = 1


def chain(wf: Workflow, *names: str) -> Workflow:
    for name, following in zip(names, [*names[1:], "complete"], strict=True):
        wf.route(name, to=following)
    return wf


def test_a_wait_is_a_runnable_that_becomes_visible_when_it_is_over(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("orders")
    wf.step(name="order")(lambda: None)
    wf.wait("settle", timedelta(days=3))
    wf.step(name="collect")(lambda: "money")
    squid = make_squid(chain(wf, "order", "settle", "collect"))
    run_id = squid.start("orders").run_id
    clock.advance(seconds(7))
    drain(squid)
    waits_until = clock.now() + timedelta(days=3)
    assert squid.inspect_run(run_id).next_visible_at == waits_until
    clock.advance(timedelta(days=3) - timedelta(microseconds=1))
    assert squid.execute_next() is None
    clock.advance(timedelta(microseconds=1))
    assert drain(squid) == 2
    snapshot = squid.inspect_run(run_id)
    assert (snapshot.status, snapshot.outputs) == ("completed", {"order": None, "collect": "money"})
    assert applied_steps(squid, run_id) == ["order:1", "settle:1", "collect:1"]


def test_a_wait_counts_from_the_moment_the_step_before_it_was_done(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("orders")
    wf.step(name="order")(lambda: clock.advance(seconds(50)) and None)
    wf.wait("settle", seconds(10))
    squid = make_squid(chain(wf, "order", "settle"))
    run_id = squid.start("orders").run_id
    squid.execute_next()
    done = facts(squid, run_id, "attempt_completed")[0]
    assert facts(squid, run_id, "attempt_scheduled")[1].visible_at == done.occurred_at + seconds(10)


def test_a_workflow_may_begin_with_a_wait_or_a_pause(make_squid: MakeSquid, clock: VirtualClock) -> None:
    waiting, pausing = Workflow("waiting"), Workflow("pausing")
    waiting.wait("later", seconds(5))
    pausing.pause("gate")
    squid = make_squid([chain(waiting, "later"), chain(pausing, "gate")])
    assert complete_run(squid, clock, "waiting").status == "completed"
    paused = squid.start("pausing").run_id
    assert run_facts(squid, paused) == ["run_signal_received", "run_started", "manual_step_paused"]
    assert facts(squid, paused, "run_queued"), "the run belongs to its queue from the start"
    squid.resume(paused)
    assert squid.inspect_run(paused).status == "completed"


def test_a_log_step_writes_its_line_with_the_run(
    make_squid: MakeSquid, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    wf = Workflow("orders")
    wf.log("note", "half way there", level="warning")
    squid = make_squid(chain(wf, "note"))
    with caplog.at_level(logging.INFO, logger="squid_dagster.step"):
        snapshot = complete_run(squid, clock, "orders")
    lines = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "squid_dagster.step"]
    assert lines == [("WARNING", f"{snapshot.run_id}: half way there")]
    assert (snapshot.status, snapshot.outputs) == ("completed", {})


def test_a_pause_stands_still_until_it_is_resumed(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("orders")
    wf.step(name="order")(lambda: None)
    wf.pause("gate", output="gate")
    wf.step(name="ship")(lambda: "shipped")
    squid = make_squid(chain(wf, "order", "gate", "ship"))
    run_id = squid.start("orders").run_id
    drain(squid)
    snapshot = squid.inspect_run(run_id)
    assert snapshot.status == "paused"
    assert snapshot.manual_state is not None
    assert (snapshot.manual_state.step, snapshot.manual_state.kind) == ("gate", "pause")
    assert not any(attempt.step == "gate" for attempt in snapshot.attempts), "a person's step is never scheduled"
    clock.advance(timedelta(days=400))
    assert squid.execute_next() is None
    squid.resume(run_id, actor="ada")
    assert finish(squid, clock, run_id).outputs == {"order": None, "gate": {}, "ship": "shipped"}


def test_an_approval_gives_who_decided_what_and_when_to_later_steps(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("orders")
    wf.approval("review", output="verdict")

    @wf.step
    def act(verdict: dict[str, object]) -> object:
        return verdict["decision"]

    wf.route("review", to=act)
    wf.route("review", on="error", to=act)
    wf.route(act, to="complete")
    squid = make_squid(wf)
    for command, decision in ((squid.approve, "approved"), (squid.reject, "rejected")):
        run_id = squid.start("orders").run_id
        clock.advance(timedelta(days=3))
        command(run_id, actor="ada", comment="seen", metadata={"ticket": 7})
        snapshot = finish(squid, clock, run_id)
        assert snapshot.outputs["act"] == decision
        assert snapshot.outputs["verdict"] == {
            "decision": decision,
            "actor": "ada",
            "decided_at": clock.now().isoformat(),
            "comment": "seen",
            "metadata": {"ticket": 7},
        }


def test_a_decision_that_names_its_step_never_falls_on_the_next_one(make_squid: MakeSquid) -> None:
    wf = Workflow("orders", entry="review")
    wf.approval("review")
    wf.approval("payment")
    wf.pause("delivery")
    wf.route("review", to="payment")
    wf.route("review", on="error", to="fail")
    wf.route("payment", to="delivery")
    wf.route("payment", on="error", to="fail")
    wf.route("delivery", to="complete")
    squid = make_squid(wf)
    run_id = squid.start("orders").run_id
    squid.approve(run_id, actor="ada", step="review")
    for late in (squid.approve, squid.reject):  # of another person, who saw it waiting at the review
        with pytest.raises(InvalidTransition, match="waits at 'payment', not at 'review'"):
            late(run_id, actor="grace", step="review")
    late_command = Signal(type=SignalType.APPROVE_RUN, payload={"run_id": run_id, "step": "review"}, actor="grace")
    with pytest.raises(InvalidTransition, match="not at 'review'"):
        squid.apply_signal(late_command)
    squid.approve(run_id, actor="ada", step="payment", idempotency_key="once")
    assert squid.approve(run_id, actor="ada", step="payment", idempotency_key="once").repeated
    with pytest.raises(InvalidTransition, match="waits at 'delivery', not at 'payment'"):
        squid.resume(run_id, step="payment")
    squid.resume(run_id, step="delivery")
    assert squid.inspect_run(run_id).status == "completed"


def test_an_approval_in_a_loop_is_asked_again(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("orders", entry="draft")
    wf.step(name="draft", max_visits=2)(lambda: None)
    wf.approval("review")
    wf.route("draft", to="review")
    wf.route("review", to="complete")
    wf.route("review", on="error", to="draft")
    squid = make_squid(wf)
    run_id = squid.start("orders").run_id
    for expected in (1, 2):
        drain(squid)
        state = squid.inspect_run(run_id).manual_state
        assert state is not None
        assert state.metadata["visit"] == expected
        squid.reject(run_id, actor="ada", comment=f"round {expected}")
    snapshot = finish(squid, clock, run_id)
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert "max_visits" in snapshot.error["message"]
    assert snapshot.error["cause"]["decision"]["comment"] == "round 2"
    assert not snapshot.anomalies


def test_an_approval_that_leads_back_to_itself_is_counted_too(make_squid: MakeSquid) -> None:
    wf = Workflow("orders", entry="review")
    wf.approval("review", max_visits=3)
    wf.route("review", to="complete")
    wf.route("review", on="error", to="review")
    squid = make_squid(wf)
    run_id = squid.start("orders").run_id
    for expected in (1, 2, 3):
        state = squid.inspect_run(run_id).manual_state
        assert state is not None
        assert state.metadata["visit"] == expected
        squid.reject(run_id, actor="ada")
    assert squid.inspect_run(run_id).status == "failed"


def test_deadlines_are_stored_with_the_plan_and_the_pause_and_fire_nothing(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    deadline = Deadline(timedelta(hours=2), due_soon=timedelta(minutes=30), escalate_after=timedelta(hours=1))
    wf = Workflow("orders")
    wf.step(name="order", deadline=deadline)(lambda: None)
    wf.approval("review", deadline=timedelta(hours=4))
    wf.route("order", to="review")
    wf.route("review", to="complete")
    wf.route("review", on="error", to="fail")
    squid = make_squid(wf)
    run_id = squid.start("orders").run_id
    at = clock.now()
    planned = facts(squid, run_id, "runnables_planned")[0].runnables[0]
    assert planned.deadline == {
        "due_at": (at + timedelta(hours=2)).isoformat(),
        "due_soon_at": (at + timedelta(hours=1.5)).isoformat(),
        "escalate_at": (at + timedelta(hours=3)).isoformat(),
    }
    clock.advance(timedelta(hours=5))
    drain(squid)
    paused = facts(squid, run_id, "manual_step_paused")[0]
    assert paused.metadata == {"visit": 1, "deadline": {"due_at": (clock.now() + timedelta(hours=4)).isoformat()}}
    clock.advance(timedelta(days=9))
    assert squid.execute_next() is None
    snapshot = squid.inspect_run(run_id)
    assert snapshot.status == "paused"
    assert snapshot.deadline is not None
    assert snapshot.deadline.state == "overdue"


def test_priority_is_the_steps_own_else_the_runs(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("orders")
    wf.step(name="first")(lambda: None)
    wf.step(name="urgent", priority=9)(lambda: None)
    wf.step(name="idle", priority=-10)(lambda: None)
    wf.step(name="usual", priority=0)(lambda: None)
    squid = make_squid(chain(wf, "first", "urgent", "idle", "usual"))
    run_id = squid.start("orders", priority=4).run_id
    finish(squid, clock, run_id)
    given = {fact.step: fact.priority for fact in facts(squid, run_id, "attempt_scheduled")}
    assert given == {"first": 4, "urgent": 9, "idle": -10, "usual": 0}


def test_what_is_more_urgent_is_claimed_first_then_what_is_due_longer(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    wf = Workflow("orders", payload=Order)
    wf.step(name="go")(lambda: None)
    squid = make_squid(chain(wf, "go"))
    runs = {}
    for name, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 10)):
        runs[squid.start("orders", priority=priority).run_id] = name
        clock.advance(seconds(1))
    drain(squid)
    order = [runs[key.partition(":")[0]] for key in claims(squid)]
    assert order == ["high", "first", "second", "low"]


@pytest.mark.parametrize("priority", [-11, 11])
def test_a_priority_out_of_range_is_refused_and_nothing_is_written(make_squid: MakeSquid, priority: int) -> None:
    wf = Workflow("orders")
    wf.step(name="go")(lambda: None)
    squid = make_squid(chain(wf, "go"))
    with pytest.raises(InvalidFact, match=str(priority)):
        squid.start("orders", priority=priority)
    assert squid.journal.cut() == 0 or not squid.journal.read_between(0, squid.journal.cut())


def test_async_and_sync_steps_see_the_same_context(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("orders", payload=Order)

    @wf.step
    def sync(ctx: StepContext, amount: int) -> list[object]:
        return [ctx.workflow, ctx.run_id, ctx.attempt, amount, bool(ctx.cancelled)]

    @wf.step
    async def later(ctx: StepContext, sync: list[object]) -> bool:
        return [ctx.workflow, ctx.run_id, ctx.attempt, ctx.state["amount"], bool(ctx.cancelled)] == sync

    squid = make_squid(chain(wf, "sync", "later"))
    assert complete_run(squid, clock, "orders", {"amount": 3}).outputs["later"] is True
