"""Deadlines: evidence of how late open work is, judged on reading."""

from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.inspection import DeadlineState
from squid_dagster.inspection.deadlines import judge, open_deadlines
from tests.facts import t
from tests.inspection.scenes import RUN, Scene, order, scene

DUE = {"due_at": t(100).isoformat(), "due_soon_at": t(80).isoformat(), "escalate_at": t(150).isoformat()}


@pytest.mark.parametrize(
    ("at", "state"),
    [
        (0, DeadlineState.ON_TIME),
        (79, DeadlineState.ON_TIME),
        (80, DeadlineState.DUE_SOON),
        (100, DeadlineState.OVERDUE),
        (149, DeadlineState.OVERDUE),
        (150, DeadlineState.ESCALATED),
    ],
)
def test_a_deadline_grows_more_urgent_and_the_very_instant_counts(at: float, state: DeadlineState) -> None:
    found = judge("charge", "k", DUE, t(at))

    assert found is not None
    assert (found.state, found.remaining) == (state, timedelta(seconds=100 - at))


@pytest.mark.parametrize("deadline", [None, 7, {}, {"due_at": None}, {"due_at": "soon"}, {"due_at": 5}, []])
def test_what_is_no_deadline_is_none(deadline: Any) -> None:
    assert judge("charge", "k", deadline, t(0)) is None


def test_a_time_without_a_zone_is_taken_for_utc() -> None:
    found = judge("charge", "k", {"due_at": "2026-01-01T00:00:10"}, t(0))

    assert found is not None
    assert found.due_at == t(10)


def _shown(told: Scene) -> Any:
    return told.inspection().inspect_run(RUN).deadline


def test_a_run_shows_the_deadline_of_its_open_step_until_that_is_done() -> None:
    told = scene(order())

    assert (_shown(told).step, _shown(told).state) == ("charge", "on_time")
    told.advance(minutes=5)
    assert _shown(told).state == "overdue"
    told.do("charge")
    assert _shown(told) is None


def test_a_retry_keeps_the_deadline_of_its_visit() -> None:
    told = scene(order()).claim("charge").fail("charge", retry_in=600).advance(minutes=10)

    assert (_shown(told).runnable_key, _shown(told).state) == ("run-1:charge:1:2", "overdue")
    assert len(open_deadlines(told.unit.run, told.now)) == 1


def test_a_decision_has_a_deadline_too() -> None:
    told = scene(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 500})

    states = []
    for _ in range(4):
        manual = told.inspection().inspect_run(RUN).manual_state
        assert manual is not None
        assert manual.deadline == _shown(told)
        states.append(_shown(told).state)
        told.advance(minutes=95)

    assert states == ["on_time", "due_soon", "escalated", "escalated"]
    told.decide("approved")
    assert _shown(told) is None


def test_the_most_urgent_deadline_is_shown_first() -> None:
    from tests.facts import planned, runnable

    told = scene(order())
    late = {"due_at": t(-5).isoformat()}
    soon = {"due_at": t(5).isoformat()}
    told.write(planned(runnable(step="a", deadline=soon), runnable(step="b", deadline=late)))

    assert [each.step for each in open_deadlines(told.unit.run, told.now)] == ["b", "a", "charge"]


def test_an_ended_run_has_no_deadline() -> None:
    assert _shown(scene(order()).end().advance(hours=1)) is None
