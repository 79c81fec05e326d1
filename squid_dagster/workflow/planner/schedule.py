"""Facts and parts of facts that plans are made of: runnables, pauses, schedules, retries and the end. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from squid_dagster.protocol.errors import InvalidTransition
from squid_dagster.protocol.facts import (
    AttemptScheduled,
    Fact,
    ManualStepPaused,
    RunFenced,
    Runnable,
    RunnablesPlanned,
    RunStarted,
    RunTerminal,
)
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.attempt import Attempt, AttemptStatus
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.threads import idempotency_key, runnable_key
from squid_dagster.workflow.definition import StepDefinition
from squid_dagster.workflow.external_step import external_lane
from squid_dagster.workflow.planner.known_values import state_of

DEFAULT_QUEUE = "default"
_FINAL = (AttemptStatus.COMPLETED, AttemptStatus.FAILED, AttemptStatus.DEAD_LETTERED)


def plan_retry(run: PlanState | RunProjection, attempt: Attempt, now: datetime) -> list[Fact]:
    """Return the facts that put a dead letter back: one more attempt at the same visit, visible at once.

    Raises:
        InvalidTransition: the attempt is no dead letter that its run waits for.
    """
    state = state_of(run)
    planned = state.planned.get(attempt.runnable_key)
    closed = state.is_closed(attempt.runnable_key, attempt.idempotency_key, attempt.step)
    key = f"{attempt.idempotency_key}:{attempt.attempt_number + 1}"
    if attempt.status is not AttemptStatus.DEAD_LETTERED or (planned is None and not closed):
        raise InvalidTransition(f"{attempt.runnable_key!r} is {attempt.status}: only a dead letter can be retried")
    if planned is None or state.stopped or key in state.planned:
        raise InvalidTransition(f"the run has gone on from {attempt.runnable_key!r}: there is nothing to retry")
    again = planned.model_copy(
        update={"runnable_key": key, "attempt_number": attempt.attempt_number + 1, "visible_at": now}
    )
    return [
        RunnablesPlanned(run_id=attempt.run_id, runnables=[again], occurred_at=now),
        schedule(again, state.start, now),
    ]


def plan_end(run: PlanState | RunProjection, status: str, now: datetime, error: JsonObject | None = None) -> list[Fact]:
    """Return the facts that end a run, with the fence for work that is still open."""
    run_id = run.run_id or ""
    facts: list[Fact] = []
    if state_of(run).open:
        facts.append(RunFenced(run_id=run_id, queue=queue_of(run), occurred_at=now))
    return [*facts, RunTerminal(run_id=run_id, status=status, error=error, occurred_at=now)]  # type: ignore[arg-type]


def unprogressed(run: RunProjection, attempts: Mapping[str, Attempt]) -> list[Attempt]:
    """Return the settled attempts from which something should follow and nothing is on record, oldest first."""
    if run.stopped:
        return []
    settled = [
        attempt
        for key, attempt in attempts.items()
        if attempt.status in _FINAL
        # A retry may have been settled before a crashed worker's failure was planned for.
        and (key in run.planned or attempt.attempt_number > 1)
        and key not in run.applied
        and f"{attempt.idempotency_key}:{attempt.attempt_number + 1}" not in run.planned
    ]
    return sorted(settled, key=lambda a: (a.settled_at or a.last_at, a.runnable_key))


def runnable_of(
    state: PlanState, step: StepDefinition, name: str, visit: int, values: JsonObject, visible_at: datetime
) -> Runnable:
    """Return the first attempt of a visit; `name` is the step's, or that of its compensation."""
    run_id, run_priority = state.run_id or "", state.start.priority if state.start is not None else 0
    optional: dict[str, Any] = {}
    if step.deadline is not None and name == step.name:
        optional["deadline"] = deadline_of(step, visible_at)
    if step.external is not None and name == step.name:
        optional["external"] = step.external.to_json()
    return Runnable(
        run_id=run_id,
        runnable_key=runnable_key(run_id, name, visit, 1),
        idempotency_key=idempotency_key(run_id, name, visit),
        attempt_number=1,
        queue=queue_of(state),
        step=name,
        input=values,
        visible_at=visible_at,
        priority=run_priority if step.priority is None else step.priority,
        max_deliveries=step.max_deliveries,
        recovery=step.recovery(),
        **optional,
    )


def pause_of(state: PlanState, step: StepDefinition, visit: int, now: datetime) -> ManualStepPaused:
    """Return the fact that pauses a run at a manual step."""
    metadata: JsonObject = {"visit": visit}
    if step.deadline is not None:
        metadata["deadline"] = deadline_of(step, now)
    return ManualStepPaused(
        run_id=state.run_id or "",
        step=step.name,
        kind=step.kind.value,  # type: ignore[arg-type]  # a manual kind
        metadata=metadata,
        occurred_at=now,
    )


def schedule(runnable: Runnable, start: RunStarted | None, now: datetime) -> AttemptScheduled:
    """Return the fact that puts a planned runnable on its queue; an external one in the lane that no worker serves."""
    fingerprint = start.definition_fingerprint if start else None
    return AttemptScheduled(
        run_id=runnable.run_id,
        runnable_key=runnable.runnable_key,
        idempotency_key=runnable.idempotency_key,
        attempt_number=runnable.attempt_number,
        queue=runnable.queue,
        step=runnable.step,
        input=runnable.input,
        visible_at=runnable.visible_at,
        priority=runnable.priority,
        max_deliveries=runnable.max_deliveries,
        workflow=start.workflow if start else None,
        definition_version=start.definition_version if start else None,
        definition_fingerprint=fingerprint if runnable.external is None else external_lane(fingerprint),
        occurred_at=now,
    )


def queue_of(run: PlanState | RunProjection) -> str:
    """Return the one queue that all work of a run goes through."""
    return (run.start.queue if run.start is not None else None) or DEFAULT_QUEUE


def deadline_of(step: StepDefinition, starts_at: datetime) -> JsonObject:
    """Return when a step that starts at that time is due, as its runnable or pause carries it."""
    assert step.deadline is not None  # noqa: S101  asked for by the caller
    deadline = step.deadline
    due_at = starts_at + deadline.within
    times: JsonObject = {"due_at": due_at.isoformat()}
    if deadline.due_soon is not None:
        times["due_soon_at"] = (due_at - deadline.due_soon).isoformat()
    if deadline.escalate_after is not None:
        times["escalate_at"] = (due_at + deadline.escalate_after).isoformat()
    return times
