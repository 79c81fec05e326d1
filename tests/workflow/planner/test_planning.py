"""The planner by itself: which facts follow from what, and that it changes nothing that it was given."""

from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from squid_dagster.protocol import RunStarted
from squid_dagster.protocol.errors import InvalidTransition
from squid_dagster.workflow import Deadline, Workflow, path
from squid_dagster.workflow.planner.planner import plan_resolution, plan_settled, plan_start
from squid_dagster.workflow.planner.schedule import plan_end, plan_retry, queue_of, unprogressed
from tests.facts import t, terminal
from tests.workflow.planner.folded_run import RUN, Error, FoldedRun, Lost, Ok, types


class Order(BaseModel):
    order_id: str = "o-1"
    amount: int = 1


def nothing() -> None:
    """Succeed."""


def orders() -> Workflow:
    wf = Workflow("orders", payload=Order)

    @wf.step(priority=4, max_deliveries=3, irreversible=True, deadline=Deadline(timedelta(seconds=90)))
    def charge(order_id: str, amount: int) -> None: ...

    @wf.step
    def ship(charge: Any, amount: int = 0) -> None: ...

    wf.route(charge, to=ship)
    wf.route(ship, to="complete")
    return wf


def test_a_start_plans_and_schedules_the_entry_with_all_that_its_step_says() -> None:
    run = FoldedRun(orders(), {"amount": 7}, queue="slow", priority=-2)
    assert types(entry.fact for entry in run.entries) == [
        "run_started",
        "run_queued",
        "runnables_planned",
        "attempt_scheduled",
    ]
    planned: Any = run.entries[2].fact
    (runnable,) = planned.runnables
    assert (runnable.runnable_key, runnable.idempotency_key, runnable.attempt_number) == (
        f"{RUN}:charge:1:1",
        f"{RUN}:charge:1",
        1,
    )
    assert (runnable.queue, runnable.priority, runnable.max_deliveries) == ("slow", 4, 3)
    assert (runnable.input, runnable.visible_at) == ({"order_id": "o-1", "amount": 7}, t(0))
    assert runnable.deadline == {"due_at": t(90).isoformat()}
    assert runnable.recovery == {
        "irreversible": True,
        "compensated": False,
        "replay": "manual_review_required",
        "recovery": "manual_intervention",
    }
    scheduled: Any = run.entries[3].fact
    for name in ("runnable_key", "input", "queue", "priority", "max_deliveries", "visible_at"):
        assert getattr(scheduled, name) == getattr(runnable, name)
    assert scheduled.definition_fingerprint == run.definition.fingerprint


def test_a_success_applies_decides_plans_and_schedules_in_this_order() -> None:
    run = FoldedRun(orders())
    facts = run.settle(charge=Ok({"id": 9}))
    assert types(facts) == ["runnable_applied", "runnables_planned", "attempt_scheduled"]
    applied, planned, scheduled = facts
    assert (applied.result, applied.transition) == ({"id": 9}, {"from": "charge", "on": "ok", "to": "ship"})
    assert planned.runnables[0].input == {"charge": {"id": 9}, "amount": 1}
    assert scheduled.priority == 0, "the run's own"
    assert {fact.occurred_at for fact in facts} == {t(run.at)}
    assert types(run.settle(ship=Ok())) == ["runnable_applied", "run_terminal"]
    assert run.unit.run.status == "completed"
    assert run.unit.anomalies == []


def test_a_failure_with_a_retry_is_only_mirrored_and_a_final_one_ends_the_run() -> None:
    run = FoldedRun(orders())
    (mirrored,) = run.settle(charge=Error("busy", retry_after=5))
    again = mirrored.runnables[0]
    assert (again.runnable_key, again.attempt_number, again.visible_at) == (f"{RUN}:charge:1:2", 2, t(run.at + 5))
    assert again.input == {"order_id": "o-1", "amount": 1}
    assert again.max_deliveries == 3
    applied, end = run.settle(charge=Error("declined"))
    assert applied.runnable_key == f"{RUN}:charge:1:2"
    assert applied.transition == {"from": "charge", "on": "error", "to": "fail", "error": {"message": "declined"}}
    assert (end.status, end.error) == ("failed", {"message": "declined"})
    assert list(run.unit.run.applied) == [f"{RUN}:charge:1:2"], "the first attempt was never applied"
    assert run.unit.anomalies == []


def test_planning_changes_nothing_and_gives_the_same_for_the_same() -> None:
    run = FoldedRun(orders())
    attempt = run.outcome("charge", Ok(1))
    before = deepcopy(run.unit)
    first, second = run.plan(attempt), run.plan(attempt)
    assert first == second
    assert run.unit == before


def test_nothing_follows_twice_or_from_what_is_not_the_runs() -> None:
    run = FoldedRun(orders())
    attempt = run.outcome("charge", Ok(1))
    assert run.plan(attempt, attempt) == run.plan(attempt), "named twice"
    run.write(run.plan(attempt))
    assert run.plan(attempt) == [], "applied already"
    assert run.plan(attempt._replace(runnable_key=f"{RUN}:unplanned:1:1")) == []
    assert run.plan(run.attempt("ship")) == [], "still open"
    done = run.outcome("ship", Ok())
    run.write([terminal(RUN, at=run.at, status="cancelled")])
    assert run.plan(done) == [], "the run has ended"


def test_a_mirrored_retry_is_not_planned_again() -> None:
    run = FoldedRun(orders())
    failed = run.outcome("charge", Error("busy", retry_after=5))
    assert types(run.write(run.plan(failed))) == ["runnables_planned"]
    assert run.plan(failed) == []


def test_a_dead_letter_is_left_only_along_an_error_route() -> None:
    waiting = FoldedRun(orders())
    assert waiting.settle(charge=Lost()) == []
    routed = orders()
    routed.step(name="apologise")(nothing)
    routed.route("charge", on="error", to="apologise")
    routed.route("apologise", to="complete")
    run = FoldedRun(routed)
    facts = run.settle(charge=Lost())
    assert types(facts) == ["runnable_applied", "runnables_planned", "attempt_scheduled"]
    assert facts[0].transition["error"]["code"] == "dead_letter"
    assert run.open() == ["apologise:1:1"]


# --- fan-out and join -----------------------------------------------------------------------------------------------


def diamond(**options: Any) -> Workflow:
    wf = Workflow("diamond")
    wf.step(name="root", **options)(nothing)
    wf.step(name="left", after=["root"])(nothing)
    wf.step(name="right", after=["root"])(nothing)
    wf.step(name="join", after=["left", "right"])(nothing)
    return wf


def test_a_fan_out_is_one_plan_and_the_join_is_planned_by_the_last_one() -> None:
    run = FoldedRun(diamond())
    facts = run.settle(root=Ok())
    assert types(facts) == ["runnable_applied", "runnables_planned", "attempt_scheduled", "attempt_scheduled"]
    assert types(run.settle(right=Ok())) == ["runnable_applied"]
    assert types(run.settle(left=Ok())) == ["runnable_applied", "runnables_planned", "attempt_scheduled"]
    assert types(run.settle(join=Ok())) == ["runnable_applied", "run_terminal"]


def test_siblings_that_end_together_plan_the_join_once() -> None:
    run = FoldedRun(diamond())
    run.settle(root=Ok())
    facts = run.settle(left=Ok(), right=Ok())
    assert types(facts) == ["runnable_applied", "runnable_applied", "runnables_planned", "attempt_scheduled"]
    assert run.unit.anomalies == []


def test_the_first_failure_ends_the_run_and_fences_what_is_open() -> None:
    run = FoldedRun(diamond())
    run.settle(root=Ok())
    assert types(run.settle(left=Error())) == ["runnable_applied", "run_fenced", "run_terminal"]
    assert run.open() == []


def test_siblings_that_fail_together_end_the_run_once_with_the_first_error() -> None:
    run = FoldedRun(diamond())
    run.settle(root=Ok())
    facts = run.settle(left=Error("first"), right=Error("second"))
    assert types(facts) == ["runnable_applied", "run_fenced", "run_terminal"]
    assert run.unit.run.terminal_error == {"message": "first"}


def test_what_a_sibling_has_just_planned_is_not_put_on_the_queue_of_a_run_that_ends() -> None:
    wf = diamond()
    wf.step(name="later", after=["left"])(nothing)
    run = FoldedRun(wf)
    run.settle(root=Ok())
    facts = run.settle(left=Ok(), right=Error())
    assert types(facts) == [
        "runnable_applied",
        "runnables_planned",
        "runnable_applied",
        "run_fenced",
        "run_terminal",
    ]
    assert run.unit.anomalies == []
    assert run.open() == []


def test_a_success_beside_a_failure_in_the_same_commit_is_undone_where_that_is_declared() -> None:
    wf = Workflow("pair")
    wf.step(name="good", compensate=nothing)(nothing)
    wf.step(name="bad")(nothing)
    either: list[dict[str, Ok | Error | Lost]] = [{"good": Ok(), "bad": Error()}, {"bad": Error(), "good": Ok()}]
    for outcomes in either:
        run = FoldedRun(wf)
        run.settle(**outcomes)
        assert run.open() == ["compensate:good:1:1"]
        run.settle(**{"compensate:good": Ok()})
        assert run.unit.run.status == "failed"
        assert run.unit.anomalies == []


# --- decisions, loops and conditions --------------------------------------------------------------------------------


def review() -> Workflow:
    wf = Workflow("review", payload=Order, entry="draft")
    wf.step(name="draft", max_visits=2)(nothing)
    wf.approval("ask", deadline=timedelta(hours=1))
    wf.route("draft", to="ask")
    wf.route("ask", to="complete")
    wf.route("ask", on="error", to="draft")
    return wf


def test_a_manual_step_pauses_and_is_never_scheduled() -> None:
    run = FoldedRun(review())
    facts = run.settle(draft=Ok())
    assert types(facts) == ["runnable_applied", "manual_step_paused"]
    assert (facts[1].kind, facts[1].metadata["visit"]) == ("approval", 1)
    assert facts[1].metadata["deadline"] == {"due_at": t(run.at + 3600).isoformat()}
    assert run.open() == []


def test_a_decision_is_resolved_with_its_transition_and_planned_on() -> None:
    run = FoldedRun(review())
    run.settle(draft=Ok())
    facts = run.resolve("rejected", decision="rejected")
    assert types(facts) == ["manual_step_resolved", "runnables_planned", "attempt_scheduled"]
    assert facts[0].transition["to"] == "draft"
    assert facts[0].transition["error"]["code"] == "rejected"
    assert run.open() == ["draft:2:1"]
    run.settle(draft=Ok())
    assert types(run.resolve("approved")) == ["manual_step_resolved", "run_terminal"]
    assert run.unit.anomalies == []


@pytest.mark.parametrize("action", ["resumed", "approved", "rejected"])
def test_a_decision_that_nobody_waits_for_is_refused(action: str) -> None:
    run = FoldedRun(review())
    with pytest.raises(InvalidTransition, match="running"):
        run.resolve(action)
    run.settle(draft=Ok())
    if action == "resumed":
        with pytest.raises(InvalidTransition, match="waits at approval 'ask'"):
            run.resolve(action)
    run.write([terminal(RUN, at=run.at, status="cancelled")])
    with pytest.raises(InvalidTransition, match="cancelled"):
        plan_resolution(run.definition, run.unit.run, action, {}, {}, t(run.at))


def test_spent_visits_fail_the_run_and_keep_what_led_there() -> None:
    run = FoldedRun(review())
    for _ in range(2):
        run.settle(draft=Ok())
        facts = run.resolve("rejected", comment="no")
    assert types(facts) == ["manual_step_resolved", "run_terminal"]
    error = run.unit.run.terminal_error
    assert error is not None
    assert "max_visits" in error["message"]
    assert error["cause"]["code"] == "rejected"


def test_a_condition_sees_payload_outputs_and_the_error_but_the_first_that_holds_wins() -> None:
    wf = Workflow("orders", payload=Order)
    wf.step(name="charge")(nothing)
    for name in ("a", "b", "c", "d"):
        wf.step(name=name)(nothing)
        wf.route(name, to="complete")
    wf.route("charge", to="a", when=path("amount") > 100)
    wf.route("charge", to="b", when=path("charge.score") > 5)
    wf.route("charge", to="complete")
    wf.route("charge", on="error", to="c", when=path("error.message") == "busy")
    wf.route("charge", on="error", to="d")
    open_attempts = {}
    for amount, outcome in (
        (101, Ok({"score": 9})),
        (1, Ok({"score": 9})),
        (1, Ok(None)),
        (1, Error("busy")),
        (1, Error()),
    ):
        run = FoldedRun(wf, {"amount": amount})
        run.settle(charge=outcome)
        open_attempts[amount, outcome[0] if isinstance(outcome, Error) else str(outcome.result)] = run.open()
    assert list(open_attempts.values()) == [["a:1:1"], ["b:1:1"], [], ["c:1:1"], ["d:1:1"]]


# --- undoing --------------------------------------------------------------------------------------------------------


def test_compensations_come_one_by_one_newest_first_and_then_the_end() -> None:
    wf = Workflow("trip")
    for name in ("flight", "hotel", "pay"):
        wf.step(name=name, compensate=None if name == "pay" else nothing)(nothing)
    for name, following in (("flight", "hotel"), ("hotel", "pay"), ("pay", "complete")):
        wf.route(name, to=following)
    run = FoldedRun(wf)
    run.settle(flight=Ok())
    run.settle(hotel=Ok())
    assert types(run.settle(pay=Error())) == ["runnable_applied", "runnables_planned", "attempt_scheduled"]
    assert run.open() == ["compensate:hotel:1:1"]
    run.settle(**{"compensate:hotel": Error("stuck")})
    assert run.open() == ["compensate:flight:1:1"]
    assert types(run.settle(**{"compensate:flight": Ok()})) == ["runnable_applied", "run_terminal"]
    error = run.unit.run.terminal_error
    assert error == {
        "message": "declined",
        "compensation_failures": [{"step": "hotel", "error": {"message": "stuck"}}],
    }


def test_a_dead_compensation_waits_and_the_dead_letter_of_a_failing_run_does_not() -> None:
    run = FoldedRun(diamond(compensate=nothing))
    run.settle(root=Ok())
    lost = run.outcome("left", Lost())
    assert run.plan(lost) == [], "somebody must look at it"
    run.settle(right=Error())
    assert run.settle(**{"compensate:root": Lost()}) == []
    assert types(run.write(run.plan(lost))) == ["runnable_applied"], "but not once the run is failing"
    assert not run.unit.run.terminal


# --- around planning ------------------------------------------------------------------------------------------------


def both(facts: list[Any]) -> tuple[Any, Any]:
    first, second = facts
    return first, second


def test_a_dead_letter_is_put_back_as_the_next_attempt_and_only_a_dead_letter() -> None:
    run = FoldedRun(orders(), queue="slow")
    lost = run.outcome("charge", Lost())
    planned, scheduled = both(plan_retry(run.unit.run, lost, t(500)))
    again = planned.runnables[0]
    assert (again.runnable_key, again.visible_at, again.queue) == (f"{RUN}:charge:1:2", t(500), "slow")
    assert again.input == lost.input
    assert scheduled.runnable_key == again.runnable_key
    run.write([planned, scheduled])
    with pytest.raises(InvalidTransition, match="gone on"):
        plan_retry(run.unit.run, lost, t(501))
    with pytest.raises(InvalidTransition, match="available"):
        plan_retry(run.unit.run, run.attempt("charge"), t(501))


def test_an_end_fences_open_work_and_only_open_work() -> None:
    run = FoldedRun(orders(), queue="slow")
    fence, end = both(plan_end(run.unit.run, "cancelled", t(9)))
    assert (fence.type, fence.queue, end.type, end.status) == ("run_fenced", "slow", "run_terminal", "cancelled")
    paused = FoldedRun(review())
    paused.settle(draft=Ok())
    assert types(plan_end(paused.unit.run, "cancelled", t(9))) == ["run_terminal"]


def test_what_nothing_followed_from_is_found_oldest_first() -> None:
    run = FoldedRun(diamond())
    assert unprogressed(run.unit.run, run.unit.dispatch.attempts) == []
    run.settle(root=Ok())
    run.outcome("right", Error("busy", retry_after=1))
    run.outcome("left", Ok())
    stuck = unprogressed(run.unit.run, run.unit.dispatch.attempts)
    assert [attempt.step for attempt in stuck] == ["right", "left"]
    run.write(run.plan(*stuck))
    assert unprogressed(run.unit.run, run.unit.dispatch.attempts) == []
    run.write([terminal(RUN, at=run.at, status="cancelled")])
    assert unprogressed(run.unit.run, run.unit.dispatch.attempts) == []


def test_a_run_without_a_queue_goes_to_the_default_one() -> None:
    start = RunStarted(run_id=RUN, workflow="orders", occurred_at=t(0), input={"order_id": "o", "amount": 1})
    facts = plan_start(orders().freeze(), start)
    assert {fact.queue for fact in facts if fact.type in ("run_queued", "attempt_scheduled")} == {"default"}
    assert queue_of(FoldedRun(orders(), queue=None).unit.run) == "default"


def test_planning_for_nothing_gives_nothing() -> None:
    run = FoldedRun(orders())
    assert plan_settled(run.definition, run.unit.run, [], {}, t(1)) == []
