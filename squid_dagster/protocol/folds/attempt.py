"""An attempt at a step: its state, and the checks that folds and commands share."""

from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from squid_dagster.protocol.anomalies import Reason
from squid_dagster.protocol.entries import digest


class AttemptStatus(StrEnum):
    """The status of an attempt."""

    AVAILABLE = "available"
    RETRY_SCHEDULED = "retry_scheduled"
    CLAIMED = "claimed"
    COMPLETED = "completed"
    FAILED = "failed"
    DEAD_LETTERED = "dead_lettered"


OPEN = frozenset({AttemptStatus.AVAILABLE, AttemptStatus.RETRY_SCHEDULED, AttemptStatus.CLAIMED})


class Attempt(NamedTuple):
    """One attempt at one step. Immutable; a rule returns a new one."""

    run_id: str
    runnable_key: str
    idempotency_key: str
    attempt_number: int
    queue: str
    step: str
    input: dict[str, Any] | None  # None only when read from a view's tombstone
    visible_at: datetime
    priority: int
    max_deliveries: int
    workflow: str | None
    definition_version: str | None
    definition_fingerprint: str | None
    intent_digest: str
    position: int
    last_at: datetime
    status: AttemptStatus = AttemptStatus.AVAILABLE
    claim_id: str | None = None
    claim_token_hash: str | None = None
    owner_id: str | None = None
    lease_until: datetime | None = None
    deliveries: int = 0
    fencing_token: int = 0
    outcome_digest: str | None = None
    settled_at: datetime | None = None
    wakeup_emitted: bool = False
    result: Any = None
    error: dict[str, Any] | None = None

    @property
    def due_at(self) -> datetime | None:
        """When a claim may take it: once visible, or once its lease has run out; None when it is finished."""
        if self.status is AttemptStatus.CLAIMED:
            return self.lease_until
        return self.visible_at if self.status in OPEN else None

    def expired(self, at: datetime) -> bool:
        """Return whether the claim's lease has run out at that time, inclusively."""
        return self.lease_until is not None and self.lease_until <= at

    def held_by(self, claim_id: str, claim_token_hash: str) -> bool:
        """Return whether this fence is the attempt's latest one."""
        return self.claim_id == claim_id and self.claim_token_hash == claim_token_hash


def definition_key(workflow: str | None, fingerprint: str | None) -> str:
    """Return the string by which a worker names a definition that it can execute."""
    return f"{workflow or ''}/{fingerprint or ''}"


def claim_order(attempt: Attempt) -> tuple[int, datetime, int]:
    """Return the sort key of claims: priority first, then the time it became due, then its position."""
    return (-attempt.priority, attempt.due_at or attempt.visible_at, attempt.position)


def intent_digest(key: str, number: int, step: str, input_: dict[str, Any], visible_at: datetime) -> str:
    """Return the digest of a scheduled attempt's intent; two intents are the same if their digests are."""
    return digest(intent_content(key, number, step, input_, visible_at))


def intent_content(key: str, number: int, step: str, input_: dict[str, Any], visible_at: datetime) -> list[Any]:
    """Return what the digest of an intent covers."""
    return [key, number, step, input_, visible_at.isoformat()]


def out_of_deliveries(attempt: Attempt) -> bool:
    """Return whether the attempt was claimed as often as it may be."""
    return attempt.deliveries >= attempt.max_deliveries


class Suspicion(IntEnum):
    """How likely an attempt has ended its workers' processes. The numbers stand in `claim_attempts.sql`, too."""

    NONE = 0  # never delivered, or given back by a living worker
    LOST = 1  # its lease ran out: the attempt, another one in the process, or the host may be the cause
    LAST = 2  # delivered before, and the next delivery is the last: another loss makes a dead letter


def suspicion_of(attempt: Attempt) -> Suspicion:
    """Return how suspect an attempt is before it is claimed."""
    if attempt.deliveries == 0:
        return Suspicion.NONE
    if attempt.deliveries + 1 >= attempt.max_deliveries:
        return Suspicion.LAST
    return Suspicion.LOST if attempt.status is AttemptStatus.CLAIMED else Suspicion.NONE


def check_fence(attempt: Attempt, claim_id: str, claim_token_hash: str, at: datetime) -> Reason | None:
    """Return why this fence may not act on the attempt at that time; None if it may. Commands check this first."""
    if attempt.status is not AttemptStatus.CLAIMED or not attempt.held_by(claim_id, claim_token_hash):
        return Reason.STALE_CLAIM
    return Reason.EXPIRED_CLAIM if attempt.expired(at) else None


def check_completion(
    attempt: Attempt, claim_id: str, claim_token_hash: str, outcome: str, at: datetime
) -> Reason | bool:
    """Return True for a new completion, False for a repeat of the one on record, else why it is refused."""
    if attempt.status is AttemptStatus.COMPLETED and attempt.held_by(claim_id, claim_token_hash):
        return False if attempt.outcome_digest == outcome else Reason.CONFLICTING_COMPLETION
    return check_fence(attempt, claim_id, claim_token_hash, at) or True


def completed(attempt: Attempt, result: Any, outcome: str, at: datetime) -> Attempt:
    """Return a claimed attempt after its completion; `outcome` is the digest of the result."""
    return attempt._replace(
        status=AttemptStatus.COMPLETED, result=result, outcome_digest=outcome, settled_at=at, last_at=at
    )


def check_failure(attempt: Attempt, claim_id: str, claim_token_hash: str, outcome: str, at: datetime) -> Reason | bool:
    """Return True for a new failure, False for a repeat of the one on record, else why it is refused."""
    if attempt.status is AttemptStatus.FAILED and attempt.held_by(claim_id, claim_token_hash):
        return False if attempt.outcome_digest == outcome else Reason.CONFLICTING_FAILURE
    return check_fence(attempt, claim_id, claim_token_hash, at) or True
