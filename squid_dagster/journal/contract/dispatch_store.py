"""The dispatch contract: claiming attempts, and settling, extending or giving back what was claimed.

`FoldDispatchStore` keeps it on any storage by fold and compare-and-append, `PostgresDispatchStore` set-based.
Only the journal's claim fences results: whoever holds the raw token of the latest claim, while its lease lasts.
"""

import base64
import hashlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol, runtime_checkable

from squid_dagster.journal.contract.command_target import CommandDecision, CommandTarget
from squid_dagster.limits import MAX_CLAIMS, MAX_LEASE
from squid_dagster.protocol.argument_checks import text_problem
from squid_dagster.protocol.errors import InvalidArgument, SquidError, StorageUnavailable, shown
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.folds.attempt import Attempt, Suspicion
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import check_part

_ID_BYTES, _TOKEN_BYTES = 16, 32
DEFAULT_LEASE = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """What a worker must show to act on an attempt. The raw token stays in the worker's memory."""

    queue: str
    run_id: str
    runnable_key: str
    claim_id: str
    token: str = field(repr=False)
    token_hash: str = field(init=False, repr=False, compare=False)  # the only form in which the token is written down

    def __post_init__(self) -> None:
        """Hash the token, once.

        Raises:
            InvalidArgument: a part that is no text, or a token that is not UTF-8.
        """
        for name in ("queue", "run_id", "runnable_key", "claim_id"):
            if not isinstance(getattr(self, name), str):
                raise InvalidArgument(f"ClaimRef: {name} must be a text, not {shown(getattr(self, name))}")
        if (problem := text_problem(self.token)) is not None:
            raise InvalidArgument(f"ClaimRef: token must be {problem}")  # without its value: it is a secret
        object.__setattr__(self, "token_hash", hash_token(self.token))


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


@dataclass(slots=True)
class Suspects:
    """The worst suspect that a claim may take; and, set by the claim, how bad the one is that it has `taken`, or the
    first one that it has `passed_over`.

    A suspect is taken alone, without any other attempt. `alone` promises that its owner holds nothing else and begins
    nothing beside it; a last delivery is recorded as such then.
    """

    worst: Suspicion
    alone: bool = False
    taken: Suspicion = Suspicion.NONE
    passed_over: Suspicion = Suspicion.NONE

    def presume(self, claims: Sequence[Attempt]) -> None:
        """Set what was taken from the claims alone, if the answer that said so was lost."""
        only = claims[0] if len(claims) == 1 else None
        self.passed_over = self.taken = Suspicion.NONE
        if only is not None and only.deliveries > 1:
            self.taken = Suspicion.LAST if only.deliveries >= only.max_deliveries else Suspicion.LOST


class Completed(NamedTuple):
    """The step succeeded."""

    result: Any


class NextAttempt(NamedTuple):
    """The next attempt, that much later than the failure."""

    runnable_key: str
    after: timedelta


class Failed(NamedTuple):
    """The step failed; without a retry, for good."""

    error: dict[str, Any]
    retry: NextAttempt | None = None


class Deferred(NamedTuple):
    """The step has nothing to do yet: the attempt is given back, and seen again that much later."""

    reason: str | None
    after: timedelta


class Interrupted(NamedTuple):
    """The step could not be executed, or not to its end, through no fault of its own: it is handed out again.

    Unlike a release, this counts as a delivery, so that it ends: the last delivery becomes a dead letter.
    """

    reason: str
    after: timedelta = timedelta(0)


Unfinished = Failed | Deferred | Interrupted
Outcome = Completed | Unfinished


@runtime_checkable
class NewRun(Protocol):
    """A run that is to be started."""

    @property
    def run_id(self) -> str:
        """Its id, which no run has yet."""

    def facts(self, now: datetime) -> Sequence[Fact]:
        """Return everything that is written of it at that time. Pure; may raise to refuse, and may be asked again."""


class Lineage(NamedTuple):
    """A run that a decision asks for its start, its end and its children of one key; and other runs for how they began.

    The decision asks for nothing else.
    """

    run_id: str
    child_key: str


class Settlement(NamedTuple):
    """What came of one claim."""

    ref: ClaimRef
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a planner may look at: one locked run, the attempts of it that were just settled, and the time.

    `attempts` holds these by key, the other attempts of their visits, and the retries that their failures have created.
    The run is given away: a planner folds into it either all that it plans about the run, or nothing. It may be an
    `UnknownState`: a planner that looks at it raises `StateMissing`, and is asked again when it was read. A store that
    could not write the plan asks again with `max_fact_bytes`: then no fact may be larger, and what cannot be planned
    has to fail its run instead.
    """

    run_id: str
    run: PlanState
    settled: tuple[Attempt, ...]
    attempts: Mapping[str, Attempt]
    now: datetime
    max_fact_bytes: int | None = None


# Gives the facts that are written about runs, as all of their facts tell them, at that time; none: nothing to do.
# May raise to refuse, and may be asked again. Pure.
Decision = Callable[[Mapping[str, RunUnit], datetime], Sequence[Fact]]
# Gives the facts that follow from settled attempts: applied results, plans, schedules, the end. Pure.
Planner = Callable[[PlanRequest], Sequence[Fact]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one member of a group: the attempt as it is now, or the error that refused it.

    A `StorageUnavailable` refuses nothing: the member was not written, others were. Repeat it.
    """

    ref: ClaimRef
    attempt: Attempt | None = None
    error: SquidError | None = None

    @property
    def unavailable(self) -> bool:
        """Whether it was neither written nor refused, since something of its own was in the way: repeat it."""
        return isinstance(self.error, StorageUnavailable)

    def unwrap(self) -> Attempt:
        """Give the attempt, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.attempt is not None  # noqa: S101  one of the two is there
        return self.attempt


class DispatchStore(Protocol):
    """Claims and their outcomes. A group is a list of independent members.

    Whatever one of them is (stale, named twice, too large, not JSON, of a run that is quarantined or whose planner
    raises), it alone is refused, and every other is written as if it stood alone. A group may take several commits.
    A member that the database cannot write now, since another session holds a lock on its run or for an internal error,
    is answered with a `StorageUnavailable` that says what is waited for: repeat it. Only what concerns all, such as a
    database that cannot be reached, is raised; repeating the group is safe then.
    """

    def claim(
        self,
        queue: str,
        owner_id: str,
        *,
        limit: int = 1,
        lease: timedelta = DEFAULT_LEASE,
        definitions: Collection[str] | None = None,
        suspects: Suspects | None = None,
    ) -> list[Claim]:
        """Claim up to `limit` attempts in claim order: priority, due time, position.

        Takes visible attempts and those whose lease ran out; dead-letters what was delivered too often; gives nothing
        from a paused queue, and only what `definitions` names (see `definition_key`), unless that is None. Never
        raises a conflict.

        With `suspects`, attempts that were lost before come one at a time: the claim ends before the first of them, or
        takes it alone if it comes first. If that one is worse than allowed, all of them are passed over.

        Raises:
            InvalidArgument, InvalidThread: a bad limit, lease, owner or queue.
        """

    def heartbeat(self, refs: Sequence[ClaimRef], lease: timedelta = DEFAULT_LEASE) -> list[Answer]:
        """Extend leases to `lease` from now; never shortens one."""

    def settle(self, settlements: Sequence[Settlement], plan: Planner | None = None) -> list[Answer]:
        """Record outcomes, each together with what `plan` makes of its run, in one commit where the storage allows it.

        Members of different runs are independent, so that a group may take several commits.

        Repeating an outcome is no error, also after the run has ended, by it or otherwise: the answer is the first one.
        Another outcome of the same claim is a `ConflictingCompletion`; other errors are `StaleClaim`, `ExpiredClaim`,
        `TerminalRun`, `NotFound`, `InvalidFact` and `StorageRefused` for an outcome that cannot be written, or whatever
        `SquidError` the planner raised for the run (`PlanningFailed` for any other error). An outcome is recorded as it
        is even if what follows cannot be written: the planner is asked again, to fail the run instead.
        """

    def start_runs(self, runs: Sequence[NewRun]) -> datetime:
        """Write new runs, and return the time that their facts are written with.

        One commit where the storage allows it; elsewhere the runs' threads in the order of the facts, then the queues'.

        Raises:
            Conflict: one of them exists; where the storage allows it, nothing was written.
            SquidError: whatever a run raises for its facts; nothing is written then.
        """

    def decide(
        self,
        run_ids: Collection[str],
        decision: Decision,
        *,
        fence: ClaimRef | None = None,
        lineage: Lineage | None = None,
    ) -> list[Fact]:
        """Read these runs, write what `decision` makes of them, and be sure that no fact of theirs came in between.

        One commit where the storage allows it; elsewhere the runs' threads in the order of the facts, then the queues'.
        With `fence`, the claim of the step that asks for it, on an attempt of one of these runs: the decision is asked,
        and its facts are written, only while the claim holds (where a commit cannot span threads, it is checked just
        before). With a `lineage`, only what that says has to be read. Returns what was written.

        Raises:
            StaleClaim, ExpiredClaim, TerminalRun, NotFound: the `fence` may not act any more; nothing is written.
            SquidError: whatever the decision raises; nothing is written then.
        """

    def command(self, targets: Sequence[CommandTarget], decision: CommandDecision) -> list[Fact]:
        """Write what `decision` makes of runs, as `decide` does, from what the targets ask for and no more.

        The cost does not depend on how long the runs are, unless a thread holds what the planner never writes.

        Raises:
            SquidError: whatever the decision raises; nothing is written then.
        """

    def release(self, refs: Sequence[ClaimRef], reason: str | None = None) -> list[Answer]:
        """Give attempts back at once; counts neither as failure nor as delivery: their steps were not called."""

    def visible(
        self, queue: str, limit: int = MAX_CLAIMS, *, definitions: Collection[str] | None = None
    ) -> list[Attempt]:
        """Show unclaimed attempts whose time has come, in claim order; of these `definitions`, unless that is None."""

    def expired(
        self, queue: str, limit: int = MAX_CLAIMS, *, definitions: Collection[str] | None = None
    ) -> list[Attempt]:
        """Show claimed attempts whose lease has run out, longest ago first; of these `definitions`, as `visible`."""

    def dead_letter_expired(self, queue: str, limit: int = MAX_CLAIMS) -> list[str]:
        """Dead-letter attempts that were delivered too often, without claiming; return their keys."""


def hash_token(token: str) -> str:
    """Give the SHA-256 of a claim token, in hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_claims(count: int) -> list[tuple[str, str]]:
    """Make that many claim ids, each with its raw token."""
    # One call of the system for all of them.
    ids, tokens = secrets.token_bytes(_ID_BYTES * count), secrets.token_bytes(_TOKEN_BYTES * count)
    return list(zip(_texts(ids, _ID_BYTES), _texts(tokens, _TOKEN_BYTES), strict=True))


def _texts(chance: bytes, size: int) -> list[str]:
    parts = (chance[i : i + size] for i in range(0, len(chance), size))
    return [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts]


def check_claim(queue: str, owner_id: str, limit: int, lease: timedelta, definitions: Collection[str] | None) -> None:
    """Raise `InvalidArgument` or `InvalidThread` for a claim that makes no sense."""
    check_part(queue, "queue")
    check_text(owner_id, "owner_id", 1000)
    if not owner_id.strip():
        raise InvalidArgument(f"owner_id {owner_id!r:.80} is blank: name the worker")
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_CLAIMS:
        raise InvalidArgument(f"limit must be a whole number from 1 to {MAX_CLAIMS}, not {limit!r}")
    check_lease(lease)
    check_definitions(definitions)


def check_definitions(definitions: Collection[str] | None) -> None:
    """Raise `InvalidArgument` unless these are None, or texts that may be keys of definitions."""
    if isinstance(definitions, str):
        raise InvalidArgument(f"definitions must be a collection of texts, not the text {definitions!r}")
    for definition in definitions or ():
        check_text(definition, "a definition", 2000)


def check_reason(reason: str | None) -> None:
    """Raise `InvalidArgument` unless the reason of a release is None or a text of up to 10,000 characters."""
    if reason is not None:
        check_text(reason, "reason", 10_000)


def check_text(value: str, what: str, most: int) -> None:
    """Raise `InvalidArgument` unless `value` is a text of 1 to `most` characters that Postgres can hold."""
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        raise InvalidArgument(f"{what} must be a text of 1 to {most} characters, not {value!r:.80}")
    if "\0" in value or (not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)):
        raise InvalidArgument(f"{what} {value!r:.80} holds a character that Postgres cannot store: remove it")


def check_lease(lease: timedelta) -> None:
    """Raise `InvalidArgument` unless the lease is a positive time of at most 30 days."""
    if not isinstance(lease, timedelta):
        raise InvalidArgument(f"lease must be a timedelta, not {lease!r:.80}")
    if not timedelta(0) < lease <= MAX_LEASE:
        raise InvalidArgument(f"lease must be above zero and at most {MAX_LEASE.days} days, not {lease}")
