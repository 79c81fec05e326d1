"""Planners of every kind, including those that plan what cannot be written."""

from typing import Any

from squid_dagster.journal.contract.dispatch_store import Planner, PlanRequest
from squid_dagster.protocol import Fact
from tests.facts import T0, applied, child, planned, runnable, scheduled, signal, step_paused, terminal

# --- planners that are not like ours --------------------------------------------------------------------------------


def apply_results(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, attempt.step, at=0, result=None) for attempt in request.settled]


def next_visit(request: PlanRequest, *, times: int = 1) -> list[Fact]:
    """Plan the same next visit for whichever attempt is settled: the second one repeats what is planned."""
    follow: dict[str, Any] = {"visit": 2, "visible_at": T0}
    (attempt,) = request.settled
    facts: list[Fact] = [applied(request.run_id, attempt.step, at=0, result=None)]
    for _ in range(times):
        facts.append(planned(runnable(request.run_id, **follow), run=request.run_id))
        facts.append(scheduled(request.run_id, **follow))
    return facts


def _next_twice(request: PlanRequest) -> list[Fact]:
    return next_visit(request, times=2)


def _known_again(request: PlanRequest) -> list[Fact]:
    """Plan what is planned already."""
    fact = planned(runnable(request.run_id, "ship"), run=request.run_id)
    return [applied(request.run_id, at=0, result=None), fact, scheduled(request.run_id, "ship")]


def _pauses_after_the_end(request: PlanRequest) -> list[Fact]:
    return [
        applied(request.run_id, at=0, result=None),
        terminal(request.run_id, at=0),
        step_paused(request.run_id, at=0),
    ]


def _ends_twice(request: PlanRequest) -> list[Fact]:
    return [terminal(request.run_id, at=0), terminal(request.run_id, at=0, status="failed", error={"message": "no"})]


def _applies_after_the_end(request: PlanRequest) -> list[Fact]:
    return [terminal(request.run_id, at=0), applied(request.run_id, at=0, result=None)]


def _two_runs_in_one_plan(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, at=0, result=None), planned(runnable("run-9"), run="run-9")]


def _schedules_elsewhere(request: PlanRequest) -> list[Fact]:
    follow: dict[str, Any] = {"visit": 2, "visible_at": T0}
    return [
        applied(request.run_id, at=0, result=None),
        planned(runnable(request.run_id, queue="slow", **follow), run=request.run_id),
        scheduled(request.run_id, queue="slow", **follow),
    ]


def _for_another_run(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, at=0, result=None), signal("run-9")]


def _plans_without_a_schedule(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, at=0, result=None), planned(runnable(request.run_id, visit=2), run=request.run_id)]


def _schedules_without_a_plan(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, at=0, result=None), scheduled(request.run_id, visit=2)]


def _schedules_what_is_settled(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, at=0, result=None), scheduled(request.run_id)]


def _skips_a_visit(request: PlanRequest) -> list[Fact]:
    follow: dict[str, Any] = {"visit": 5, "visible_at": T0}
    return [
        applied(request.run_id, at=0, result=None),
        planned(runnable(request.run_id, **follow), run=request.run_id),
        scheduled(request.run_id, **follow),
    ]


def _applies_another(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, "ship", at=0, result=None)]


def _applies_twice(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, at=0, result=None), applied(request.run_id, at=0, result="other")]


def _signals(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, at=0, result=None), signal(request.run_id)]


def _starts_a_child(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, at=0, result=None), child(request.run_id, at=0)]


def _folds_a_part(request: PlanRequest) -> list[Fact]:
    facts: list[Fact] = [applied(request.run_id, at=0, result=None), step_paused(request.run_id, at=0)]
    request.run.add_fact(facts[0])
    return facts


def _folds_all(request: PlanRequest) -> list[Fact]:
    facts: list[Fact] = [applied(request.run_id, at=0, result=None), step_paused(request.run_id, at=0)]
    for fact in facts:
        request.run.add_fact(fact)
    return facts


def _applies_at_another_time(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, at=40, result=None)]


def _plans_twice(request: PlanRequest) -> list[Fact]:
    follow: dict[str, Any] = {"visit": 2, "visible_at": T0}
    plans = [planned(runnable(request.run_id, input={"n": n}, **follow), run=request.run_id) for n in (1, 2)]
    return [applied(request.run_id, at=0, result=None), *plans, scheduled(request.run_id, input={"n": 1}, **follow)]


def _plans_a_retry(request: PlanRequest) -> list[Fact]:
    follow: dict[str, Any] = {"attempt": 2, "visible_at": T0}
    return [
        applied(request.run_id, at=0, result=None),
        planned(runnable(request.run_id, **follow), run=request.run_id),
        scheduled(request.run_id, **follow),
    ]


def pauses(request: PlanRequest) -> list[Fact]:
    return [*apply_results(request), step_paused(request.run_id, at=0)]


def _pauses_twice(request: PlanRequest) -> list[Fact]:
    pauses: list[Fact] = [step_paused(request.run_id, step, at=0) for step in ("review", "sign")]
    return [applied(request.run_id, at=0, result=None), *pauses]


def _pauses_and_goes_on(request: PlanRequest) -> list[Fact]:
    return [*next_visit(request), step_paused(request.run_id, at=0)]


def _pauses_before_the_end(request: PlanRequest) -> list[Fact]:
    return [
        applied(request.run_id, at=0, result=None),
        step_paused(request.run_id, at=0),
        terminal(request.run_id, at=0),
    ]


def _fails(request: PlanRequest) -> list[Fact]:
    end = terminal(request.run_id, at=0, status="failed", error={"code": "no"})
    return [applied(request.run_id, at=0, result=None), end]


def _ends(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, at=0, result=None), terminal(request.run_id, at=0)]


def _applies_by_state(request: PlanRequest) -> list[Fact]:
    assert request.run.planned, "the visit is open"
    return apply_results(request)


def _nothing_at_all(_: PlanRequest) -> list[Fact]:
    return []


PLANNERS: list[Planner] = [
    apply_results,
    next_visit,
    _next_twice,
    _known_again,
    _pauses_after_the_end,
    _ends_twice,
    _applies_after_the_end,
    _two_runs_in_one_plan,
    _schedules_elsewhere,
    _for_another_run,
    _plans_without_a_schedule,
    _schedules_without_a_plan,
    _schedules_what_is_settled,
    _skips_a_visit,
    _applies_another,
    _applies_twice,
    _signals,
    _starts_a_child,
    _folds_a_part,
    _folds_all,
    _applies_by_state,
    _applies_at_another_time,
    _plans_twice,
    _plans_a_retry,
    pauses,
    _pauses_twice,
    _pauses_and_goes_on,
    _pauses_before_the_end,
    _fails,
    _ends,
    _nothing_at_all,
]
