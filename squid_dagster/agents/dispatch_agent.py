"""`DispatchAgent`: the attempts of one queue, one operation at a time. A worker uses the store behind it in groups."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from squid_dagster.journal import Storage
from squid_dagster.journal.contract.dispatch_store import (
    DEFAULT_LEASE,
    Claim,
    ClaimRef,
    Completed,
    DispatchStore,
    Failed,
    NextAttempt,
    Planner,
    Settlement,
)
from squid_dagster.journal.contract.notifier import GuardedNotifier, Notifier
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.facts import Fact, LiveWakeupEmitted, Runnable, RunQueued
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.folds.dispatch import DispatchProjection
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import check_part, dispatch_thread
from squid_dagster.workflow.planner.schedule import schedule


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of an operation: its agent, and the attempt as it is now."""

    agent: "DispatchAgent"
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class HeartbeatResult(AttemptResult):
    """An extended lease."""

    lease_until: datetime


@dataclass(frozen=True, slots=True)
class ClaimResult(HeartbeatResult):
    """A claimed attempt, with the claim that fences it. The raw token is here and nowhere else."""

    claim: Claim

    @property
    def claim_id(self) -> str:
        """The id of the claim."""
        return self.claim.ref.claim_id

    @property
    def claim_token(self) -> str:
        """The raw token: keep it in memory only."""
        return self.claim.ref.token


@checks_arguments
class DispatchAgent:
    """One queue. Operations on a claim take its `ClaimRef`, or the `ClaimResult` of `claim_next`."""

    def __init__(
        self,
        storage: Storage,
        dispatch: DispatchStore,
        queue: str,
        *,
        plan: Planner | None = None,
        definitions: Collection[str] | None = None,
        notifier: Notifier | None = None,
        record_wakeups: bool = True,
    ) -> None:
        """Bind to a queue. `plan` plans what follows from outcomes, `definitions` may be claimed (None: all).

        With `record_wakeups`, a wakeup for scheduled attempts is recorded as a fact, `live_wakeup_emitted`.
        """
        self.queue = check_part(queue, "queue")
        self._storage, self._dispatch, self._plan = storage, dispatch, plan
        self._definitions, self._record_wakeups = definitions, record_wakeups
        self._notifier = None if notifier is None else GuardedNotifier.of(notifier)

    def __repr__(self) -> str:
        """Return the agent with its queue."""
        return f"DispatchAgent({self.queue!r})"

    @property
    def projection(self) -> DispatchProjection:
        """The whole queue, folded from its thread. It costs the queue's history: no operation here reads it."""
        return DispatchProjection.fold(self._storage.read(dispatch_thread(self.queue)))

    def claim_next(self, owner_id: str, *, lease: timedelta = DEFAULT_LEASE) -> ClaimResult | None:
        """Claim the attempt that is next in order; return None if none is due.

        >>> agent.claim_next("ada").attempt.step
        'check'

        Raises:
            InvalidArgument: a bad owner or lease.
        """
        return next(iter(self.claim_many(owner_id, 1, lease=lease)), None)

    def claim_many(self, owner_id: str, limit: int, *, lease: timedelta = DEFAULT_LEASE) -> list[ClaimResult]:
        """Claim up to `limit` attempts at once, in order. Raises as `claim_next`.

        >>> [claim.attempt.step for claim in agent.claim_many("ada", 10)]
        ['check']
        """
        claims = self._dispatch.claim(self.queue, owner_id, limit=limit, lease=lease, definitions=self._definitions)
        return [ClaimResult(self, claim.attempt, claim.lease_until, claim) for claim in claims]

    def heartbeat(self, claim: ClaimRef | ClaimResult, *, lease: timedelta = DEFAULT_LEASE) -> HeartbeatResult:
        """Extend a lease to `lease` from now; never shortens it.

        >>> claim = agent.claim_next("ada", lease=timedelta(seconds=30))
        >>> agent.heartbeat(claim, lease=timedelta(minutes=5)).lease_until - claim.lease_until
        datetime.timedelta(seconds=270)

        Raises:
            StaleClaim, ExpiredClaim, TerminalRun, NotFound: the claim may not act any more: stop.
        """
        attempt = self._dispatch.heartbeat([_ref(claim)], lease)[0].unwrap()
        assert attempt.lease_until is not None  # noqa: S101  a heartbeat leaves a lease
        return HeartbeatResult(self, attempt, attempt.lease_until)

    def complete(self, claim: ClaimRef | ClaimResult, result: Any = None) -> AttemptResult:
        """Record a success, and what follows from it. Repeating the same is no error, also after it has ended the run.

        >>> claim = agent.claim_next("ada")
        >>> agent.complete(claim, "tea").attempt.result
        'tea'

        Raises:
            StaleClaim, ExpiredClaim, TerminalRun, ConflictingCompletion, NotFound: nothing was written; drop it.
            InvalidFact: the result is not JSON, or too large.
        """
        return self._settle(Settlement(_ref(claim), Completed(result)))

    def fail(
        self, claim: ClaimRef | ClaimResult, error: dict[str, Any], *, retry_after: timedelta | None = None
    ) -> AttemptResult:
        """Record a failure; with `retry_after`, the next attempt is visible that much later. Raises as `complete`.

        >>> claim = agent.claim_next("ada")
        >>> agent.fail(claim, {"message": "no tea"}, retry_after=timedelta(minutes=1)).attempt.attempt_number
        1
        """
        ref = _ref(claim)
        retry = None
        if retry_after is not None:
            head, _, number = ref.runnable_key.rpartition(":")
            if not number.isdigit():
                raise InvalidArgument(f"runnable key {ref.runnable_key!r} has no attempt number to count on from")
            retry = NextAttempt(f"{head}:{int(number) + 1}", retry_after)
        return self._settle(Settlement(ref, Failed(error, retry)))

    def release(self, claim: ClaimRef | ClaimResult, reason: str | None = None) -> AttemptResult:
        """Release an attempt at once. Raises `StaleClaim`, `ExpiredClaim`, `TerminalRun` or `NotFound`.

        >>> claim = agent.claim_next("ada")
        >>> agent.release(claim, "shutting down").attempt.owner_id is None
        True
        """
        return AttemptResult(self, self._dispatch.release([_ref(claim)], reason)[0].unwrap())

    def schedule_attempts(self, run_id: str, runnables: Iterable[Runnable]) -> list[Runnable]:
        """Schedule planned runnables of a run on this queue; return those that were not scheduled yet.

        Once the run has ended, these are none. With a notifier, workers are woken; with `record_wakeups`, that is
        recorded as `live_wakeup_emitted` in a commit of its own. Nothing follows from that fact.

        >>> agent.schedule_attempts(run_id, squid.workflow_agent(run_id).pending_dispatches())
        []

        Raises:
            InvalidArgument: a runnable of another run or queue, or one that was not planned. Nothing was written.
        """
        wanted = list(runnables)
        for runnable in wanted:
            if not isinstance(runnable, Runnable):
                raise InvalidArgument(f"runnables must be a list of Runnable, not of {type(runnable).__name__}")
            if runnable.run_id != run_id or runnable.queue != self.queue:
                raise InvalidArgument(
                    f"runnable {runnable.runnable_key!r} is of run {runnable.run_id!r} and queue {runnable.queue!r}, "
                    f"not of {run_id!r} and {self.queue!r}"
                )
        new: list[Runnable] = []

        def decision(units: Any, now: datetime) -> Sequence[Fact]:
            unit: RunUnit = units[run_id]
            for runnable in wanted:
                if runnable.runnable_key not in unit.run.planned:
                    raise InvalidArgument(f"run {run_id!r} has not planned {runnable.runnable_key!r}: plan it first")
            known = unit.dispatch.attempts
            new[:] = [runnable for runnable in wanted if runnable.runnable_key not in known and not unit.run.stopped]
            facts: list[Fact] = [schedule(runnable, unit.run.start, now) for runnable in new]
            if facts and unit.dispatch.queue is None:
                facts.insert(0, RunQueued(run_id=run_id, queue=self.queue, occurred_at=now))
            return facts

        self._dispatch.decide([run_id], decision)
        if new and self._notifier is not None:
            notified = self._notifier.try_notify([self.queue])
            if notified and self._record_wakeups:
                self._record_wakeup(run_id, new)
        return new

    def visible_attempts(self, limit: int = 1000) -> list[Attempt]:
        """Show attempts that could be claimed now, in claim order, whether the queue is paused or not.

        >>> [attempt.step for attempt in agent.visible_attempts()]
        ['check']
        """
        return self._dispatch.visible(self.queue, limit)

    def expired_claims(self, limit: int = 1000) -> list[Attempt]:
        """Show claims whose lease has run out, longest ago first.

        >>> agent.expired_claims()
        []
        """
        return self._dispatch.expired(self.queue, limit)

    def _settle(self, settlement: Settlement) -> AttemptResult:
        return AttemptResult(self, self._dispatch.settle([settlement], self._plan)[0].unwrap())

    def _record_wakeup(self, run_id: str, runnables: Sequence[Runnable]) -> None:
        def decision(units: Any, now: datetime) -> Sequence[Fact]:
            # An attempt may be settled already: a fact about it would be an anomaly.
            still_open = {attempt.runnable_key: attempt for attempt in units[run_id].dispatch.open_attempts()}
            return [
                LiveWakeupEmitted(
                    run_id=run_id, runnable_key=key, queue=self.queue, occurred_at=max(now, attempt.last_at)
                )
                for key in (runnable.runnable_key for runnable in runnables)
                if (attempt := still_open.get(key)) is not None
            ]

        self._dispatch.decide([run_id], decision)


def _ref(claim: ClaimRef | ClaimResult) -> ClaimRef:
    return claim if isinstance(claim, ClaimRef) else claim.claim.ref
