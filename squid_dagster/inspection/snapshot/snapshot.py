"""`RunSnapshot`: everything that the facts of a run say at one moment, redacted, as a value and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from squid_dagster.inspection.deadlines import DeadlineView, open_deadlines
from squid_dagster.inspection.display import plain, shown_object
from squid_dagster.inspection.explain.case import Case
from squid_dagster.inspection.explain.diagnosis import diagnose
from squid_dagster.inspection.run_record import Record
from squid_dagster.inspection.snapshot.parts import (
    AnomalyView,
    AttemptView,
    ChildView,
    CommandView,
    ManualView,
    RunnableView,
    view_anomaly,
    view_attempt,
    view_child,
    view_command,
    view_entry,
    view_manual,
    view_runnable,
)
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.folds.visits import COMPENSATE, visits
from squid_dagster.protocol.threads import dispatch_thread, run_thread
from squid_dagster.workflow.planner.known_values import outputs_of

# Shown by key in `to_dict`: the attempts and runnables themselves are listed once.
_BY_KEY = (
    "pending_dispatches",
    "pending_results",
    "visible_attempts",
    "scheduled_attempts",
    "expired_claims",
    "dead_letters",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """A run at one moment (`as_of`). Inputs, outputs, errors and metadata are redacted.

    `status` is one of completed, failed, cancelled, quarantined, paused, held, running, idle, started and new; `reason`
    is that of `explain_run`, such as `dead_letter` of a run that is running. `context` is what the run was started with
    beside its input, `outputs` what its steps have returned so far. `thread_revisions` holds the last revision of this
    run's facts per thread.
    """

    run_id: str
    as_of: datetime
    workflow: str | None
    trigger: str | None
    input: dict[str, Any]
    context: dict[str, Any]
    outputs: dict[str, Any]
    definition_version: str | None
    definition_fingerprint: str | None
    parent_run: dict[str, Any] | None
    child_runs: tuple[ChildView, ...]
    replayed_from_run_id: str | None
    queue: str | None
    priority: int
    status: str
    reason: str
    terminal: bool
    terminal_status: str | None
    error: dict[str, Any] | None
    manual_state: ManualView | None
    command_history: tuple[CommandView, ...]
    thread_revisions: dict[str, int]
    planned_runnables: tuple[RunnableView, ...]
    applied_runnable_keys: tuple[str, ...]
    pending_dispatches: tuple[RunnableView, ...]
    pending_results: tuple[AttemptView, ...]
    visible_attempts: tuple[AttemptView, ...]
    scheduled_attempts: tuple[AttemptView, ...]
    next_visible_at: datetime | None
    expired_claims: tuple[AttemptView, ...]
    attempts: tuple[AttemptView, ...]
    dead_letters: tuple[AttemptView, ...]
    deadline: DeadlineView | None
    started_at: datetime | None
    ended_at: datetime | None
    anomalies: tuple[AnomalyView, ...]
    history: tuple[dict[str, Any], ...] | None

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot as JSON, always with the same keys."""
        whole: dict[str, Any] = plain(self)
        for name in _BY_KEY:
            whole[name] = [attempt.runnable_key for attempt in getattr(self, name)]
        return whole


def snapshot(case: Case, *, include_history: bool = False) -> RunSnapshot:
    """Return the run of a case as a snapshot. Pure, and never raises."""
    record, run, start = case.record, case.run, case.run.start
    deadlines = open_deadlines(run, case.now)
    manual = run.manual_state
    children = (view_child(child.fact) for child in run.children.values() if child.fact is not None)
    runnables = (planned.runnable for planned in run.planned.values() if planned.runnable is not None)
    return RunSnapshot(
        run_id=record.run_id,
        as_of=case.now,
        workflow=start.workflow if start is not None else None,
        trigger=start.trigger if start is not None else None,
        input=shown_object(start.input if start is not None else None),
        context=shown_object(start.context if start is not None else None),
        outputs=_outputs(case),
        definition_version=start.definition_version if start is not None else None,
        definition_fingerprint=start.definition_fingerprint if start is not None else None,
        parent_run=_parent(start.context if start is not None else {}),
        child_runs=tuple(sorted(children, key=lambda child: (child.child_key, child.child_run_id))),
        replayed_from_run_id=start.replayed_from_run_id if start is not None else None,
        queue=case.queue,
        priority=start.priority if start is not None else 0,
        status=case.status,
        reason=diagnose(case).reason.value,
        terminal=run.terminal,
        terminal_status=run.terminal_status,
        error=None if run.terminal_error is None else shown_object(run.terminal_error),
        manual_state=None
        if manual is None
        else view_manual(manual, next((deadline for deadline in deadlines if deadline.runnable_key is None), None)),
        command_history=tuple(view_command(entry) for entry in record.every("run_signal_received")),
        thread_revisions=_revisions(record, case.queue),
        planned_runnables=tuple(
            view_runnable(runnable, record)
            for runnable in sorted(runnables, key=lambda runnable: runnable.runnable_key)
        ),
        applied_runnable_keys=tuple(run.applied),
        pending_dispatches=tuple(view_runnable(runnable, record) for runnable in case.missing.schedules),
        pending_results=_attempts(case.missing.results, record),
        visible_attempts=_attempts(case.visible, record),
        scheduled_attempts=_attempts(case.scheduled, record),
        next_visible_at=case.scheduled[0].visible_at if case.scheduled else None,
        expired_claims=_attempts(case.expired, record),
        attempts=_attempts(_sorted(record), record),
        dead_letters=_attempts(case.missing.dead_letters, record),
        deadline=deadlines[0] if deadlines else None,
        started_at=start.occurred_at if start is not None else None,
        ended_at=run.ended_at,
        anomalies=tuple(view_anomaly(anomaly) for anomaly in record.unit.anomalies),
        history=tuple(view_entry(entry, record) for entry in record.entries) if include_history else None,
    )


def _attempts(attempts: Sequence[Attempt], record: Record) -> tuple[AttemptView, ...]:
    return tuple(view_attempt(attempt, record) for attempt in attempts)


def _sorted(record: Record) -> list[Attempt]:
    attempts = record.unit.dispatch.attempts.values()
    return sorted(attempts, key=lambda attempt: (attempt.visible_at, attempt.runnable_key, attempt.attempt_number))


def _outputs(case: Case) -> dict[str, Any]:
    """Return the results of steps, by the names of the definition; by the steps' own names where it is unknown."""
    if case.definition is not None:
        return shown_object(outputs_of(case.definition, case.run))
    results: dict[str, Any] = {}
    for visit in visits(case.run):
        if visit.succeeded and not visit.runnable.step.startswith(COMPENSATE):
            results[visit.runnable.step] = visit.fact.result
    return shown_object({**results, **{resolution.step: resolution.result for resolution in case.run.resolutions}})


def _parent(context: JsonObject) -> dict[str, Any] | None:
    parent = context.get("parent")
    return shown_object(parent) if isinstance(parent, dict) else None


def _revisions(record: Record, queue: str | None) -> dict[str, int]:
    last = {entry.thread: entry.seq for entry in record.entries}
    place = dispatch_thread(queue) if queue is not None else None
    return {"run": last.get(run_thread(record.run_id), 0), "dispatch": last.get(place, 0) if place else 0}
