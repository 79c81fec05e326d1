"""The rule about runs that wait for another system: what was asked of it, when, and what it calls the work."""

from typing import Any

from squid_dagster.inspection.display import shown_object, span
from squid_dagster.inspection.explain.case import Case
from squid_dagster.inspection.explain.reasons import Action, Diagnosis, RunReason, cancel, wait
from squid_dagster.inspection.fact_sentences import named
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.folds.launches import EXTERNAL_REQUESTED, EXTERNAL_STARTED, Launch
from squid_dagster.workflow.external_step import target_of

_SENSOR = "squid_external_sensor"


def waiting_external(case: Case) -> Diagnosis | None:
    """Explain a run whose step is done by another system: asked for, begun, or not even asked for yet."""
    if not case.external:
        return None
    first = case.external[0]
    planned = case.run.planned.get(first.runnable_key)
    external = (planned.runnable.external if planned is not None and planned.runnable is not None else None) or {}
    launch = case.launch_of(first)
    run_id = case.record.run_id
    return Diagnosis(
        RunReason.WAITING_EXTERNAL,
        _summary(case, first, external, launch),
        first.step,
        {
            "count": len(case.external),
            "runnable_keys": [attempt.runnable_key for attempt in case.external],
            "external": shown_object(external),
            "waiting_since": first.visible_at,
            "requested_at": None if launch is None else launch.requested_at,
            "launches": 0 if launch is None else launch.count,
            "external_run_id": None if launch is None else launch.external_run_id,
            **({"queue_paused": True} if case.queue_paused else {}),
        },
        (*_actions(case, launch), cancel(run_id)),
        tuple(proof for attempt in case.external for proof in _proofs(case, attempt)),
    )


def _summary(case: Case, attempt: Attempt, external: dict[str, Any], launch: Launch | None) -> str:
    what = target_of(external)
    if launch is None:
        why = f": queue {case.queue!r} is paused" if case.queue_paused else ""
        waited = span(case.now - attempt.visible_at)
        return f"{named(attempt.step)} has been waiting for {waited} to be launched as {what}{why}."
    since = span(case.now - launch.requested_at)
    if launch.external_run_id is None:
        return f"{named(attempt.step)} was asked for as {what} {since} ago, and no run of it was seen yet."
    return f"{named(attempt.step)} is done by {what} as run {launch.external_run_id!r}, asked for {since} ago."


def _actions(case: Case, launch: Launch | None) -> tuple[Action, ...]:
    if launch is None and case.queue_paused:
        return (Action("resume_queue", f"squid.resume_queue({case.queue!r})"),)
    if launch is None or launch.external_run_id is None:
        note = f"sensor {_SENSOR!r} must be running in Dagster, and its daemon too"
        return (Action("start_sensor", None, note),)
    return (wait(f"the outcome of run {launch.external_run_id!r} comes back by itself"),)


def _proofs(case: Case, attempt: Attempt) -> tuple[Entry | None, ...]:
    """Return the facts that put the attempt where it waits, and those that say which system was asked for it."""
    record, key = case.record, attempt.runnable_key
    signals = [
        entry
        for kind in (EXTERNAL_REQUESTED, EXTERNAL_STARTED)
        for entry in record.every("run_signal_received", kind)
        if entry.fact.payload.get("runnable_key") == key  # type: ignore[union-attr]  # a signal has one
    ]
    return (record.first("attempt_scheduled", key) or record.last("retry", key), *signals)
