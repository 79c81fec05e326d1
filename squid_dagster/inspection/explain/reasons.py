"""What an explanation is made of: its reason, the actions that it names, and what a rule returns."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from squid_dagster.protocol.entries import Entry


class RunReason(StrEnum):
    """Why a run stands where it stands, in the order in which they are looked for: the first that holds is given."""

    TERMINAL = "terminal"
    QUARANTINED = "quarantined"
    UNREADABLE_ENTRY = "unreadable_entry"
    NOT_STARTED = "not_started"
    MANUAL_INTERVENTION_REQUIRED = "manual_intervention_required"
    HELD = "held"
    DEAD_LETTER = "dead_letter"
    COMPLETED_RESULT_PENDING_APPLY = "completed_result_pending_apply"
    FAILURE_PENDING_APPLY = "failure_pending_apply"
    PLANNED_DISPATCH_PENDING_SCHEDULE = "planned_dispatch_pending_schedule"
    QUEUE_PAUSED = "queue_paused"
    NO_WORKER_FOR_QUEUE = "no_worker_for_queue"
    NO_WORKER_FOR_DEFINITION = "no_worker_for_definition"
    EXPIRED_CLAIM = "expired_claim"
    COMPENSATING = "compensating"
    ATTEMPT_VISIBLE = "attempt_visible"
    ATTEMPT_CLAIMED = "attempt_claimed"
    WAITING_EXTERNAL = "waiting_external"
    RETRY_SCHEDULED = "retry_scheduled"
    DEFERRED_CONTINUATION = "deferred_continuation"
    WAIT_STEP = "wait_step"
    ATTEMPT_SCHEDULED_FOR_LATER = "attempt_scheduled_for_later"
    IDLE = "idle"
    RUN_STARTED = "run_started"
    WAITING_FOR_DISPATCH = "waiting_for_dispatch"


class Action(NamedTuple):
    """Something that a person can do: what, the call that does it if there is one, and what to know before."""

    action: str
    call: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a rule returns; `proofs` are the facts that say so."""

    reason: RunReason
    summary: str
    step: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    actions: tuple[Action, ...] = ()
    proofs: tuple[Entry | None, ...] = ()


def wait(note: str) -> Action:
    """Return the advice to leave it alone."""
    return Action("wait", None, note)


def recover() -> Action:
    """Return the call that closes what a crash left open; any worker does the same by and by."""
    return Action("recover", "squid.recover()", "recovery closes what a crash has left open; it is safe at any time")


def cancel(run_id: str) -> Action:
    """Return the call that ends the run."""
    return Action("cancel", f"squid.cancel({run_id!r})")


def inspect_history(run_id: str) -> Action:
    """Return the call that shows every fact of the run."""
    return Action("inspect_history", f"squid.inspect_run({run_id!r}, include_history=True)")
