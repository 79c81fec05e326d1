"""The parts of a snapshot, as people are shown them: attempts, runnables, commands, children. All is redacted."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from squid_dagster.inspection.deadlines import DeadlineView
from squid_dagster.inspection.display import shown, shown_object, without_values
from squid_dagster.inspection.run_record import Record
from squid_dagster.protocol.anomalies import Anomaly
from squid_dagster.protocol.entries import Entry, MalformedFact, UnknownFact
from squid_dagster.protocol.facts import ChildRunStarted, Runnable
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.folds.run import ManualState

_ENVELOPE = frozenset({"type", "run_id", "occurred_at"})


def visit_of(idempotency_key: str) -> int:
    """Return the number of a visit from its key; 1 where the key has none."""
    number = idempotency_key.rpartition(":")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else 1


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt. The hash of its claim's token is never shown."""

    runnable_key: str
    idempotency_key: str
    step: str
    visit: int
    attempt_number: int
    status: str
    applied: bool
    queue: str
    priority: int
    input: Any
    visible_at: datetime
    scheduled_at: datetime | None
    claimed_at: datetime | None
    claim_id: str | None
    owner_id: str | None
    lease_until: datetime | None
    fencing_token: int
    deliveries: int
    max_deliveries: int
    settled_at: datetime | None
    result: Any
    error: Any
    workflow: str | None
    definition_version: str | None
    definition_fingerprint: str | None


@dataclass(frozen=True, slots=True)
class RunnableView:
    """One planned attempt: what the run has decided on, whether or not a queue knows of it."""

    runnable_key: str
    step: str
    visit: int
    attempt_number: int
    queue: str
    priority: int
    input: Any
    visible_at: datetime
    recovery: Any
    deadline: Any
    scheduled: bool
    applied: bool


class CommandView(NamedTuple):
    """A command that reached the run."""

    revision: int
    at: datetime
    signal_type: str
    actor: Any
    comment: str | None
    idempotency_key: str | None
    payload: dict[str, Any]
    metadata: dict[str, Any]
    caller_time: datetime | None = None


class ChildView(NamedTuple):
    """A run that this one has started."""

    child_run_id: str
    child_workflow: str
    child_trigger: str
    child_key: str
    step: str
    runnable_key: str
    metadata: dict[str, Any]
    started_at: datetime


class ManualView(NamedTuple):
    """What the run waits for a person to decide."""

    step: str
    kind: str
    paused_at: datetime
    metadata: dict[str, Any]
    deadline: DeadlineView | None


class AnomalyView(NamedTuple):
    """An entry of this run that the fold did not follow."""

    reason: str
    type: str
    subject: str | None
    thread: str
    revision: int
    position: int


def view_attempt(attempt: Attempt, record: Record) -> AttemptView:
    """Show an attempt, with the times of its facts."""
    key = attempt.runnable_key
    claim, made = record.last("attempt_claimed", key), record.first("attempt_scheduled", key)
    return AttemptView(
        runnable_key=key,
        idempotency_key=attempt.idempotency_key,
        step=attempt.step,
        visit=visit_of(attempt.idempotency_key),
        attempt_number=attempt.attempt_number,
        status=attempt.status.value,
        applied=key in record.unit.run.applied,
        queue=attempt.queue,
        priority=attempt.priority,
        input=shown(attempt.input),
        visible_at=attempt.visible_at,
        scheduled_at=made.fact.occurred_at if made is not None else None,
        claimed_at=claim.fact.occurred_at if claim is not None else None,
        claim_id=attempt.claim_id,
        owner_id=attempt.owner_id,
        lease_until=attempt.lease_until,
        fencing_token=attempt.fencing_token,
        deliveries=attempt.deliveries,
        max_deliveries=attempt.max_deliveries,
        settled_at=attempt.settled_at,
        result=shown(attempt.result),
        error=shown(attempt.error),
        workflow=attempt.workflow,
        definition_version=attempt.definition_version,
        definition_fingerprint=attempt.definition_fingerprint,
    )


def view_runnable(runnable: Runnable, record: Record) -> RunnableView:
    """Show a planned attempt."""
    return RunnableView(
        runnable_key=runnable.runnable_key,
        step=runnable.step,
        visit=visit_of(runnable.idempotency_key),
        attempt_number=runnable.attempt_number,
        queue=runnable.queue,
        priority=runnable.priority,
        input=shown(runnable.input),
        visible_at=runnable.visible_at,
        recovery=shown(runnable.recovery),
        deadline=shown(runnable.deadline),
        scheduled=runnable.runnable_key in record.unit.dispatch.attempts,
        applied=runnable.runnable_key in record.unit.run.applied,
    )


def view_command(entry: Entry) -> CommandView:
    """Show a command; the entry holds a `run_signal_received`."""
    fact: Any = entry.fact
    return CommandView(
        entry.seq,
        fact.occurred_at,
        fact.signal_type,
        shown(fact.actor),
        shown(fact.comment),
        fact.idempotency_key,
        shown_object(fact.payload),
        shown_object(fact.metadata),
        fact.caller_time,
    )


def view_child(fact: ChildRunStarted) -> ChildView:
    """Show a child run."""
    return ChildView(
        fact.child_run_id,
        fact.child_workflow,
        fact.child_trigger,
        fact.child_key,
        fact.origin.step,
        fact.origin.runnable_key,
        shown_object(fact.metadata),
        fact.started_at or fact.occurred_at,
    )


def view_manual(state: ManualState, deadline: DeadlineView | None) -> ManualView:
    """Show what the run waits for."""
    return ManualView(state.step, state.kind, state.paused_at, shown_object(state.metadata), deadline)


def view_anomaly(anomaly: Anomaly) -> AnomalyView:
    """Show an anomaly."""
    return AnomalyView(
        anomaly.reason.value, anomaly.entry_type, anomaly.subject, anomaly.thread, anomaly.seq, anomaly.position
    )


def view_entry(entry: Entry, record: Record) -> dict[str, Any]:
    """Show an entry with its place; of one that cannot be read, why, and nothing of what it holds."""
    fact = entry.fact
    view: dict[str, Any] = {
        "thread": entry.thread,
        "revision": entry.seq,
        "position": entry.position,
        "type": fact.type,
        "occurred_at": fact.occurred_at.isoformat(),
        "refused": record.refused.get((entry.thread, entry.seq)),
    }
    if isinstance(fact, MalformedFact):
        return {**view, "unreadable": without_values(fact.reason), "data": {}}
    data = fact.data if isinstance(fact, UnknownFact) else fact.model_dump(mode="json", exclude=set(_ENVELOPE))
    if fact.type == "entry_quarantined":
        data = {**data, "reason": without_values(data["reason"])}
    return {**view, "unreadable": None, "data": shown_object(data)}
