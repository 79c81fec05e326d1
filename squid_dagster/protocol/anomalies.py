"""Anomalies: why a fold did not follow an entry. Values, never log lines; each names the entry that caused it."""

from enum import StrEnum
from typing import NamedTuple

from squid_dagster.protocol.entries import Entry, MalformedFact, UnknownFact, run_of
from squid_dagster.protocol.facts import FACT_TYPES


class Reason(StrEnum):
    """Why a fold did not follow an entry."""

    # any thread
    MALFORMED_ENTRY = "malformed_entry"
    UNKNOWN_FACT_TYPE = "unknown_fact_type"
    WRONG_RUN = "wrong_run"
    # both the run's and the queue's thread
    TERMINAL_RUN = "terminal_run"
    UNKNOWN_RUNNABLE_INTENT = "unknown_runnable_intent"
    CONFLICTING_RUNNABLE_INTENT = "conflicting_runnable_intent"
    # the queue's thread
    WRONG_QUEUE = "wrong_queue"
    QUARANTINED_RUN = "quarantined_run"
    OUT_OF_ORDER = "out_of_order"
    TERMINAL_ATTEMPT = "terminal_attempt"
    ACTIVE_CLAIM = "active_claim"
    ATTEMPT_NOT_VISIBLE = "attempt_not_visible"
    DELIVERIES_EXHAUSTED = "deliveries_exhausted"
    WRONG_FENCING_TOKEN = "wrong_fencing_token"  # noqa: S105  a reason, not a credential
    STALE_CLAIM = "stale_claim"
    EXPIRED_CLAIM = "expired_claim"
    CONFLICTING_COMPLETION = "conflicting_completion"
    CONFLICTING_FAILURE = "conflicting_failure"
    PREMATURE_DEAD_LETTER = "premature_dead_letter"
    # the run's thread
    CONFLICTING_RUN_START = "conflicting_run_start"
    CONFLICTING_RESULT = "conflicting_result"
    CONFLICTING_CHILD_RUN = "conflicting_child_run"
    ACTIVE_MANUAL_STEP = "active_manual_step"
    STALE_MANUAL_RESOLUTION = "stale_manual_resolution"
    # index and catalog
    CONFLICTING_WORKFLOW = "conflicting_workflow"
    CONFLICTING_RUN_INDEX = "conflicting_run_index"
    CONFLICTING_RUN_CATALOG = "conflicting_run_catalog"


class Anomaly(NamedTuple):
    """One problem with one entry. `subject` is the runnable key, step or child run that the entry is about."""

    reason: Reason
    entry_type: str
    run_id: str | None
    subject: str | None
    thread: str
    seq: int
    position: int


# The field that names a fact's subject; only declared fields, never an unknown field of the same name.
_SUBJECT_FIELD = {
    name: field
    for name, model in FACT_TYPES.items()
    for field in ("runnable_key", "step", "child_run_id")
    if field in model.model_fields and not (field == "runnable_key" and "kind" in model.model_fields)
}


def anomaly(reason: Reason, entry: Entry, subject: str | None = None) -> Anomaly:
    """Return the anomaly of an entry; without `subject`, the one that the fact names, if it does."""
    fact = entry.fact
    if subject is None and unreadable(entry) is None:
        subject = getattr(fact, _SUBJECT_FIELD.get(fact.type, ""), None)
    return Anomaly(reason, fact.type, run_of(fact), subject, entry.thread, entry.seq, entry.position)


def unreadable(entry: Entry) -> Reason | None:
    """Return why this version cannot fold an entry, None if it can."""
    if type(entry.fact) is MalformedFact:
        return Reason.MALFORMED_ENTRY
    if type(entry.fact) is UnknownFact:
        return Reason.UNKNOWN_FACT_TYPE
    return None
