"""The dispatch contract: claiming attempts, and settling, extending or giving back what was claimed.

`FoldDispatchStore` keeps it on any storage by fold and compare-and-append, `PostgresDispatchStore` set-based.
Only the journal's claim fences results: whoever holds the raw token of the latest claim, while its lease lasts.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from pydantic import ValidationError

from squid_dagster.journal.storage import Append, Verified, check_appends
from squid_dagster.protocol.anomalies import Reason
from squid_dagster.protocol.codec import explain
from squid_dagster.protocol.dispatch import (
    Attempt,
    AttemptStatus,
    RunDispatch,
    apply_dispatch,
    check_completion,
    check_failure,
    check_fence,
    out_of_deliveries,
)
from squid_dagster.protocol.entries import Entry, digest
from squid_dagster.protocol.errors import (
    ConflictingCompletion,
    ExpiredClaim,
    InvalidArgument,
    InvalidFact,
    NotFound,
    SquidError,
    StaleClaim,
    TerminalRun,
)
from squid_dagster.protocol.facts import (
    FACT_TYPES,
    AttemptCompleted,
    AttemptDeadLettered,
    AttemptFailed,
    AttemptHeartbeat,
    AttemptReleased,
    Fact,
)
from squid_dagster.protocol.redaction import redact_object
from squid_dagster.protocol.run import RunProjection
from squid_dagster.protocol.threads import ThreadKind, check_part, parse_thread

MAX_CLAIMS = 1000
DEFAULT_LEASE = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """What a worker must show to act on an attempt. The raw token stays in the worker's memory."""

    queue: str
    run_id: str
    runnable_key: str
    claim_id: str
    token: str = field(repr=False)

    @property
    def token_hash(self) -> str:
        """The only form in which the token is written down."""
        return hash_token(self.token)


@dataclass(frozen=True, slots=True)
class Claim:
    """An attempt that a worker now holds."""

    ref: ClaimRef
    attempt: Attempt

    @property
    def lease_until(self) -> datetime:
        """Until when it is held."""
        assert self.attempt.lease_until is not None  # noqa: S101  a claimed attempt has a lease
        return self.attempt.lease_until


class Completed(NamedTuple):
    """The step succeeded."""

    result: Any


class Retry(NamedTuple):
    """The next attempt, that much later than the failure."""

    runnable_key: str
    after: timedelta


class Failed(NamedTuple):
    """The step failed; without a retry, for good."""

    error: dict[str, Any]
    retry: Retry | None = None


class Settlement(NamedTuple):
    """What came of one claim."""

    ref: ClaimRef
    outcome: Completed | Failed


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a planner may look at: one locked run, the attempts of it that were just settled, and the time."""

    run_id: str
    run: RunProjection
    settled: tuple[Attempt, ...]
    now: datetime


# Gives the fact that the member at that place of a group asks for, or None when there is nothing to write; raises when
# it is refused.
FactOf = Callable[[int, Attempt, datetime], Fact | None]

# Gives the facts that follow from settled attempts: applied results, plans, schedules, the end. Pure.
Planner = Callable[[PlanRequest], Sequence[Fact]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one member of a group: the attempt as it is now, or the error that refused it."""

    ref: ClaimRef
    attempt: Attempt | None = None
    error: SquidError | None = None

    def unwrap(self) -> Attempt:
        """Give the attempt, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.attempt is not None  # noqa: S101  one of the two is there
        return self.attempt


class DispatchStore(Protocol):
    """Claims and their outcomes. Members of a group are independent: a stale one never fails the others."""

    def claim(
        self,
        queue: str,
        owner_id: str,
        *,
        limit: int = 1,
        lease: timedelta = DEFAULT_LEASE,
        definitions: Collection[str] | None = None,
    ) -> list[Claim]:
        """Claim up to `limit` attempts in claim order: priority, due time, position.

        Takes visible attempts and those whose lease ran out; dead-letters what was delivered too often; gives nothing
        from a paused queue, and only what `definitions` names (see `definition_key`), unless that is None. Never
        raises a conflict.

        Raises:
            InvalidArgument, InvalidThread: a bad limit, lease, owner or queue.
        """

    def heartbeat(self, refs: Sequence[ClaimRef], lease: timedelta = DEFAULT_LEASE) -> list[Answer]:
        """Extend leases to `lease` from now; never shortens one."""

    def settle(self, settlements: Sequence[Settlement], plan: Planner | None = None) -> list[Answer]:
        """Record outcomes, and with them what `plan` makes of each run, in one commit where the storage allows it.

        Repeating an outcome is no error. Errors: `StaleClaim`, `ExpiredClaim`, `TerminalRun`, `ConflictingCompletion`,
        `NotFound`; or whatever `SquidError` the planner raised for the run.
        """

    def release(self, refs: Sequence[ClaimRef], reason: str | None = None) -> list[Answer]:
        """Give attempts back at once; counts neither as failure nor as delivery."""

    def visible(self, queue: str, limit: int = MAX_CLAIMS) -> list[Attempt]:
        """Show unclaimed attempts whose time has come, in claim order."""

    def expired(self, queue: str, limit: int = MAX_CLAIMS) -> list[Attempt]:
        """Show claimed attempts whose lease has run out, longest ago first."""

    def dead_letter_expired(self, queue: str, limit: int = MAX_CLAIMS) -> list[str]:
        """Dead-letter attempts that were delivered too often, without claiming; return their keys."""


def hash_token(token: str) -> str:
    """Give the SHA-256 of a claim token, in hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_claims(count: int) -> list[tuple[str, str]]:
    """Make that many claim ids, each with its raw token."""
    return [(secrets.token_urlsafe(16), secrets.token_urlsafe(32)) for _ in range(count)]


def check_claim(queue: str, owner_id: str, limit: int, lease: timedelta, definitions: Collection[str] | None) -> None:
    """Raise `InvalidArgument` or `InvalidThread` for a claim that makes no sense."""
    check_part(queue, "queue")
    check_text(owner_id, "owner_id", 1000)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_CLAIMS:
        raise InvalidArgument(f"limit must be a whole number from 1 to {MAX_CLAIMS}, not {limit!r}")
    check_lease(lease)
    if definitions is not None:
        if isinstance(definitions, str):
            raise InvalidArgument(f"definitions must be a collection of texts, not the text {definitions!r}")
        for definition in definitions:
            check_text(definition, "a definition", 2000)


def check_reason(reason: str | None) -> None:
    """Raise `InvalidArgument` unless the reason of a release is None or a text of up to 10,000 characters."""
    if reason is not None:
        check_text(reason, "reason", 10_000)


def check_text(value: str, what: str, most: int) -> None:
    """Raise `InvalidArgument` unless `value` is a text of 1 to `most` characters that Postgres can hold."""
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        raise InvalidArgument(f"{what} must be a text of 1 to {most} characters, not {value!r:.80}")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidArgument(f"{what} {value!r:.80} holds a character that Postgres cannot store: remove it")


def check_lease(lease: timedelta) -> None:
    """Raise `InvalidArgument` unless the lease is a positive time of at most 30 days."""
    if not isinstance(lease, timedelta) or not timedelta(0) < lease <= timedelta(days=30):
        raise InvalidArgument(f"lease must be a timedelta above zero and up to 30 days, not {lease!r}")


def check_refs(refs: Iterable[ClaimRef]) -> None:
    """Raise `InvalidArgument` when one attempt is named twice in a group."""
    seen: set[tuple[str, str]] = set()
    for ref in refs:
        if (ref.run_id, ref.runnable_key) in seen:
            raise InvalidArgument(f"attempt {ref.runnable_key!r} is named twice in one group")
        seen.add((ref.run_id, ref.runnable_key))


def find(run: RunDispatch, ref: ClaimRef) -> Attempt:
    """Give the attempt that a claim is about.

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


def settle_fact(attempt: Attempt, settlement: Settlement, now: datetime) -> Fact | None:
    """Give the fact that records an outcome, or None when it is on record already.

    Raises:
        StaleClaim, ExpiredClaim, ConflictingCompletion: the claim may not write this.
        InvalidFact: the outcome cannot be written down.
    """
    ref, outcome = settlement
    at = max(now, attempt.last_at)
    if isinstance(outcome, Completed):
        verdict = check_completion(attempt, ref.claim_id, _known_hash(attempt, ref), _digest(outcome.result), at)
    else:
        verdict = check_failure(attempt, ref.claim_id, _known_hash(attempt, ref), _digest(_redacted(outcome.error)), at)
    if isinstance(verdict, Reason):
        raise refusal(verdict, attempt)
    if not verdict:
        return None
    fence = _fence(ref, at)
    if isinstance(outcome, Completed):
        return AttemptCompleted(**fence, result=outcome.result)
    if outcome.retry is None:
        return AttemptFailed(**fence, error=outcome.error)
    key, after = outcome.retry
    return AttemptFailed(**fence, error=outcome.error, retry_runnable_key=key, retry_visible_at=at + after)


def _redacted(error: Any) -> Any:
    return redact_object(error) if isinstance(error, dict) else error


def _digest(outcome: Any) -> str:
    try:
        return digest(outcome)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidFact(f"an outcome must be JSON: {error}") from None


def heartbeat_fact(attempt: Attempt, ref: ClaimRef, lease: timedelta, now: datetime) -> Fact:
    """Give the fact that extends a lease. Raises `StaleClaim` or `ExpiredClaim`."""
    at = _checked_time(attempt, ref, now)
    return AttemptHeartbeat(**_fence(ref, at), lease_until=at + lease)


def release_fact(attempt: Attempt, ref: ClaimRef, reason: str | None, now: datetime) -> Fact:
    """Give the fact that gives an attempt back. Raises `StaleClaim` or `ExpiredClaim`."""
    return AttemptReleased(**_fence(ref, _checked_time(attempt, ref, now)), reason=reason)


def dead_letter_fact(attempt: Attempt, now: datetime) -> Fact | None:
    """Give the fact that parks an attempt which was delivered too often; None when it was not, or is not expired."""
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
    """Put a claimed attempt and the raw token of its claim together."""
    claim_id = attempt.claim_id or ""
    return Claim(ClaimRef(attempt.queue, attempt.run_id, attempt.runnable_key, claim_id, tokens[claim_id]), attempt)


def judge(refs: Sequence[ClaimRef], fact_of: FactOf, run_of: Callable[[str], RunDispatch], now: datetime) -> "Group":
    """Give the facts that members of a group may write, and the errors of those who may not."""
    facts: dict[int, Fact] = {}
    errors: dict[int, SquidError] = {}
    for i, ref in enumerate(refs):
        try:
            fact = fact_of(i, find(run_of(ref.run_id), ref), now)
        except SquidError as error:
            errors[i] = error
        except ValidationError as error:
            errors[i] = InvalidFact(explain(error))
        else:
            if fact is not None:
                facts[i] = fact
    return Group(refs, facts, errors)


def _checked_time(attempt: Attempt, ref: ClaimRef, now: datetime) -> datetime:
    at = max(now, attempt.last_at)
    verdict = check_fence(attempt, ref.claim_id, _known_hash(attempt, ref), at)
    if verdict is not None:
        raise refusal(verdict, attempt)
    return at


def _known_hash(attempt: Attempt, ref: ClaimRef) -> str:
    """Give the attempt's hash if the token fits it, compared in constant time; else one that fits nothing."""
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
    """Give the error that says why a claim may not act on the attempt."""
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


def arrange(facts: Iterable[Fact]) -> list[Append]:
    """Group facts by thread, queues first and then runs: in one commit, a run's end comes after all else about it."""
    by_thread: dict[str, list[Fact]] = {}
    for fact in facts:
        by_thread.setdefault(fact.thread, []).append(fact)
    order = sorted(by_thread, key=lambda thread: (parse_thread(thread).kind is not ThreadKind.DISPATCH, thread))
    return [Append(thread, by_thread[thread]) for thread in order]


def settled(run: RunDispatch, facts: Iterable[Fact]) -> RunDispatch:
    """Show what a run's attempts will be once these facts are written."""
    preview = run.copy()
    for fact in facts:
        apply_dispatch(preview, Entry(fact.thread, 0, 0, fact))
    return preview


def ask(plan: Planner, request: PlanRequest) -> list[Fact]:
    """Ask the planner about one run. Raises what it raises, and `InvalidFact` for anything that is no fact."""
    planned = list(plan(request))
    for fact in planned:
        if type(fact) not in FACT_TYPES.values():
            raise InvalidFact(f"the planner gave a {type(fact).__name__} for run {request.run_id!r}, not a fact")
    return planned


@dataclass(slots=True)
class Group:
    """What the members of a group want to write: their own facts by place, and what was planned for their runs."""

    refs: Sequence[ClaimRef]
    facts: dict[int, Fact]
    errors: dict[int, SquidError]
    planned: dict[str, list[Fact]] = field(default_factory=dict)

    def members(self, places: Iterable[int]) -> dict[str, list[int]]:
        """Give these places by run."""
        found: dict[str, list[int]] = {}
        for i in places:
            found.setdefault(self.refs[i].run_id, []).append(i)
        return found

    def refuse(self, places: Iterable[int], error: SquidError) -> None:
        """Let these members write nothing, and their runs neither."""
        for i in places:
            self.facts.pop(i, None)
            self.planned.pop(self.refs[i].run_id, None)
            self.errors[i] = error

    def check(self, max_fact_bytes: int) -> list[Verified]:
        """Check and encode everything; a member whose facts cannot be written is refused, with its run's plan."""
        everything = [*self.facts.values(), *(fact for facts in self.planned.values() for fact in facts)]
        try:
            return check_appends(arrange(everything), max_fact_bytes) if everything else []
        except SquidError as error:
            if not self._refuse_bad(max_fact_bytes):
                raise AssertionError("facts that are fine one by one were refused together") from error
        return self.check(max_fact_bytes)

    def _refuse_bad(self, max_fact_bytes: int) -> bool:
        refused = False
        for run_id, places in self.members(list(self.facts)).items():
            together = [places] if run_id in self.planned else [[i] for i in places]
            for some in together:
                facts = [*(self.facts[i] for i in some), *self.planned.get(run_id, ())]
                try:
                    check_appends(arrange(facts), max_fact_bytes)
                except SquidError as error:
                    self.refuse(some, error)
                    refused = True
        return refused
