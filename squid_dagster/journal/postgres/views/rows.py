"""Rows of the live views from a `RunUnit`, and back, column by column. Pure.

Rows are JSON-ready dictionaries. A unit that is read from rows has digests instead of contents, which is all that the
folds need.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from squid_dagster.journal.contract.queries import parent_of, window_start
from squid_dagster.protocol.anomalies import Anomaly
from squid_dagster.protocol.folds.attempt import OPEN, Attempt, AttemptStatus, definition_key
from squid_dagster.protocol.folds.dispatch import RunDispatch
from squid_dagster.protocol.folds.run import Applied, Child, ManualState, Planned, Quarantine, RunProjection
from squid_dagster.protocol.folds.run_index import RunSummary
from squid_dagster.protocol.folds.run_unit import RunUnit

Row = dict[str, Any]


def to_text(rows: list[Row]) -> str:
    """Encode rows as the JSON that the database takes."""
    return to_json(rows).decode()


def iso(value: datetime | None) -> str | None:
    """Format a time as in rows."""
    return value.isoformat() if value is not None else None


def time(value: str | None) -> datetime | None:
    """Parse a time from a row."""
    return _required(value) if value is not None else None


def _required(value: str) -> datetime:
    read = datetime.fromisoformat(value)
    return read if read.tzinfo is UTC else read.astimezone(UTC)


def run_row(run_id: str, unit: RunUnit, position: int, old: Row | None = None) -> Row:
    """Return the run's row. The columns of its start come from `old` if the unit was read from it."""
    run, start = unit.run, unit.run.start
    old_row = old or {}
    return {
        "run_id": run_id,
        "position": old_row.get("position", position),
        "status": run.status,
        "workflow": start.workflow if start else old_row.get("workflow"),
        "trigger": start.trigger if start else old_row.get("trigger"),
        "queue": unit.dispatch.queue,
        "definition_version": start.definition_version if start else old_row.get("definition_version"),
        "definition_fingerprint": start.definition_fingerprint if start else old_row.get("definition_fingerprint"),
        "parent_run_id": parent_of(start.context) if start else old_row.get("parent_run_id"),
        "replayed_from_run_id": start.replayed_from_run_id if start else old_row.get("replayed_from_run_id"),
        "started_at": iso(start.occurred_at) if start else old_row.get("started_at"),
        "start_digest": run.start_digest,
        "planned_visits": run.planned_visits,
        "applied_visits": run.applied_visits,
        "manual_state": manual_row(run.manual_state),
        "terminal_status": run.terminal_status,
        "terminal_digest": run.terminal_digest,
        "ended_at": iso(run.ended_at),
        "fenced": unit.dispatch.fenced,
        "quarantine": list(run.quarantine) if run.quarantine else None,
        "quarantined": unit.dispatch.quarantined,
        "indexed": _summary_row(unit.indexed),
        "cataloged": _summary_row(unit.cataloged),
        "unfenced": unit.dispatch.unfenced,
        # Only children that a fact is about are loaded.
        "has_children": bool(unit.run.children) or old_row.get("has_children", False),
        "window_start": iso(window_start(start.context)) if start else old_row.get("window_start"),
    }


def manual_row(state: ManualState | None) -> list[Any] | None:
    """Return what a run waits for, as in its row."""
    return [state.step, state.kind, iso(state.paused_at), state.metadata] if state else None


def _summary_row(summary: RunSummary | None) -> list[Any] | None:
    return [summary.workflow, summary.queue, iso(summary.indexed_at)] if summary else None


def attempt_row(run_id: str, key: str, unit: RunUnit) -> Row:
    """Return the row of one runnable: columns from the queue's thread, and columns from the run's thread."""
    attempt = unit.dispatch.attempts.get(key)
    planned, applied = unit.run.planned.get(key), unit.run.applied.get(key)
    row = _scheduled_row(attempt, unit.dispatch.stopped) if attempt else dict(_UNSCHEDULED)
    row["run_id"], row["runnable_key"] = run_id, key
    row["planned_digest"] = planned.digest if planned else None
    row["applied_digest"] = applied.digest if applied else None
    return row


def new_attempt_row(attempt: Attempt, planned_digest: str) -> Row:
    """Return the row of an attempt that was just planned and scheduled."""
    return {**_scheduled_row(attempt, stopped=False), "planned_digest": planned_digest, "applied_digest": None}


def _scheduled_row(attempt: Attempt, stopped: bool) -> Row:
    return {
        "run_id": attempt.run_id,
        "runnable_key": attempt.runnable_key,
        "idempotency_key": attempt.idempotency_key,
        "attempt_number": attempt.attempt_number,
        "queue": attempt.queue,
        "step": attempt.step,
        "input": attempt.input if attempt.status in OPEN else None,
        "visible_at": iso(attempt.visible_at),
        "rank": -attempt.priority,
        "max_deliveries": attempt.max_deliveries,
        "definition": definition_key(attempt.workflow, attempt.definition_fingerprint),
        "workflow": attempt.workflow,
        "definition_version": attempt.definition_version,
        "definition_fingerprint": attempt.definition_fingerprint,
        "intent_digest": attempt.intent_digest,
        "position": attempt.position,
        "last_at": iso(attempt.last_at),
        "status": attempt.status.value,
        "claim_id": attempt.claim_id,
        "claim_token_hash": attempt.claim_token_hash,
        "owner_id": attempt.owner_id,
        "lease_until": iso(attempt.lease_until),
        "deliveries": attempt.deliveries,
        "fencing_token": attempt.fencing_token,
        "outcome_digest": attempt.outcome_digest,
        "settled_at": iso(attempt.settled_at),
        "wakeup_emitted": attempt.wakeup_emitted,
        "due_at": None if stopped else iso(attempt.due_at),
    }


_EPOCH = datetime.fromtimestamp(0, UTC)
_EXAMPLE = Attempt("", "", "", 1, "", "", None, _EPOCH, 0, 1, None, None, None, "", 0, _EPOCH)
_UNSCHEDULED: Row = dict.fromkeys(_scheduled_row(_EXAMPLE, stopped=False))
# The columns of both tables, for statements that name them.
RUN_COLUMNS = tuple(run_row("", RunUnit.fold([]), 0))
ATTEMPT_COLUMNS = tuple(new_attempt_row(_EXAMPLE, ""))
_TIMES = {
    "runs": ("started_at", "ended_at", "window_start"),
    "attempts": ("visible_at", "last_at", "lease_until", "settled_at", "due_at"),
    "children": ("started_at",),
}


def normalized(table: str, row: Row) -> Row:
    """Return a row from Postgres with its times formatted as ours."""
    return {**row, **{name: iso(time(row[name])) for name in _TIMES.get(table, ())}}


def attempt_from_row(row: Row) -> Attempt:
    """Return a scheduled attempt from its row."""
    return Attempt(
        row["run_id"],
        row["runnable_key"],
        row["idempotency_key"],
        row["attempt_number"],
        row["queue"],
        row["step"],
        row["input"],
        _required(row["visible_at"]),
        -row["rank"],
        row["max_deliveries"],
        row["workflow"],
        row["definition_version"],
        row["definition_fingerprint"],
        row["intent_digest"],
        row["position"],
        _required(row["last_at"]),
        AttemptStatus(row["status"]),
        row["claim_id"],
        row["claim_token_hash"],
        row["owner_id"],
        time(row["lease_until"]),
        row["deliveries"],
        row["fencing_token"],
        row["outcome_digest"],
        time(row["settled_at"]),
        row["wakeup_emitted"],
    )


def unit_from_rows(run: Row, attempts: Iterable[Row], children: Iterable[Row]) -> RunUnit:
    """Return the unit of a run from its rows, with the attempts and children whose rows are given."""
    unit = RunUnit(_projection(run), RunDispatch(run["queue"], run["fenced"], run["quarantined"], run["unfenced"]))
    for row in attempts:
        key = row["runnable_key"]
        if row["status"] is not None:
            attempt = attempt_from_row(row)
            unit.dispatch.attempts[key] = attempt
            tokens = unit.dispatch.tokens
            tokens[attempt.idempotency_key] = max(tokens.get(attempt.idempotency_key, 0), attempt.fencing_token)
        if row["planned_digest"] is not None:
            unit.run.planned[key] = Planned(row["planned_digest"])
        if row["applied_digest"] is not None:
            unit.run.applied[key] = Applied(row["applied_digest"])
    for child in children:
        unit.run.children[child["child_run_id"]] = Child(child["digest"])
    unit.indexed, unit.cataloged = _summary(run["run_id"], run["indexed"]), _summary(run["run_id"], run["cataloged"])
    return unit


def _projection(row: Row) -> RunProjection:
    manual, quarantine = row["manual_state"], row["quarantine"]
    return RunProjection(
        run_id=row["run_id"],
        stored_start_digest=row["start_digest"],
        planned_visits=row["planned_visits"],
        applied_visits=row["applied_visits"],
        manual_state=ManualState(manual[0], manual[1], _required(manual[2]), manual[3]) if manual else None,
        terminal_status=row["terminal_status"],
        terminal_digest=row["terminal_digest"],
        ended_at=time(row["ended_at"]),
        quarantine=Quarantine(*quarantine) if quarantine else None,
    )


def _summary(run_id: str, row: list[Any] | None) -> RunSummary | None:
    return RunSummary(run_id, row[0], row[1], _required(row[2])) if row else None


def child_row(run_id: str, child_run_id: str, child: Child) -> Row:
    """Return the row of a linked child."""
    fact = child.fact
    assert fact is not None  # noqa: S101  only children that a fact has just linked are written
    return {
        "run_id": run_id,
        "child_run_id": child_run_id,
        "child_workflow": fact.child_workflow,
        "child_trigger": fact.child_trigger,
        "child_key": fact.child_key,
        "digest": child.digest,
        "started_at": iso(fact.started_at or fact.occurred_at),
    }


def anomaly_rows(anomalies: Iterable[Anomaly]) -> list[Row]:
    """Return the rows of anomalies, numbered per entry."""
    counts: dict[tuple[str, int], int] = {}
    rows = []
    for anomaly in anomalies:
        ordinal = counts[anomaly.thread, anomaly.seq] = counts.get((anomaly.thread, anomaly.seq), 0) + 1
        rows.append({**anomaly._asdict(), "reason": anomaly.reason.value, "ordinal": ordinal})
    return rows
