"""The claim of one attempt by its idempotency key, for work that another queue than the journal's has delivered."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from squid_dagster.journal.contract.command_target import CommandedRun, CommandTarget
from squid_dagster.journal.contract.dispatch_store import (
    Claim,
    ClaimRef,
    check_lease,
    check_text,
    hash_token,
    new_claims,
)
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.facts import AttemptClaimed, Fact
from squid_dagster.protocol.facts.base import MAX_TEXT
from squid_dagster.protocol.folds.attempt import OPEN, Attempt, AttemptStatus, definition_key, out_of_deliveries
from squid_dagster.protocol.folds.dispatch import RunDispatch
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.runtime.runtime import Runtime

_LATER = timedelta(seconds=30)  # before work whose definition is not registered here is delivered again


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no claim: not before `again_at`; or, if that is None, not at all.

    Work that was not `done` may be claimed again once a person has retried it.
    """

    why: str
    again_at: datetime | None = None
    done: bool = False


def claim_item(runtime: Runtime, run_id: str, item_id: str, owner: str, lease: timedelta) -> Claim | Refused:
    """Claim the open attempt with this idempotency key; or return why it cannot be claimed.

    Raises:
        InvalidArgument: a bad owner or lease.
    """
    check_text(owner, "owner", 1000)
    check_lease(lease)
    try:
        check_text(item_id, "item_id", MAX_TEXT)
    except InvalidArgument as error:  # a queue may deliver any value; no attempt has such a key
        return Refused(str(error))
    ((claim_id, token),) = new_claims(1)
    results: list[Claim | Refused] = []
    ended = False

    def decision(runs: Mapping[str, CommandedRun], now: datetime) -> list[Fact]:
        nonlocal ended
        run = runs[run_id]
        ended = run.state.terminal
        refused = _refusal(runtime, run, item_id, now)
        results[:] = [refused] if refused is not None else []
        if refused is not None:
            return []
        attempt = _open_attempt(run.dispatch, item_id)
        assert attempt is not None  # noqa: S101  it was not refused
        at = max(now, attempt.last_at)
        fact = AttemptClaimed(
            run_id=run_id,
            runnable_key=attempt.runnable_key,
            queue=attempt.queue,
            claim_id=claim_id,
            claim_token_hash=hash_token(token),
            owner_id=owner,
            lease_until=at + lease,
            fencing_token=run.dispatch.next_token(item_id),
            occurred_at=at,
        )
        ref = ClaimRef(attempt.queue, run_id, attempt.runnable_key, claim_id, token)
        results[:] = [Claim(ref, _claimed(attempt, fact))]
        return [fact]

    runtime.command([CommandTarget(run_id, visit=item_id)], decision)
    answer = results[0]
    if ended and isinstance(answer, Refused):  # the rows of its attempts may be deleted: its facts decide
        dispatch = RunUnit.fold(runtime.storage.read_run(run_id)).dispatch
        return replace(answer, done=_is_done(dispatch, item_id))
    return answer


def _refusal(runtime: Runtime, run: CommandedRun, item_id: str, now: datetime) -> Refused | None:
    """Return why the work may not be claimed now, or None if it may."""
    attempt = _open_attempt(run.dispatch, item_id)
    if run.state.stopped or attempt is None:
        return Refused(f"{item_id!r} has its outcome, or its run has ended", done=_is_done(run.dispatch, item_id))
    if definition_key(attempt.workflow, attempt.definition_fingerprint) not in runtime.registry.keys:
        return Refused(f"the definition of {item_id!r} is not registered here", now + _LATER)
    at = max(now, attempt.last_at)
    if attempt.status is AttemptStatus.CLAIMED and not attempt.expired(at):
        return Refused(f"{item_id!r} is held by {attempt.owner_id!r}", attempt.lease_until)
    if attempt.status is AttemptStatus.CLAIMED and out_of_deliveries(attempt):
        return Refused(f"{item_id!r} was delivered too often")
    if attempt.visible_at > at:
        return Refused(f"{item_id!r} is not due", attempt.visible_at)
    return None


def _attempts(dispatch: RunDispatch, item_id: str) -> Iterator[Attempt]:
    return (attempt for attempt in dispatch.attempts.values() if attempt.idempotency_key == item_id)


def _open_attempt(dispatch: RunDispatch, item_id: str) -> Attempt | None:
    """Return the open attempt; if there are several, the one that was scheduled first."""
    open_attempts = (attempt for attempt in _attempts(dispatch, item_id) if attempt.status in OPEN)
    return min(open_attempts, key=lambda attempt: attempt.position, default=None)


def _is_done(dispatch: RunDispatch, item_id: str) -> bool:
    return any(attempt.status is AttemptStatus.COMPLETED for attempt in _attempts(dispatch, item_id))


def _claimed(attempt: Attempt, fact: AttemptClaimed) -> Attempt:
    """Return the attempt as it is after its claim."""
    return attempt._replace(
        status=AttemptStatus.CLAIMED,
        claim_id=fact.claim_id,
        claim_token_hash=fact.claim_token_hash,
        owner_id=fact.owner_id,
        lease_until=fact.lease_until,
        deliveries=attempt.deliveries + 1,
        fencing_token=fact.fencing_token or 0,
        last_at=fact.occurred_at,
    )
