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
from tests.workflow.planner.paper_run import RUN, Error, Lost, Ok, Sheet, types


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
    sheet = Sheet(orders(), {"amount": 7}, queue="slow", priority=-2)
    assert types(entry.fact for entry in sheet.entries) == [
        "run_started",
        "run_queued",
        "runnables_planned",
        "attempt_scheduled",
    ]
    planned: Any = sheet.entries[2].fact
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
    scheduled: Any = sheet.entries[3].fact
    for name in ("runnable_key", "input", "queue", "priority", "max_deliveries", "visible_at"):
        assert getattr(scheduled, name) == getattr(runnable, name)
    assert scheduled.definition_fingerprint == sheet.definition.fingerprint


def test_a_success_applies_decides_plans_and_schedules_in_this_order() -> None:
    sheet = Sheet(orders())
    facts = sheet.settle(charge=Ok({"id": 9}))
    assert types(facts) == ["runnable_applied", "runnables_planned", "attempt_scheduled"]
    applied, planned, scheduled = facts
    assert (applied.result, applied.transition) == ({"id": 9}, {"from": "charge", "on": "ok", "to": "ship"})
    assert planned.runnables[0].input == {"charge": {"id": 9}, "amount": 1}
    assert scheduled.priority == 0, "the run's own"
    assert {fact.occurred_at for fact in facts} == {t(sheet.at)}
    assert types(sheet.settle(ship=Ok())) == ["runnable_applied", "run_terminal"]
    assert sheet.unit.run.status == "completed"
    assert sheet.unit.anomalies == []


def test_a_failure_with_a_retry_is_only_mirrored_and_a_final_one_ends_the_run() -> None:
    sheet = Sheet(orders())
    (mirrored,) = sheet.settle(charge=Error("busy", retry_after=5))
    again = mirrored.runnables[0]
    assert (again.runnable_key, again.attempt_number, again.visible_at) == (f"{RUN}:charge:1:2", 2, t(sheet.at + 5))
    assert again.input == {"order_id": "o-1", "amount": 1}
    assert again.max_deliveries == 3
    applied, end = sheet.settle(charge=Error("declined"))
    assert applied.runnable_key == f"{RUN}:charge:1:2"
    assert applied.transition == {"from": "charge", "on": "error", "to": "fail", "error": {"message": "declined"}}
    assert (end.status, end.error) == ("failed", {"message": "declined"})
    assert list(sheet.unit.run.applied) == [f"{RUN}:charge:1:2"], "the first attempt was never applied"
    assert sheet.unit.anomalies == []


def test_planning_changes_nothing_and_gives_the_same_for_the_same() -> None:
    sheet = Sheet(orders())
    attempt = sheet.outcome("charge", Ok(1))
    before = deepcopy(sheet.unit)
    first, second = sheet.plan(attempt), sheet.plan(attempt)
    assert first == second
    assert sheet.unit == before


def test_nothing_follows_twice_or_from_what_is_not_the_runs() -> None:
    sheet = Sheet(orders())
    attempt = sheet.outcome("charge", Ok(1))
    assert sheet.plan(attempt, attempt) == sheet.plan(attempt), "named twice"
    sheet.write(sheet.plan(attempt))
    assert sheet.plan(attempt) == [], "applied already"
    assert sheet.plan(attempt._replace(runnable_key=f"{RUN}:unplanned:1:1")) == []
    assert sheet.plan(sheet.attempt("ship")) == [], "still open"
    done = sheet.outcome("ship", Ok())
    sheet.write([terminal(RUN, at=sheet.at, status="cancelled")])
    assert sheet.plan(done) == [], "the run has ended"


def test_a_mirrored_retry_is_not_planned_again() -> None:
    sheet = Sheet(orders())
    failed = sheet.outcome("charge", Error("busy", retry_after=5))
    assert types(sheet.write(sheet.plan(failed))) == ["runnables_planned"]
    assert sheet.plan(failed) == []


def test_a_dead_letter_is_left_only_along_an_error_route() -> None:
    waiting = Sheet(orders())
    assert waiting.settle(charge=Lost()) == []
    routed = orders()
    routed.step(name="apologise")(nothing)
    routed.route("charge", on="error", to="apologise")
    routed.route("apologise", to="complete")
    sheet = Sheet(routed)
    facts = sheet.settle(charge=Lost())
    assert types(facts) == ["runnable_applied", "runnables_planned", "attempt_scheduled"]
    assert facts[0].transition["error"]["code"] == "dead_letter"
    assert sheet.open() == ["apologise:1:1"]


# --- fan-out and join -----------------------------------------------------------------------------------------------


def diamond(**options: Any) -> Workflow:
    wf = Workflow("diamond")
    wf.step(name="root", **options)(nothing)
    wf.step(name="left", after=["root"])(nothing)
    wf.step(name="right", after=["root"])(nothing)
    wf.step(name="join", after=["left", "right"])(nothing)
    return wf


def test_a_fan_out_is_one_plan_and_the_join_is_planned_by_the_last_one() -> None:
    sheet = Sheet(diamond())
    facts = sheet.settle(root=Ok())
    assert types(facts) == ["runnable_applied", "runnables_planned", "attempt_scheduled", "attempt_scheduled"]
    assert types(sheet.settle(right=Ok())) == ["runnable_applied"]
    assert types(sheet.settle(left=Ok())) == ["runnable_applied", "runnables_planned", "attempt_scheduled"]
    assert types(sheet.settle(join=Ok())) == ["runnable_applied", "run_terminal"]


def test_siblings_that_end_together_plan_the_join_once() -> None:
    sheet = Sheet(diamond())
    sheet.settle(root=Ok())
    facts = sheet.settle(left=Ok(), right=Ok())
    assert types(facts) == ["runnable_applied", "runnable_applied", "runnables_planned", "attempt_scheduled"]
    assert sheet.unit.anomalies == []


def test_the_first_failure_ends_the_run_and_fences_what_is_open() -> None:
    sheet = Sheet(diamond())
    sheet.settle(root=Ok())
    assert types(sheet.settle(left=Error())) == ["runnable_applied", "run_fenced", "run_terminal"]
    assert sheet.open() == []


def test_siblings_that_fail_together_end_the_run_once_with_the_first_error() -> None:
    sheet = Sheet(diamond())
    sheet.settle(root=Ok())
    facts = sheet.settle(left=Error("first"), right=Error("second"))
    assert types(facts) == ["runnable_applied", "run_fenced", "run_terminal"]
    assert sheet.unit.run.terminal_error == {"message": "first"}


def test_what_a_sibling_has_just_planned_is_not_put_on_the_queue_of_a_run_that_ends() -> None:
    wf = diamond()
    wf.step(name="later", after=["left"])(nothing)
    sheet = Sheet(wf)
    sheet.settle(root=Ok())
    facts = sheet.settle(left=Ok(), right=Error())
    assert types(facts) == [
        "runnable_applied",
        "runnables_planned",
        "runnable_applied",
        "run_fenced",
        "run_terminal",
    ]
    assert sheet.unit.anomalies == []
    assert sheet.open() == []


def test_a_success_beside_a_failure_in_the_same_commit_is_undone_where_that_is_declared() -> None:
    wf = Workflow("pair")
    wf.step(name="good", compensate=nothing)(nothing)
    wf.step(name="bad")(nothing)
    either: list[dict[str, Ok | Error | Lost]] = [{"good": Ok(), "bad": Error()}, {"bad": Error(), "good": Ok()}]
    for outcomes in either:
        sheet = Sheet(wf)
        sheet.settle(**outcomes)
        assert sheet.open() == ["compensate:good:1:1"]
        sheet.settle(**{"compensate:good": Ok()})
        assert sheet.unit.run.status == "failed"
        assert sheet.unit.anomalies == []


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
    sheet = Sheet(review())
    facts = sheet.settle(draft=Ok())
    assert types(facts) == ["runnable_applied", "manual_step_paused"]
    assert (facts[1].kind, facts[1].metadata["visit"]) == ("approval", 1)
    assert facts[1].metadata["deadline"] == {"due_at": t(sheet.at + 3600).isoformat()}
    assert sheet.open() == []


def test_a_decision_is_resolved_with_its_transition_and_planned_on() -> None:
    sheet = Sheet(review())
    sheet.settle(draft=Ok())
    facts = sheet.resolve("rejected", decision="rejected")
    assert types(facts) == ["manual_step_resolved", "runnables_planned", "attempt_scheduled"]
    assert facts[0].transition["to"] == "draft"
    assert facts[0].transition["error"]["code"] == "rejected"
    assert sheet.open() == ["draft:2:1"]
    sheet.settle(draft=Ok())
    assert types(sheet.resolve("approved")) == ["manual_step_resolved", "run_terminal"]
    assert sheet.unit.anomalies == []


@pytest.mark.parametrize("action", ["resumed", "approved", "rejected"])
def test_a_decision_that_nobody_waits_for_is_refused(action: str) -> None:
    sheet = Sheet(review())
    with pytest.raises(InvalidTransition, match="running"):
        sheet.resolve(action)
    sheet.settle(draft=Ok())
    if action == "resumed":
        with pytest.raises(InvalidTransition, match="waits at approval 'ask'"):
            sheet.resolve(action)
    sheet.write([terminal(RUN, at=sheet.at, status="cancelled")])
    with pytest.raises(InvalidTransition, match="cancelled"):
        plan_resolution(sheet.definition, sheet.unit.run, action, {}, {}, t(sheet.at))


def test_spent_visits_fail_the_run_and_keep_what_led_there() -> None:
    sheet = Sheet(review())
    for _ in range(2):
        sheet.settle(draft=Ok())
        facts = sheet.resolve("rejected", comment="no")
    assert types(facts) == ["manual_step_resolved", "run_terminal"]
    error = sheet.unit.run.terminal_error
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
        sheet = Sheet(wf, {"amount": amount})
        sheet.settle(charge=outcome)
        open_attempts[amount, outcome[0] if isinstance(outcome, Error) else str(outcome.result)] = sheet.open()
    assert list(open_attempts.values()) == [["a:1:1"], ["b:1:1"], [], ["c:1:1"], ["d:1:1"]]


# --- undoing --------------------------------------------------------------------------------------------------------


def test_compensations_come_one_by_one_newest_first_and_then_the_end() -> None:
    wf = Workflow("trip")
    for name in ("flight", "hotel", "pay"):
        wf.step(name=name, compensate=None if name == "pay" else nothing)(nothing)
    for name, following in (("flight", "hotel"), ("hotel", "pay"), ("pay", "complete")):
        wf.route(name, to=following)
    sheet = Sheet(wf)
    sheet.settle(flight=Ok())
    sheet.settle(hotel=Ok())
    assert types(sheet.settle(pay=Error())) == ["runnable_applied", "runnables_planned", "attempt_scheduled"]
    assert sheet.open() == ["compensate:hotel:1:1"]
    sheet.settle(**{"compensate:hotel": Error("stuck")})
    assert sheet.open() == ["compensate:flight:1:1"]
    assert types(sheet.settle(**{"compensate:flight": Ok()})) == ["runnable_applied", "run_terminal"]
    error = sheet.unit.run.terminal_error
    assert error == {
        "message": "declined",
        "compensation_failures": [{"step": "hotel", "error": {"message": "stuck"}}],
    }


def test_a_dead_compensation_waits_and_the_dead_letter_of_a_failing_run_does_not() -> None:
    sheet = Sheet(diamond(compensate=nothing))
    sheet.settle(root=Ok())
    lost = sheet.outcome("left", Lost())
    assert sheet.plan(lost) == [], "somebody must look at it"
    sheet.settle(right=Error())
    assert sheet.settle(**{"compensate:root": Lost()}) == []
    assert types(sheet.write(sheet.plan(lost))) == ["runnable_applied"], "but not once the run is failing"
    assert not sheet.unit.run.terminal


# --- around planning ------------------------------------------------------------------------------------------------


def both(facts: list[Any]) -> tuple[Any, Any]:
    first, second = facts
    return first, second


def test_a_dead_letter_is_put_back_as_the_next_attempt_and_only_a_dead_letter() -> None:
    sheet = Sheet(orders(), queue="slow")
    lost = sheet.outcome("charge", Lost())
    planned, scheduled = both(plan_retry(sheet.unit.run, lost, t(500)))
    again = planned.runnables[0]
    assert (again.runnable_key, again.visible_at, again.queue) == (f"{RUN}:charge:1:2", t(500), "slow")
    assert again.input == lost.input
    assert scheduled.runnable_key == again.runnable_key
    sheet.write([planned, scheduled])
    with pytest.raises(InvalidTransition, match="gone on"):
        plan_retry(sheet.unit.run, lost, t(501))
    with pytest.raises(InvalidTransition, match="available"):
        plan_retry(sheet.unit.run, sheet.attempt("charge"), t(501))


def test_an_end_fences_open_work_and_only_open_work() -> None:
    sheet = Sheet(orders(), queue="slow")
    fence, end = both(plan_end(sheet.unit.run, "cancelled", t(9)))
    assert (fence.type, fence.queue, end.type, end.status) == ("run_fenced", "slow", "run_terminal", "cancelled")
    paused = Sheet(review())
    paused.settle(draft=Ok())
    assert types(plan_end(paused.unit.run, "cancelled", t(9))) == ["run_terminal"]


def test_what_nothing_followed_from_is_found_oldest_first() -> None:
    sheet = Sheet(diamond())
    assert unprogressed(sheet.unit.run, sheet.unit.dispatch.attempts) == []
    sheet.settle(root=Ok())
    sheet.outcome("right", Error("busy", retry_after=1))
    sheet.outcome("left", Ok())
    stuck = unprogressed(sheet.unit.run, sheet.unit.dispatch.attempts)
    assert [attempt.step for attempt in stuck] == ["right", "left"]
    sheet.write(sheet.plan(*stuck))
    assert unprogressed(sheet.unit.run, sheet.unit.dispatch.attempts) == []
    sheet.write([terminal(RUN, at=sheet.at, status="cancelled")])
    assert unprogressed(sheet.unit.run, sheet.unit.dispatch.attempts) == []


def test_a_run_without_a_queue_goes_to_the_default_one() -> None:
    start = RunStarted(run_id=RUN, workflow="orders", occurred_at=t(0), input={"order_id": "o", "amount": 1})
    facts = plan_start(orders().freeze(), start)
    assert {fact.queue for fact in facts if fact.type in ("run_queued", "attempt_scheduled")} == {"default"}
    assert queue_of(Sheet(orders(), queue=None).unit.run) == "default"


def test_planning_for_nothing_gives_nothing() -> None:
    sheet = Sheet(orders())
    assert plan_settled(sheet.definition, sheet.unit.run, [], {}, t(1)) == []
