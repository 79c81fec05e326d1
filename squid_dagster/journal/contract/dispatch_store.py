"""The dispatch contract: how attempts are claimed, and claims are settled, extended or released.

`FoldDispatchStore` keeps it on any storage by fold and compare-and-append, `PostgresDispatchStore` set-based.
Only the journal's claim fences results: a caller needs the raw token of the latest claim, while its lease lasts.
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
    """The proof of a claim that a worker needs to act on an attempt. The raw token stays in the worker's memory."""

    queue: str
    run_id: str
    runnable_key: str
    claim_id: str
    token: str = field(repr=False)
    token_hash: str = field(init=False, repr=False, compare=False)  # only the hash is stored

    def __post_init__(self) -> None:
        """Hash the token, once.

        Raises:
            InvalidArgument: a field that is no text, or a token that is not UTF-8.
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
    """The worst suspicion that a claim may take; and, set by the claim, that of the suspect that it has `taken`, or of
    the first one that it has `passed_over`.

    A suspect is claimed without any other attempt. `alone` promises that its owner holds no other claim and makes none
    meanwhile; a last delivery is then recorded as `alone`.
    """

    worst: Suspicion
    alone: bool = False
    taken: Suspicion = Suspicion.NONE
    passed_over: Suspicion = Suspicion.NONE

    def presume(self, claims: Sequence[Attempt]) -> None:
        """Set `taken` from the claims alone, if the answer of the database was lost."""
        only = claims[0] if len(claims) == 1 else None
        self.passed_over = self.taken = Suspicion.NONE
        if only is not None and only.deliveries > 1:
            self.taken = Suspicion.LAST if only.deliveries >= only.max_deliveries else Suspicion.LOST


class Completed(NamedTuple):
    """The step succeeded."""

    result: Any


class NextAttempt(NamedTuple):
    """The next attempt, due so long after the failure."""

    runnable_key: str
    after: timedelta


class Failed(NamedTuple):
    """The step failed; without `retry`, finally."""

    error: dict[str, Any]
    retry: NextAttempt | None = None


class Deferred(NamedTuple):
    """The step has nothing to do yet: the attempt is released, and visible again so much later."""

    reason: str | None
    after: timedelta


class Interrupted(NamedTuple):
    """The step could not be executed, or not to its end, through no fault of its own: it is delivered again.

    Unlike a release, this counts as a delivery, so that retries end: the last delivery becomes a dead letter.
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
        """The id of the run, which does not exist yet."""

    def facts(self, now: datetime) -> Sequence[Fact]:
        """Return all facts of its start at that time. Pure; may raise to refuse, and may be called again."""


class Lineage(NamedTuple):
    """A run of which a decision reads only its start, its end and its children of one key; of others, their start."""

    run_id: str
    child_key: str


class Settlement(NamedTuple):
    """The outcome of one claim."""

    ref: ClaimRef
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a planner may read: one locked run, its attempts that were just settled, and the time.

    `attempts` holds these by key, the other attempts of their visits, and the retries that their failures have created.
    A planner folds into `run` either all that it plans about the run, or nothing. `run` may be an `UnknownState`: a
    planner that reads it raises `StateMissing`, and is called again with the state. A store that could not write the
    plan calls again with `max_fact_bytes`: then no fact may be larger, and a plan that is impossible fails the run.
    """

    run_id: str
    run: PlanState
    settled: tuple[Attempt, ...]
    attempts: Mapping[str, Attempt]
    now: datetime
    max_fact_bytes: int | None = None


# Returns the facts that are written about runs, folded from all of their facts, at that time; none: nothing to do.
# May raise to refuse, and may be called again. Pure.
Decision = Callable[[Mapping[str, RunUnit], datetime], Sequence[Fact]]
# Returns the facts that follow from settled attempts: applied results, plans, schedules, the end. Pure.
Planner = Callable[[PlanRequest], Sequence[Fact]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one member of a group: the attempt as it is now, or the error that refused it.

    A `StorageUnavailable` is no refusal: the member was not written, others were. Repeat it.
    """

    ref: ClaimRef
    attempt: Attempt | None = None
    error: SquidError | None = None

    @property
    def unavailable(self) -> bool:
        """Whether the member was neither written nor refused, for a reason of its own such as a lock: repeat it."""
        return isinstance(self.error, StorageUnavailable)

    def unwrap(self) -> Attempt:
        """Return the attempt, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.attempt is not None  # noqa: S101  one of the two is there
        return self.attempt


class DispatchStore(Protocol):
    """Claims and their outcomes. A group is a list of independent members.

    An invalid member (stale, named twice, too large, not JSON, of a run that is quarantined or whose planner raises) is
    refused alone, and every other is written as if it stood alone. A group may take several commits. A member that the
    database cannot write now, since another session holds a lock on its run or for an internal error, is answered with
    a `StorageUnavailable` that names the cause: repeat it. Only what concerns all members, such as an unreachable
    database, is raised; it is then safe to repeat the group.
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

        Takes visible attempts and those whose lease ran out; dead-letters what was delivered too often; takes nothing
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
        """Record outcomes, each with the facts that `plan` returns for its run, in one commit if the storage allows it.

        Members of different runs are independent, so that a group may take several commits.

        Repeating an outcome is no error, also after the run has ended, by it or otherwise: the answer is the first one.
        Another outcome of the same claim is a `ConflictingCompletion`; other errors are `StaleClaim`, `ExpiredClaim`,
        `TerminalRun`, `NotFound`, `InvalidFact` and `StorageRefused` for an outcome that cannot be written, or whatever
        `SquidError` the planner raised for the run (`PlanningFailed` for any other error). An outcome is recorded even
        if what follows cannot be written: the planner is called again, to fail the run instead.
        """

    def start_runs(self, runs: Sequence[NewRun]) -> datetime:
        """Write new runs, and return the time of their facts.

        One commit if the storage allows it; else the runs' threads in the order of the facts, then the queues'.

        Raises:
            Conflict: one of them exists; nothing was written, if a commit of the storage can span threads.
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
        """Read these runs, write the facts that `decision` returns for them, and ensure that none came in between.

        One commit if the storage allows it; else the runs' threads in the order of the facts, then the queues'.
        `fence` is the claim of the calling step, on an attempt of one of these runs: the decision is called, and its
        facts are written, only while the claim holds (where a commit cannot span threads, it is checked just before).
        With a `lineage`, only what that names has to be read. Returns the written facts.

        Raises:
            StaleClaim, ExpiredClaim, TerminalRun, NotFound: the `fence` may not act any more; nothing is written.
            SquidError: whatever the decision raises; nothing is written then.
        """

    def command(self, targets: Sequence[CommandTarget], decision: CommandDecision) -> list[Fact]:
        """Write the facts that `decision` returns for runs, as `decide` does, but read only what the targets ask for.

        The cost does not depend on how long the runs are, unless a thread holds what the planner never writes.

        Raises:
            SquidError: whatever the decision raises; nothing is written then.
        """

    def release(self, refs: Sequence[ClaimRef], reason: str | None = None) -> list[Answer]:
        """Release attempts at once; counts neither as failure nor as delivery: their steps were not called."""

    def visible(
        self, queue: str, limit: int = MAX_CLAIMS, *, definitions: Collection[str] | None = None
    ) -> list[Attempt]:
        """Return unclaimed attempts whose time has come, in claim order; of these `definitions`, unless None."""

    def expired(
        self, queue: str, limit: int = MAX_CLAIMS, *, definitions: Collection[str] | None = None
    ) -> list[Attempt]:
        """Return claimed attempts whose lease has run out, longest ago first; of these `definitions`, as `visible`."""

    def dead_letter_expired(self, queue: str, limit: int = MAX_CLAIMS) -> list[str]:
        """Dead-letter attempts that were delivered too often, without claiming; return their keys."""


def hash_token(token: str) -> str:
    """Return the SHA-256 of a claim token, in hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_claims(count: int) -> list[tuple[str, str]]:
    """Generate claim ids, each with its raw token."""
    # Two system calls for all of them.
    ids, tokens = secrets.token_bytes(_ID_BYTES * count), secrets.token_bytes(_TOKEN_BYTES * count)
    return list(zip(_texts(ids, _ID_BYTES), _texts(tokens, _TOKEN_BYTES), strict=True))


def _texts(random_bytes: bytes, size: int) -> list[str]:
    parts = (random_bytes[i : i + size] for i in range(0, len(random_bytes), size))
    return [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts]


def check_claim(queue: str, owner_id: str, limit: int, lease: timedelta, definitions: Collection[str] | None) -> None:
    """Raise `InvalidArgument` or `InvalidThread` for an invalid claim."""
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
    if "\0" in value or text_problem(value) is not None:
        raise InvalidArgument(f"{what} {value!r:.80} holds a character that Postgres cannot store: remove it")


def check_lease(lease: timedelta) -> None:
    """Raise `InvalidArgument` unless the lease is a positive time of at most 30 days."""
    if not isinstance(lease, timedelta):
        raise InvalidArgument(f"lease must be a timedelta, not {lease!r:.80}")
    if not timedelta(0) < lease <= MAX_LEASE:
        raise InvalidArgument(f"lease must be above zero and at most {MAX_LEASE.days} days, not {lease}")
