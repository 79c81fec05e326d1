"""`TimelineEvent`: what happened to a run, in order. One event for each fact, the refused ones too.

Events are in the order of the journal, with one exception: of the facts of one instant, what is done about a decision
(put on the queue, fenced) follows the decision, wherever in its commit it was written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from squid_dagster.inspection.display import plain, shown, when
from squid_dagster.inspection.fact_sentences import sentence
from squid_dagster.inspection.run_record import Record
from squid_dagster.inspection.snapshot.parts import view_entry
from squid_dagster.protocol.anomalies import unreadable
from squid_dagster.protocol.entries import Entry, MalformedFact, StoredFact, UnknownFact

_HOLDING = frozenset(
    {"attempt_claimed", "attempt_released", "attempt_completed", "attempt_failed", "attempt_dead_lettered"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """One thing that happened. `kind` is the fact's type; `refused` says why the fact has no effect, if it has none.

    Heartbeats that follow each other are one event, with their count in `details`.
    """

    at: datetime
    thread: str
    revision: int
    position: int
    kind: str
    summary: str
    step: str | None
    actor: Any
    refused: str | None
    details: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON, always with the same keys."""
        whole: dict[str, Any] = plain(self)
        return whole


def timeline(record: Record) -> list[TimelineEvent]:
    """Return what happened, oldest first, by the facts of a record. Pure, and never raises."""
    steps = _steps(record)
    events: list[TimelineEvent] = []
    beats: dict[str, int] = {}  # by claim: where its latest row of heartbeats stands among the events
    holders: dict[str, str] = {}  # by attempt: the worker that it was delivered to, while nothing came of that
    for entry in _in_causal_order(record.entries):
        event = _with_lost_delivery(_event(entry, record, steps), holders)
        if event.kind != "attempt_heartbeat" or event.refused is not None:
            beats.pop(_claim(entry), None)
        elif (place := beats.get(_claim(entry))) is not None:
            events[place] = _one_more(events[place], event)
            continue
        else:
            beats[_claim(entry)] = len(events)
            event = replace(event, details={**event.details, "count": 1})
        events.append(event)
    return events


def _in_causal_order(entries: Sequence[Entry]) -> Iterator[Entry]:
    for _, group in groupby(entries, key=lambda entry: entry.fact.occurred_at):
        instant = list(enumerate(group))
        causes = {name: place for place, entry in reversed(instant) for name in _decides(entry)}
        ordered = sorted(instant, key=lambda numbered: _rank(numbered[0], causes.get(_follows(numbered[1]), -1)))
        yield from (entry for _, entry in ordered)


def _rank(place: int, cause: int) -> tuple[int, bool]:
    """Return a fact's place, or the one right after its cause if that comes later."""
    return (cause, True) if cause > place else (place, False)


def _decides(entry: Entry) -> list[str]:
    """Return the keys of what a fact of the run decides on."""
    fact: Any = entry.fact
    if unreadable(entry) is None and fact.type == "runnables_planned":
        return [runnable.runnable_key for runnable in fact.runnables]
    return [fact.type] if fact.type in ("run_started", "run_terminal") else []


def _follows(entry: Entry) -> str:
    """Return the key of the decision that a fact of the queue follows from."""
    follows = {"run_queued": "run_started", "run_fenced": "run_terminal"}.get(entry.fact.type, "")
    return (_declared(entry.fact, "runnable_key") or "") if entry.fact.type == "attempt_scheduled" else follows


def _event(entry: Entry, record: Record, steps: dict[str, str]) -> TimelineEvent:
    fact: Any = entry.fact
    known = unreadable(entry) is None
    step = _declared(fact, "step") or steps.get(_declared(fact, "runnable_key") or "")
    shown_entry = view_entry(entry, record)
    summary = sentence(entry.fact, step)
    if known and shown_entry["refused"] is not None:
        summary = f"Refused ({shown_entry['refused'].replace('_', ' ')}): {summary}"
    return TimelineEvent(
        at=fact.occurred_at,
        thread=entry.thread,
        revision=entry.seq,
        position=entry.position,
        kind=fact.type,
        summary=summary,
        step=step,
        actor=_actor(fact) if known else None,
        refused=shown_entry["refused"],
        details=shown_entry["data"],
    )


def _with_lost_delivery(event: TimelineEvent, holders: dict[str, str]) -> TimelineEvent:
    """Return a claim's event with the delivery that was lost before it, if one was; update `holders`."""
    key = event.details.get("runnable_key")
    if event.refused is not None or not isinstance(key, str) or event.kind not in _HOLDING:
        return event
    lost_by = holders.pop(key, None)
    if event.kind != "attempt_claimed":
        return event
    holders[key] = str(event.actor)
    if lost_by is None:
        return event
    summary = f"{event.summary} The delivery to worker {lost_by!r} was lost, which need not be the step's own fault."
    return replace(event, summary=summary)


def _actor(fact: Any) -> Any:
    """Return who did it: a person by a signal, a worker by a claim."""
    if fact.type == "run_signal_received":
        return shown(fact.actor)
    return fact.owner_id if fact.type == "attempt_claimed" else None


def _steps(record: Record) -> dict[str, str]:
    """Return the step of every runnable that any fact of the run names."""
    scheduled = {key: attempt.step for key, attempt in record.unit.dispatch.attempts.items()}
    runnables = (planned.runnable for planned in record.unit.run.planned.values())
    return {**scheduled, **{runnable.runnable_key: runnable.step for runnable in runnables if runnable is not None}}


def _claim(entry: Entry) -> str:
    return _declared(entry.fact, "runnable_key") or ""


def _declared(fact: StoredFact, name: str) -> str | None:
    """Return a field of a fact; never an unknown one of the same name, which may hold anything."""
    known = not isinstance(fact, UnknownFact | MalformedFact) and name in type(fact).model_fields
    return getattr(fact, name) if known else None


def _one_more(first: TimelineEvent, beat: TimelineEvent) -> TimelineEvent:
    count, until = first.details["count"] + 1, beat.details["lease_until"]
    summary = f"{beat.summary.removesuffix('.')} ({count} heartbeats since {when(first.at)})."
    return replace(first, summary=summary, details={**first.details, "count": count, "lease_until": until})
