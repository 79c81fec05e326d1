"""`sentence`: what a fact says, in one English sentence."""

from collections.abc import Callable
from typing import Any

from squid_dagster.inspection.display import brief, message_of, when, who, without_values
from squid_dagster.protocol.entries import MalformedFact, StoredFact, UnknownFact
from squid_dagster.protocol.folds.plan_state import FAIL
from squid_dagster.protocol.folds.visits import COMPENSATE
from squid_dagster.workflow.authoring.draft import COMPLETE

_COMMANDS = {
    "start_run": "asked for the run",
    "start_cron": "asked for the run by its schedule",
    "start_child_run": "asked for the run from its parent",
    "replay_run": "asked for a replay",
    "approve_run": "approved",
    "reject_run": "rejected",
    "resume_run": "resumed the run",
    "cancel_run": "asked to cancel the run",
    "retry_attempt": "asked to retry a dead letter",
    "external_requested": "asked another system for a step's work",
    "external_started": "reported that a step's work has begun elsewhere",
    "external_completed": "reported what came of a step's work elsewhere",
}
_ACTIONS = {"resumed": "was resumed", "approved": "was approved", "rejected": "was rejected"}


def sentence(fact: StoredFact, step: str | None) -> str:
    """Return what a fact says; `step` is the one that it is about, where it is about one."""
    if isinstance(fact, MalformedFact):
        return f"An entry of type {fact.type!r} cannot be read: {brief(without_values(fact.reason))}."
    if isinstance(fact, UnknownFact):
        return f"A fact of type {fact.type!r} was written, which this version does not know."
    return _TELL[fact.type](fact, named(step))


def named(step: str | None) -> str:
    """Return the name of a step, or of its undoing, for the beginning of a sentence."""
    if step is None:
        return "A step"
    return f"The undoing of step {step.removeprefix(COMPENSATE)!r}" if step.startswith(COMPENSATE) else f"Step {step!r}"


def _signal(fact: Any, _: str) -> str:
    asked = _COMMANDS.get(fact.signal_type, f"sent the signal {fact.signal_type!r}")
    actor = who(fact.actor) if fact.actor is not None else "Somebody"
    return f"{actor} {asked}{_said(fact.comment)}."


def _started(fact: Any, _: str) -> str:
    version = f", version {fact.definition_version!r}" if fact.definition_version is not None else ""
    again = f" as a replay of {fact.replayed_from_run_id!r}" if fact.replayed_from_run_id is not None else ""
    return f"The run of workflow {fact.workflow!r}{version} started{again}."


def _planned(fact: Any, _: str) -> str:
    names = [_again(runnable.step, runnable.attempt_number) for runnable in fact.runnables]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"The run planned {shown}." if names else "The run planned nothing."


def _again(step: str, attempt: int) -> str:
    return f"{step!r}" if attempt == 1 else f"{step!r} (attempt {attempt})"


def _applied(fact: Any, step: str) -> str:
    transition = fact.transition or {}
    to = transition.get("to")
    ends = {COMPLETE: "; with that, the run is done", FAIL: "; with that, the run has failed"}
    where = ends.get(to, f"; the run goes on to {to!r}") if isinstance(to, str) else ""
    if transition.get("on") == "error":
        return f"{step} counts as failed{where}."
    return f"{step} counts as done{where}."


def _child(fact: Any, _: str) -> str:
    return f"Step {fact.origin.step!r} started the child run {fact.child_run_id!r} of {fact.child_workflow!r}."


def _paused(fact: Any, step: str) -> str:
    return f"{step} waits for {'an approval' if fact.kind == 'approval' else 'somebody to resume it'}."


def _terminal(fact: Any, _: str) -> str:
    if fact.status == "failed":
        return f"The run failed: {message_of(fact.error)}."
    return f"The run {'completed' if fact.status == 'completed' else 'was cancelled'}."


def _quarantined(fact: Any, _: str) -> str:
    return (
        f"The run was quarantined: entry {fact.entry_seq} of {fact.entry_thread!r} cannot be read "
        f"({brief(without_values(fact.reason))})."
    )


def _scheduled(fact: Any, step: str) -> str:
    later = f", visible from {when(fact.visible_at)} on" if fact.visible_at > fact.occurred_at else ""
    return f"{step} was put on queue {fact.queue!r}{_attempt(fact.attempt_number)}{later}."


def _attempt(number: int) -> str:
    return "" if number == 1 else f" (attempt {number})"


def _claimed(fact: Any, step: str) -> str:
    alone = ", alone: nothing else runs in that worker meanwhile" if fact.alone else ""
    return f"{step} was claimed by worker {fact.owner_id!r} until {when(fact.lease_until)}{alone}."


def _released(fact: Any, step: str) -> str:
    if fact.counted:
        again = f"; it is handed out again at {when(fact.visible_at)}" if fact.visible_at is not None else ""
        return f"{step} was interrupted{_said(fact.reason)}{again}."
    if fact.visible_at is not None:
        return f"{step} deferred itself until {when(fact.visible_at)}{_said(fact.reason)}."
    return f"{step} was given back by its worker{_said(fact.reason)}."


def _failed(fact: Any, step: str) -> str:
    again = f"; it is tried again at {when(fact.retry_visible_at)}" if fact.retry_visible_at is not None else ""
    return f"{step} failed: {message_of(fact.error)}{again}."


def _dead(fact: Any, step: str) -> str:
    times = "once" if fact.deliveries == 1 else f"{fact.deliveries} times"
    why = f" ({brief(message_of(fact.error))})" if fact.claim_id is not None and fact.error else ""
    return f"{step} was handed out {times} and never finished{why}: it is a dead letter."


def _said(text: str | None) -> str:
    return f": {brief(text)}" if text else ""


_TELL: dict[str, Callable[[Any, str], str]] = {
    "run_signal_received": _signal,
    "run_started": _started,
    "runnables_planned": _planned,
    "runnable_applied": _applied,
    "child_run_started": _child,
    "manual_step_paused": _paused,
    "manual_step_resolved": lambda fact, step: f"{step} {_ACTIONS[fact.action]}.",
    "run_terminal": _terminal,
    "entry_quarantined": _quarantined,
    "run_queued": lambda fact, _: f"The run's work goes through queue {fact.queue!r}.",
    "attempt_scheduled": _scheduled,
    "attempt_claimed": _claimed,
    "attempt_heartbeat": lambda fact, step: f"{step} is still being worked on, until {when(fact.lease_until)}.",
    "attempt_released": _released,
    "attempt_completed": lambda _, step: f"{step} was completed by its worker.",
    "attempt_failed": _failed,
    "attempt_dead_lettered": _dead,
    "live_wakeup_emitted": lambda _, step: f"Workers were told about {step[:1].lower()}{step[1:]}.",
    "run_fenced": lambda *_: "The queue was told that the run has ended.",
    "queue_paused": lambda fact, _: f"Queue {fact.queue!r} was paused{_said(fact.comment)}.",
    "queue_resumed": lambda fact, _: f"Queue {fact.queue!r} was resumed{_said(fact.comment)}.",
    "run_indexed": lambda fact, _: f"The run was listed under workflow {fact.workflow!r}.",
    "run_cataloged": lambda *_: "The run was listed in the catalog.",
}
