"""Doing what workers do, one attempt at a time and in virtual time: until nothing is due, or a run is blocked."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from squid_dagster.api import Squid
from squid_dagster.inspection import RunSnapshot
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import ExpiredClaim, InvalidArgument, SquidError, StaleClaim, TerminalRun
from squid_dagster.protocol.folds.attempt import AttemptStatus

DEFAULT_LIMIT = 1000


class LimitReached(SquidError):
    """There was still something to do after as many attempts as were allowed: a loop, or a limit that is too low."""


def clock_of(squid: Squid) -> VirtualClock | None:
    """Give the clock that a squid goes by, if it is one that can be moved."""
    found = getattr(squid, "clock", None) or getattr(squid.journal, "clock", None)
    return found if isinstance(found, VirtualClock) else None


@checked
def advance(squid: Squid, by: timedelta) -> datetime:
    """Let time pass for everything that goes by the squid's clock, and tell the new time. Nothing is executed.

    Raises:
        InvalidArgument: its clock cannot be moved, or `by` is no time that could pass.
    """
    clock = clock_of(squid)
    if clock is None:
        raise InvalidArgument("the clock of this squid cannot be moved: make it with make_squid(...)")
    if not isinstance(by, timedelta) or by < timedelta(0):
        raise InvalidArgument(f"time passes forwards, by a timedelta of 0 or more, not {by!r}")
    return clock.advance(by)


@checked
def drain(squid: Squid, queue: str | Iterable[str] | None = None, limit: int = DEFAULT_LIMIT) -> int:
    """Execute all that is due now, and all that becomes due by that, on one queue, some or all; tell how many attempts.

    Time stands still: what is due later stays where it is. A step that lost its claim while it ran counts as executed;
    its result was dropped, as it would be in a worker.

    Raises:
        LimitReached: more than `limit` attempts were executed, and there is no end in sight.
        InvalidArgument, InvalidThread: a limit below 1, or a bad queue.
    """
    _check_limit(limit)
    named = [queue] if isinstance(queue, str) else None if queue is None else list(queue)
    executed = 0
    while True:
        before = executed
        for name in [row.queue for row in squid.runtime.queries.queues()] if named is None else named:
            while _execute_one(squid, name):
                executed += 1
                if executed > limit:
                    raise LimitReached(
                        f"more than {limit} attempts were executed, the last one from queue {name!r}: look for a "
                        "workflow that goes round in circles, or raise limit"
                    )
        if executed == before:
            return executed


@checked
def execute_until_blocked(squid: Squid, run_id: str, limit: int = DEFAULT_LIMIT) -> RunSnapshot:
    """Execute a run as far as it comes without a person, moving the clock over waits, retries, deferrals and leases.

    Gives the run as it is then: ended, or in need of somebody (an approval, a pause, a dead letter, a definition that
    is missing, a paused queue). Does what a worker with its housekeeping does, so what a crash has left open is closed.
    Other runs that wait on the same queue are executed on the way, as their turn comes.

    Raises:
        NotFound: no such run.
        LimitReached: it is not blocked after `limit` attempts and moves of the clock.
        InvalidArgument: it waits for a time, and the squid's clock cannot be moved.
    """
    _check_limit(limit)
    for _ in range(limit):
        seen = squid.inspect_run(run_id)
        if seen.terminal or seen.status in ("quarantined", "paused", "held"):
            return seen
        if not _go_on(squid, seen):
            return squid.inspect_run(run_id)
    seen = squid.inspect_run(run_id)
    raise LimitReached(
        f"run {run_id!r} was not blocked after {limit} attempts and moves of the clock: it is {seen.status} "
        f"({seen.reason}); "
        f"look at squid.inspect_run_timeline({run_id!r}), or raise limit"
    )


def _go_on(squid: Squid, seen: RunSnapshot) -> bool:
    """Do the next thing that brings the run on; tell whether there was one."""
    if seen.visible_attempts or seen.expired_claims:
        # Nothing may be executed although something changes: a claim dead-letters what was delivered too often.
        return _execute_one(squid, seen.queue) or _changed(squid, seen)
    due = _next_due(seen)
    if due is not None:
        if clock_of(squid) is None:
            raise InvalidArgument(
                f"run {seen.run_id!r} goes on at {due.isoformat()}, and the clock of this squid cannot be moved: "
                "make it with make_squid(...)"
            )
        advance(squid, max(due - squid.runtime.now(), timedelta(0)))
        return True
    squid.recover()
    return _changed(squid, seen)


def _changed(squid: Squid, seen: RunSnapshot) -> bool:
    return squid.inspect_run(seen.run_id).thread_revisions != seen.thread_revisions


def _next_due(seen: RunSnapshot) -> datetime | None:
    """Give the time at which something of the run becomes claimable: a wait is over, or the lease of who holds it."""
    leases = [each.lease_until for each in seen.attempts if each.status == AttemptStatus.CLAIMED]
    return min((at for at in (seen.next_visible_at, *leases) if at is not None), default=None)


def _execute_one(squid: Squid, queue: str | None) -> bool:
    """Execute one attempt; tell whether one was due."""
    try:
        return squid.execute_next(queue) is not None
    except (StaleClaim, ExpiredClaim, TerminalRun):
        return True


def _check_limit(limit: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidArgument(f"limit must be a whole number of at least 1, not {limit!r}")
