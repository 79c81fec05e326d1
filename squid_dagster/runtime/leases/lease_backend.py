"""Lease backends: where a worker gets attempts, and where it reports outcomes. The journal's own one is here.

A backend decides which worker gets an attempt; only the journal's claim fences results. For every backend, dispatch
facts record the attempt: claimed, heartbeat, completed, failed, released. A result without a valid claim of the journal
is dropped, with the error that says why.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from squid_dagster.journal.contract.dispatch_store import (
    DEFAULT_LEASE,
    Claim,
    Completed,
    Deferred,
    Failed,
    Interrupted,
    Outcome,
    Settlement,
    Suspects,
    Unfinished,
)
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import (
    ConflictingCompletion,
    IncompatibleDefinition,
    InvalidFact,
    NotFound,
    SquidError,
    TerminalRun,
)
from squid_dagster.protocol.folds.attempt import Attempt, Suspicion
from squid_dagster.protocol.folds.visits import COMPENSATE
from squid_dagster.runtime.execution.settlement import settle, unwritable
from squid_dagster.runtime.execution.step_execution import error_map, failure
from squid_dagster.runtime.runtime import Runtime

logger = redacting_logger(__name__)

_UNWRITABLE = unwritable(None).error["code"]


class LeaseOutcome(StrEnum):
    """What becomes of work that failed."""

    REQUEUED = "requeued"
    DEAD_LETTERED = "dead_lettered"


@dataclass(frozen=True, slots=True)
class Lease:
    """One attempt that its owner may execute until `lease_until`. `ref` is the backend's own reference."""

    queue: str
    owner: str
    lease_until: datetime
    claim: Claim = field(repr=False)
    ref: object = field(default=None, repr=False)

    @property
    def item_id(self) -> str:
        """The id of the work: the same for every attempt at it and every delivery."""
        return self.claim.attempt.idempotency_key

    @property
    def attempt(self) -> Attempt:
        """What is to be done, as it was claimed: run, step, input."""
        return self.claim.attempt


class LeaseBackend(Protocol):
    """The source of attempts. Safe between threads and processes."""

    def claim(self, queue: str, owner: str, *, limit: int = 1, lease: timedelta = DEFAULT_LEASE) -> list[Lease]:
        """Return up to `limit` attempts, leased to this owner alone; none if nothing is due, or the queue is paused.

        Raises:
            InvalidArgument, InvalidThread: a bad limit, lease, owner or queue.
        """

    def heartbeat(self, lease: Lease, *, extend: timedelta = DEFAULT_LEASE) -> Lease:
        """Extend the lease until `extend` from now; never shortens it.

        Raises:
            StaleClaim, ExpiredClaim, TerminalRun, NotFound: the work is not yours any more: stop.
        """

    def complete(self, lease: Lease, result: Any = None) -> None:
        """Record a result, and what follows from it. Repeating the same is no error.

        Raises:
            StaleClaim, ExpiredClaim, TerminalRun, ConflictingCompletion, NotFound: the result was dropped.
            InvalidFact: the result cannot be written; a failure that says so is recorded in its place.
        """

    def fail(self, lease: Lease, error: Unfinished | dict[str, Any] | str) -> LeaseOutcome:
        """Record a failure; return whether there will be another attempt.

        The step's own retry policy decides, unless `error` is an outcome. Raises as `complete`.
        """

    def settled(self, lease: Lease) -> None:
        """Release work whose outcome is recorded already, by a transactional step."""


@checks_arguments
class JournalLeases:
    """`LeaseBackend` of the journal itself: its claim is the lease."""

    def __init__(self, runtime: Runtime) -> None:
        """Bind to a runtime: `squid.runtime`."""
        self._runtime = runtime

    def claim(self, queue: str, owner: str, *, limit: int = 1, lease: timedelta = DEFAULT_LEASE) -> list[Lease]:
        """Claim attempts in claim order, as the contract says; a suspect is claimed alone."""
        runtime = self._runtime
        claims = runtime.dispatch.claim(
            queue,
            owner,
            limit=limit,
            lease=lease,
            definitions=runtime.registry.keys,
            suspects=Suspects(Suspicion.LAST),
        )
        return [Lease(queue, owner, claim.lease_until, claim) for claim in claims]

    def heartbeat(self, lease: Lease, *, extend: timedelta = DEFAULT_LEASE) -> Lease:
        """Extend the claim, as the contract says."""
        return extended(self._runtime, lease, extend)

    def complete(self, lease: Lease, result: Any = None) -> None:
        """Settle the claim, as the contract says."""
        settle_lease(self._runtime, lease, Completed(result))

    def fail(self, lease: Lease, error: Unfinished | dict[str, Any] | str) -> LeaseOutcome:
        """Settle the claim with a failure, as the contract says."""
        outcome = failed(self._runtime, lease, error)
        settle_lease(self._runtime, lease, outcome)
        return LeaseOutcome.DEAD_LETTERED if comes_back(outcome) is None else LeaseOutcome.REQUEUED

    def settled(self, lease: Lease) -> None:
        """Return at once: the claim is settled already."""


def extended(runtime: Runtime, lease: Lease, extend: timedelta) -> Lease:
    """Extend the journal's claim behind a lease. Raises as `LeaseBackend.heartbeat`."""
    attempt = runtime.dispatch.heartbeat([lease.claim.ref], extend)[0].unwrap()
    return replace(lease, lease_until=attempt.lease_until or lease.lease_until)


def settle_lease(runtime: Runtime, lease: Lease, outcome: Outcome) -> None:
    """Record the outcome of a lease, with all that follows; log and raise if it is dropped."""
    answer = settle(runtime, [Settlement(lease.claim.ref, outcome)]).answers[0]
    if answer.unavailable:
        answer.unwrap()  # not dropped: it may be tried again
    error = answer.error or _replaced(answer.unwrap(), outcome)
    if error is not None:
        logger.warning("dropped the outcome of %s: %s", lease.attempt.runnable_key, error)
        raise error


def _replaced(attempt: Attempt, outcome: Outcome) -> InvalidFact | None:
    """Return the error of an outcome that could not be written, if a failure was recorded in its place."""
    code = outcome.error.get("code") if isinstance(outcome, Failed) else None  # of a transactional step
    recorded = attempt.error or {}
    return InvalidFact(recorded["message"]) if recorded.get("code") == _UNWRITABLE != code else None


def failed(runtime: Runtime, lease: Lease, error: Unfinished | dict[str, Any] | str) -> Unfinished:
    """Return the outcome of a failure: the given one, else by the step's retry policy.

    Raises:
        IncompatibleDefinition: the definition of the attempt is not registered here.
    """
    if isinstance(error, Unfinished):
        return error
    attempt = lease.attempt
    definition = runtime.registry.find(attempt.workflow, attempt.definition_fingerprint, attempt.definition_version)
    if definition is None:
        raise IncompatibleDefinition(f"the definition of {attempt.runnable_key!r} is not registered here")
    description = error_map("failed", error) if isinstance(error, str) else error
    step = definition.steps[attempt.step.removeprefix(COMPENSATE)]
    return failure(description, False, step, attempt, runtime.random_unit)


def comes_back(outcome: Unfinished) -> timedelta | None:
    """Return the delay until the next attempt; None if there is none."""
    if isinstance(outcome, Deferred | Interrupted):
        return outcome.after
    return None if outcome.retry is None else outcome.retry.after


def is_over(error: SquidError) -> bool:
    """Return whether an error means that the journal takes no more outcomes of this attempt, unless it is retried."""
    return isinstance(error, ConflictingCompletion | InvalidFact | NotFound | TerminalRun)
