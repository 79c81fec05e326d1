"""One run as a row: the state that its facts fold to, in Arrow's types. Pure; called in Spark's workers.

A row holds everything that the tables are made from, so that each run is folded once for all of them.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from squid_dagster.journal.contract.queries import parent_of, window_start
from squid_dagster.journal.postgres.views.rows import anomaly_rows
from squid_dagster.protocol.anomalies import Anomaly
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.folds.attempt import Attempt, AttemptStatus
from squid_dagster.protocol.folds.dispatch import apply_queue
from squid_dagster.protocol.folds.run_index import RunSummary
from squid_dagster.protocol.folds.run_unit import RunUnit, apply_unit
from squid_dagster.redaction import redacted

Row = dict[str, Any]

_ATTEMPT_FACTS = frozenset({"attempt_scheduled", "attempt_failed", "attempt_claimed"})


@dataclass(slots=True)
class Times:
    """What the fold does not keep of an attempt: when it was scheduled, and its claims."""

    scheduled_at: datetime
    first_claimed_at: datetime | None = None
    claimed_at: datetime | None = None
    claims: int = 0
    expiries: int = 0  # claims that took over from a holder whose lease had run out


@dataclass(slots=True)
class FoldedRun:
    """One run, folded entry by entry."""

    unit: RunUnit = field(default_factory=RunUnit)
    times: dict[str, Times] = field(default_factory=dict)
    first_position: int = 0
    last_position: int = 0
    entries: int = 0

    def add(self, entry: Entry) -> None:
        """Fold the run's next entry. Call it in the order of positions."""
        self.first_position = self.first_position or entry.position
        self.last_position = entry.position
        self.entries += 1
        if entry.fact.type in _ATTEMPT_FACTS:
            self._add_attempt_fact(entry)
        else:
            apply_unit(self.unit, entry)

    def _add_attempt_fact(self, entry: Entry) -> None:
        """Fold an entry and record the times of the attempt that it created or claimed, as the fold decided."""
        attempts, at = self.unit.dispatch.attempts, entry.fact.occurred_at
        known = len(attempts)
        key = getattr(entry.fact, "runnable_key", None)
        before = attempts.get(key) if key is not None else None
        apply_unit(self.unit, entry)
        if len(attempts) > known:
            self.times[next(reversed(attempts))] = Times(at)
        after = attempts.get(key) if key is not None else None
        if before is not None and after is not None and after.deliveries > before.deliveries:
            times = self.times[after.runnable_key]
            times.first_claimed_at = times.first_claimed_at or at
            times.claimed_at = at
            times.claims += 1
            times.expiries += before.status is AttemptStatus.CLAIMED


def fold_run(entries: Iterable[Entry]) -> FoldedRun:
    """Fold one run's entries by position. Never raises."""
    folded = FoldedRun()
    for entry in entries:
        folded.add(entry)
    return folded


def unit_row(run_id: str, folded: FoldedRun) -> Row:
    """Return a run's row."""
    unit, start = folded.unit, folded.unit.run.start
    return {
        "run_id": run_id,
        "first_position": folded.first_position,
        "last_position": folded.last_position,
        "entries": folded.entries,
        "run": _run(folded),
        "indexed": _summary(unit.indexed),
        "cataloged": _summary(unit.cataloged),
        "attempts": [
            _attempt(key, unit, folded.times.get(key)) for key in {**unit.dispatch.attempts, **unit.run.planned}
        ],
        "children": [_child(child_id, unit) for child_id in unit.run.children],
        "queues": None,
        "anomalies": anomaly_rows(unit.anomalies),
        "day": start.occurred_at.astimezone(UTC).date() if start else None,
        "latest": max((attempt.last_at for attempt in unit.dispatch.attempts.values()), default=None),
    }


def loose_row(entries: Iterable[Entry]) -> Row:
    """Return the one row of all facts that belong to no run: paused queues, and anomalies."""
    queues: dict[str, bool] = {}
    anomalies: list[Anomaly] = []
    first = last = count = 0
    for entry in entries:
        apply_queue(queues, anomalies, entry)
        first, last, count = first or entry.position, entry.position, count + 1
    return {
        "run_id": None,
        "first_position": first,
        "last_position": last,
        "entries": count,
        "queues": [{"queue": queue, "paused": paused} for queue, paused in queues.items()],
        "anomalies": anomaly_rows(anomalies),
    }


def _run(folded: FoldedRun) -> Row:
    unit = folded.unit
    run, start, attempts = unit.run, unit.run.start, unit.dispatch.attempts
    return {
        "workflow": start.workflow if start else None,
        "trigger": start.trigger if start else None,
        "queue": unit.dispatch.queue,
        "status": run.status,
        "definition_version": start.definition_version if start else None,
        "definition_fingerprint": start.definition_fingerprint if start else None,
        "parent_run_id": parent_of(start.context) if start else None,
        "replayed_from_run_id": start.replayed_from_run_id if start else None,
        "window_start": window_start(start.context) if start else None,
        "started_at": start.occurred_at if start else None,
        "ended_at": run.ended_at,
        "error": _json(run.terminal_error),
        "paused_step": run.manual_state.step if run.manual_state else None,
        "quarantined": run.quarantine is not None,
        "fenced": unit.dispatch.fenced,
        "planned_visits": run.planned_visits,
        "applied_visits": run.applied_visits,
        "attempts": len(attempts),
        "retries": sum(attempt.attempt_number > 1 for attempt in attempts.values()),
        "expiries": sum(times.expiries for times in folded.times.values()),
        "children": len(run.children),
        "commands": len(run.command_history),
        "resolutions": len(run.resolutions),
        "anomalies": len(unit.anomalies),
    }


def _attempt(key: str, unit: RunUnit, times: Times | None) -> Row:
    """Return a runnable by both of its threads; one that was planned and never scheduled has no status."""
    attempt, plan = unit.dispatch.attempts.get(key), unit.run.planned.get(key)
    planned = {"runnable_key": key, "planned": plan is not None, "applied": key in unit.run.applied}
    if attempt is not None:
        return {**planned, **_scheduled(attempt), **_observed(times)}
    runnable = plan.runnable if plan is not None else None
    if runnable is None:
        return planned
    return {
        **planned,
        "idempotency_key": runnable.idempotency_key,
        "attempt_number": runnable.attempt_number,
        "queue": runnable.queue,
        "step": runnable.step,
        "priority": runnable.priority,
        "max_deliveries": runnable.max_deliveries,
        "visible_at": runnable.visible_at,
    }


def _scheduled(attempt: Attempt) -> Row:
    return {
        "idempotency_key": attempt.idempotency_key,
        "attempt_number": attempt.attempt_number,
        "workflow": attempt.workflow,
        "queue": attempt.queue,
        "step": attempt.step,
        "priority": attempt.priority,
        "max_deliveries": attempt.max_deliveries,
        "status": attempt.status.value,
        "visible_at": attempt.visible_at,
        "lease_until": attempt.lease_until,
        "settled_at": attempt.settled_at,
        "last_at": attempt.last_at,
        "deliveries": attempt.deliveries,
        "fencing_token": attempt.fencing_token,
        "owner_id": attempt.owner_id,
        "error": _json(attempt.error),
        "position": attempt.position,
    }


def _observed(times: Times | None) -> Row:
    if times is None:
        return {}
    return {
        "scheduled_at": times.scheduled_at,
        "first_claimed_at": times.first_claimed_at,
        "claimed_at": times.claimed_at,
        "claims": times.claims,
        "expiries": times.expiries,
    }


def _child(child_id: str, unit: RunUnit) -> Row:
    fact = unit.run.children[child_id].fact
    if fact is None:
        return {"child_run_id": child_id}
    return {
        "child_run_id": child_id,
        "child_workflow": fact.child_workflow,
        "child_trigger": fact.child_trigger,
        "child_key": fact.child_key,
        "started_at": fact.started_at or fact.occurred_at,
    }


def _summary(summary: RunSummary | None) -> Row | None:
    if summary is None:
        return None
    return {"workflow": summary.workflow, "queue": summary.queue, "indexed_at": summary.indexed_at}


def _json(value: Any) -> str | None:
    return json.dumps(redacted(value), sort_keys=True) if value is not None else None
