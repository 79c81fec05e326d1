"""Deadlines: evidence of how late open work is, judged on reading."""

from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.inspection import DeadlineState
from squid_dagster.inspection.deadlines import judge, open_deadlines
from tests.facts import t
from tests.inspection.run_histories import RUN, RunHistory, order, start_history

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
    deadline = judge("charge", "k", DUE, t(at))

    assert deadline is not None
    assert (deadline.state, deadline.remaining) == (state, timedelta(seconds=100 - at))


@pytest.mark.parametrize("deadline", [None, 7, {}, {"due_at": None}, {"due_at": "soon"}, {"due_at": 5}, []])
def test_what_is_no_deadline_is_none(deadline: Any) -> None:
    assert judge("charge", "k", deadline, t(0)) is None


def test_a_time_without_a_zone_is_taken_for_utc() -> None:
    deadline = judge("charge", "k", {"due_at": "2026-01-01T00:00:10"}, t(0))

    assert deadline is not None
    assert deadline.due_at == t(10)


def _shown(history: RunHistory) -> Any:
    return history.inspection().inspect_run(RUN).deadline


def test_a_run_shows_the_deadline_of_its_open_step_until_that_is_done() -> None:
    history = start_history(order())

    assert (_shown(history).step, _shown(history).state) == ("charge", "on_time")
    history.advance(minutes=5)
    assert _shown(history).state == "overdue"
    history.do("charge")
    assert _shown(history) is None


def test_a_retry_keeps_the_deadline_of_its_visit() -> None:
    history = start_history(order()).claim("charge").fail("charge", retry_in=600).advance(minutes=10)

    assert (_shown(history).runnable_key, _shown(history).state) == ("run-1:charge:1:2", "overdue")
    assert len(open_deadlines(history.unit.run, history.now)) == 1


def test_a_decision_has_a_deadline_too() -> None:
    history = start_history(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 500})

    states = []
    for _ in range(4):
        manual = history.inspection().inspect_run(RUN).manual_state
        assert manual is not None
        assert manual.deadline == _shown(history)
        states.append(_shown(history).state)
        history.advance(minutes=95)

    assert states == ["on_time", "due_soon", "escalated", "escalated"]
    history.decide("approved")
    assert _shown(history) is None


def test_the_most_urgent_deadline_is_shown_first() -> None:
    from tests.facts import planned, runnable

    history = start_history(order())
    late = {"due_at": t(-5).isoformat()}
    soon = {"due_at": t(5).isoformat()}
    history.write(planned(runnable(step="a", deadline=soon), runnable(step="b", deadline=late)))

    assert [deadline.step for deadline in open_deadlines(history.unit.run, history.now)] == ["b", "a", "charge"]


def test_an_ended_run_has_no_deadline() -> None:
    assert _shown(start_history(order()).end().advance(hours=1)) is None
