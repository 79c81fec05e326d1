"""Drivers that do the work of workers in virtual time, until nothing is due or a run is blocked."""

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
    """Work was left after the allowed number of attempts: a loop, or a limit that is too low."""


def clock_of(squid: Squid) -> VirtualClock | None:
    """Return the clock of a squid, if it can be moved."""
    clock = getattr(squid, "clock", None) or getattr(squid.journal, "clock", None)
    return clock if isinstance(clock, VirtualClock) else None


@checked
def advance(squid: Squid, by: timedelta) -> datetime:
    """Move the squid's clock forward and return the new time. Executes nothing.

    Raises:
        InvalidArgument: its clock cannot be moved, or `by` is no timedelta of 0 or more.
    """
    clock = clock_of(squid)
    if clock is None:
        raise InvalidArgument("the clock of this squid cannot be moved: make it with make_squid(...)")
    if not isinstance(by, timedelta) or by < timedelta(0):
        raise InvalidArgument(f"time passes forwards, by a timedelta of 0 or more, not {by!r}")
    return clock.advance(by)


@checked
def drain(squid: Squid, queue: str | Iterable[str] | None = None, limit: int = DEFAULT_LIMIT) -> int:
    """Execute all attempts that are due now or become due by that, on one queue, some or all; return their number.

    The clock does not move, so attempts that are due later stay. A step that lost its claim while it ran counts as
    executed; its result is dropped, as in a worker.

    Raises:
        LimitReached: more than `limit` attempts were executed.
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
    """Execute a run until it needs a person, moving the clock over waits, retries, deferrals and leases.

    Returns the run as it is then: ended, or waiting for an operator (an approval, a pause, a dead letter, a missing
    definition, a paused queue). Does the work of a worker with its maintenance, so it also closes what a crash has left
    open. Other runs on the same queue are executed, too, in their turn.

    Raises:
        NotFound: no such run.
        LimitReached: it is not blocked after `limit` attempts and moves of the clock.
        InvalidArgument: it waits for a time, and the squid's clock cannot be moved.
    """
    _check_limit(limit)
    for _ in range(limit):
        snapshot = squid.inspect_run(run_id)
        if snapshot.terminal or snapshot.status in ("quarantined", "paused", "held"):
            return snapshot
        if not _make_progress(squid, snapshot):
            return squid.inspect_run(run_id)
    snapshot = squid.inspect_run(run_id)
    raise LimitReached(
        f"run {run_id!r} was not blocked after {limit} attempts and moves of the clock: it is {snapshot.status} "
        f"({snapshot.reason}); "
        f"look at squid.inspect_run_timeline({run_id!r}), or raise limit"
    )


def _make_progress(squid: Squid, snapshot: RunSnapshot) -> bool:
    """Execute, wait or recover, whichever the run needs next; return whether anything changed."""
    if snapshot.visible_attempts or snapshot.expired_claims:
        # A claim may change the run without executing: it dead-letters an attempt that was delivered too often.
        return _execute_one(squid, snapshot.queue) or _changed(squid, snapshot)
    due = _next_due(snapshot)
    if due is not None:
        if clock_of(squid) is None:
            raise InvalidArgument(
                f"run {snapshot.run_id!r} goes on at {due.isoformat()}, and the clock of this squid cannot be moved: "
                "make it with make_squid(...)"
            )
        advance(squid, max(due - squid.runtime.now(), timedelta(0)))
        return True
    squid.recover()
    return _changed(squid, snapshot)


def _changed(squid: Squid, snapshot: RunSnapshot) -> bool:
    return squid.inspect_run(snapshot.run_id).thread_revisions != snapshot.thread_revisions


def _next_due(snapshot: RunSnapshot) -> datetime | None:
    """Return the time at which an attempt of the run becomes claimable: it is visible, or its lease runs out."""
    leases = [attempt.lease_until for attempt in snapshot.attempts if attempt.status == AttemptStatus.CLAIMED]
    return min((at for at in (snapshot.next_visible_at, *leases) if at is not None), default=None)


def _execute_one(squid: Squid, queue: str | None) -> bool:
    """Execute one attempt; return whether one was due."""
    try:
        return squid.execute_next(queue) is not None
    except (StaleClaim, ExpiredClaim, TerminalRun):
        return True


def _check_limit(limit: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidArgument(f"limit must be a whole number of at least 1, not {limit!r}")
