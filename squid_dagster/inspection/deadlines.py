"""Deadlines as evidence: how open work stands against the time that its step was given. Nothing is fired by them."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from squid_dagster.protocol.facts import Runnable
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection


class DeadlineState(StrEnum):
    """How urgent it is, from nothing to worst."""

    ON_TIME = "on_time"
    DUE_SOON = "due_soon"
    OVERDUE = "overdue"
    ESCALATED = "escalated"


_URGENCY = {state: place for place, state in enumerate(DeadlineState)}


class DeadlineView(NamedTuple):
    """One deadline at one moment; `remaining` is negative once it is over."""

    step: str
    runnable_key: str | None
    state: DeadlineState
    due_at: datetime
    remaining: timedelta
    due_soon_at: datetime | None
    escalate_at: datetime | None


def judge(step: str, key: str | None, deadline: object, at: datetime) -> DeadlineView | None:
    """Return how a recorded deadline stands at that time; None for what is no deadline. Due at `at` is over."""
    if not isinstance(deadline, Mapping) or (due_at := _time(deadline.get("due_at"))) is None:
        return None
    soon, late = _time(deadline.get("due_soon_at")), _time(deadline.get("escalate_at"))
    state = DeadlineState.ON_TIME
    if late is not None and late <= at:
        state = DeadlineState.ESCALATED
    elif due_at <= at:
        state = DeadlineState.OVERDUE
    elif soon is not None and soon <= at:
        state = DeadlineState.DUE_SOON
    return DeadlineView(step, key, state, due_at, due_at - at, soon, late)


def open_deadlines(run: RunProjection, at: datetime) -> list[DeadlineView]:
    """Return the deadlines of everything that the run still waits for, most urgent first; none once it has ended."""
    if run.terminal:
        return []
    judged = [judge(runnable.step, runnable.runnable_key, runnable.deadline, at) for runnable in _open_runnables(run)]
    if (state := run.manual_state) is not None:
        judged.append(judge(state.step, None, state.metadata.get("deadline"), at))
    return sorted(
        (deadline for deadline in judged if deadline is not None),
        key=lambda deadline: (-_URGENCY[deadline.state], deadline.due_at, deadline.step),
    )


def _open_runnables(run: RunProjection) -> Iterator[Runnable]:
    """Return the latest attempt of every visit that has no outcome yet."""
    state = PlanState.of(run)
    return (
        runnable
        for runnable in state.planned.values()
        if runnable.attempt_number == state.open[runnable.idempotency_key]
    )


def _time(value: Any) -> datetime | None:
    """Parse a time of a fact; return None for anything else."""
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
