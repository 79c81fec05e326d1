"""The facts that the members of a group may write: their outcomes, checked against their claims. Pure.

Both dispatch stores use it, so that their refusals read the same.
"""

import hmac
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from squid_dagster.journal.contract.dispatch_store import (
    Claim,
    ClaimRef,
    Completed,
    Deferred,
    Failed,
    Interrupted,
    Settlement,
)
from squid_dagster.journal.contract.storage import Append
from squid_dagster.protocol.anomalies import Reason
from squid_dagster.protocol.entries import Entry, digest
from squid_dagster.protocol.errors import (
    ConflictingCompletion,
    ExpiredClaim,
    InvalidFact,
    NotFound,
    SquidError,
    StaleClaim,
    TerminalRun,
)
from squid_dagster.protocol.facts import (
    AttemptCompleted,
    AttemptDeadLettered,
    AttemptFailed,
    AttemptHeartbeat,
    AttemptReleased,
    Fact,
)
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.attempt import (
    Attempt,
    AttemptStatus,
    check_completion,
    check_failure,
    check_fence,
    out_of_deliveries,
)
from squid_dagster.protocol.folds.dispatch import RunDispatch, apply_dispatch
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import ThreadKind, parse_thread
from squid_dagster.redaction import redacted_error

# Returns the fact that the member at that place of a group writes, or None if there is nothing to write; raises if the
# member is refused.
FactOf = Callable[[int, Attempt, datetime], Fact | None]


def find_attempt(run: RunDispatch, ref: ClaimRef) -> Attempt:
    """Return the attempt that a claim is about.

    Raises:
        TerminalRun: the run has ended.
        NotFound: no such attempt was ever scheduled.
    """
    if run.fenced:
        raise TerminalRun(f"run {ref.run_id!r} has ended: drop the result of {ref.runnable_key!r}")
    attempt = run.attempts.get(ref.runnable_key)
    if attempt is None or attempt.queue != ref.queue:
        raise NotFound(f"no attempt {ref.runnable_key!r} of run {ref.run_id!r} on queue {ref.queue!r}")
    return attempt


def check_held(unit: RunUnit, ref: ClaimRef, now: datetime) -> None:
    """Raise `TerminalRun`, `NotFound`, `StaleClaim` or `ExpiredClaim` unless the claim holds at that time."""
    if unit.run.terminal:
        raise TerminalRun(
            f"run {ref.run_id!r} has ended as {unit.run.terminal_status}: the claim on {ref.runnable_key!r} may act no "
            "more, and starts no children"
        )
    _checked_time(find_attempt(unit.dispatch, ref), ref, now)


def settle_fact(attempt: Attempt, settlement: Settlement, now: datetime) -> Fact | None:
    """Return the fact that records an outcome, or None if it is on record already.

    Raises:
        StaleClaim, ExpiredClaim, ConflictingCompletion: the claim may not write this.
        InvalidFact: the outcome cannot be written.
    """
    ref, outcome = settlement.ref, settlement.outcome
    if isinstance(outcome, Deferred):
        at = _checked_time(attempt, ref, now)
        return AttemptReleased(**_fence(ref, at), reason=redacted_error(outcome.reason), visible_at=at + outcome.after)
    if isinstance(outcome, Interrupted):
        return _interruption(attempt, ref, outcome, _checked_time(attempt, ref, now))
    at = max(now, attempt.last_at)
    verdict = verdict_on(attempt, settlement, at)
    if isinstance(verdict, Reason):
        raise refusal(verdict, attempt)
    if not verdict:
        return None
    fence = _fence(ref, at)
    if isinstance(outcome, Completed):
        return AttemptCompleted(**fence, result=outcome.result)
    if outcome.retry is None:
        return AttemptFailed(**fence, error=redacted_error(outcome.error))
    key, after = outcome.retry
    error = redacted_error(outcome.error)
    return AttemptFailed(**fence, error=error, retry_runnable_key=key, retry_visible_at=at + after)


def verdict_on(attempt: Attempt, settlement: Settlement, at: datetime) -> Reason | bool:
    """Return True for a new outcome, False for the repeat of the one on record, or why it is refused."""
    ref, outcome = settlement.ref, settlement.outcome
    known = _known_hash(attempt, ref)
    if isinstance(outcome, Completed):
        return check_completion(attempt, ref.claim_id, known, _digest(outcome.result), at)
    assert isinstance(outcome, Failed)  # noqa: S101  a release has no verdict
    return check_failure(attempt, ref.claim_id, known, _digest(redacted_error(outcome.error)), at)


def _interruption(attempt: Attempt, ref: ClaimRef, outcome: Interrupted, at: datetime) -> Fact:
    """Return the release that counts as a delivery; for the last delivery, the dead letter."""
    if out_of_deliveries(attempt):
        error: JsonObject = {"code": "interrupted", "message": redacted_error(outcome.reason)}
        return AttemptDeadLettered(**_fence(ref, at), deliveries=attempt.deliveries, error=error)
    visible_at = at + outcome.after if outcome.after else None
    return AttemptReleased(
        **_fence(ref, at), reason=redacted_error(outcome.reason), visible_at=visible_at, counted=True
    )


def _digest(outcome: Any) -> str:
    try:
        return digest(outcome)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidFact(f"an outcome must be JSON: {error}") from None


def completion_fact(ref: ClaimRef, result: Any, at: datetime) -> AttemptCompleted:
    """Return the fact of a completion that is not judged yet. Raises `ValidationError` if the result is no JSON."""
    return AttemptCompleted(**_fence(ref, at), result=result)


def heartbeat_fact(attempt: Attempt, ref: ClaimRef, lease: timedelta, now: datetime) -> Fact:
    """Return the fact that extends a lease. Raises `StaleClaim` or `ExpiredClaim`."""
    at = _checked_time(attempt, ref, now)
    return AttemptHeartbeat(**_fence(ref, at), lease_until=at + lease)


def release_fact(attempt: Attempt, ref: ClaimRef, reason: str | None, now: datetime) -> Fact:
    """Return the fact that releases an attempt. Raises `StaleClaim` or `ExpiredClaim`."""
    return AttemptReleased(**_fence(ref, _checked_time(attempt, ref, now)), reason=redacted_error(reason))


def dead_letter_fact(attempt: Attempt, now: datetime) -> Fact | None:
    """Return the fact that dead-letters an attempt; None if it has deliveries left, or is not expired."""
    at = max(now, attempt.last_at)
    if attempt.status is not AttemptStatus.CLAIMED or not attempt.expired(at) or not out_of_deliveries(attempt):
        return None
    return AttemptDeadLettered(
        run_id=attempt.run_id,
        runnable_key=attempt.runnable_key,
        queue=attempt.queue,
        deliveries=attempt.deliveries,
        occurred_at=at,
    )


def make_claim(attempt: Attempt, tokens: dict[str, str]) -> Claim:
    """Combine a claimed attempt with the raw token of its claim."""
    claim_id = attempt.claim_id or ""
    return Claim(ClaimRef(attempt.queue, attempt.run_id, attempt.runnable_key, claim_id, tokens[claim_id]), attempt)


def _checked_time(attempt: Attempt, ref: ClaimRef, now: datetime) -> datetime:
    at = max(now, attempt.last_at)
    verdict = check_fence(attempt, ref.claim_id, _known_hash(attempt, ref), at)
    if verdict is not None:
        raise refusal(verdict, attempt)
    return at


def _known_hash(attempt: Attempt, ref: ClaimRef) -> str:
    """Return the attempt's token hash if the token matches it, compared in constant time; else an empty text."""
    known = attempt.claim_token_hash or ""
    return known if hmac.compare_digest(known, ref.token_hash) else ""


def _fence(ref: ClaimRef, at: datetime) -> dict[str, Any]:
    return {
        "run_id": ref.run_id,
        "runnable_key": ref.runnable_key,
        "queue": ref.queue,
        "claim_id": ref.claim_id,
        "claim_token_hash": ref.token_hash,
        "occurred_at": at,
    }


def refusal(reason: Reason, attempt: Attempt) -> SquidError:
    """Return the error for a claim that may not act on the attempt."""
    key = attempt.runnable_key
    match reason:
        case Reason.EXPIRED_CLAIM:
            return ExpiredClaim(f"the lease on {key!r} ran out at {attempt.lease_until}: drop the result")
        case Reason.CONFLICTING_COMPLETION | Reason.CONFLICTING_FAILURE:
            return ConflictingCompletion(
                f"{key!r} was settled by this claim with another outcome: the first one stands"
            )
        case _:
            return StaleClaim(f"the claim on {key!r} is no longer the current one: drop the result")


def group_appends(facts: Iterable[Fact]) -> list[Append]:
    """Group facts by thread, queues first and then runs: in one commit, a run's end is its last fact."""
    by_thread: dict[str, list[Fact]] = {}
    for fact in facts:
        by_thread.setdefault(fact.thread, []).append(fact)
    order = sorted(by_thread, key=lambda thread: (parse_thread(thread).kind is not ThreadKind.DISPATCH, thread))
    return [Append(thread, by_thread[thread]) for thread in order]


def preview(run: RunDispatch, facts: Iterable[Fact]) -> RunDispatch:
    """Return a copy of a run's part of the queue as it is once these facts are written."""
    after = run.copy()
    for fact in facts:
        apply_dispatch(after, Entry(fact.thread, 0, 0, fact))
    return after
