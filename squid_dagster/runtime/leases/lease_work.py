"""The execution of one lease: run the step that a backend has delivered, and report its outcome."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from squid_dagster.journal.contract.dispatch_store import DEFAULT_LEASE, Answer, Completed, Outcome
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import (
    ExpiredClaim,
    NotFound,
    SquidError,
    StaleClaim,
    StorageUnavailable,
    TerminalRun,
)
from squid_dagster.runtime.execution.executor import Executor
from squid_dagster.runtime.leases.lease_backend import Lease, LeaseBackend, LeaseOutcome
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.workflow.authoring.step_context import Cancellation

logger = redacting_logger(__name__)

_LONGEST_BACKOFF = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """The end of one lease: completed; or failed, with what follows; or dropped, with the error."""

    lease: Lease
    outcome: LeaseOutcome | None = None
    dropped: SquidError | None = None

    @property
    def completed(self) -> bool:
        """Whether its result counts."""
        return self.outcome is None and self.dropped is None


@checked
def work_one_lease(
    runtime: Runtime, backend: LeaseBackend, queue: str, owner: str, *, lease: timedelta = DEFAULT_LEASE
) -> LeaseReport | None:
    """Claim one attempt from a backend, run its step in this thread with heartbeats, and report its outcome.

    Returns None if there is no work. A dropped outcome is in the report and no error: another worker holds the attempt
    by then.

    Raises:
        InvalidArgument, InvalidThread: a bad queue, owner or lease.
        StorageUnavailable: the journal cannot be reached. Once the step has run, its outcome is kept for as long as
            the lease lasts; then it is dropped.
    """
    leases = backend.claim(queue, owner, lease=lease)
    if not leases:
        return None
    cancelled = Cancellation()
    with _heartbeats(backend, leases[0], lease, cancelled):
        outcome = Executor(runtime, asyncio.run).perform(leases[0].claim, cancelled)
    # The last heartbeat is at most a third of a lease ago.
    return _report(runtime, backend, leases[0], outcome, queue, lease * 2 / 3)


def _report(
    runtime: Runtime, backend: LeaseBackend, held: Lease, outcome: Outcome | Answer, queue: str, patience: timedelta
) -> LeaseReport:
    """Report an outcome; while the database is unavailable, repeat it for as long as the lease lasts."""
    gives_up_at, backoff = time.monotonic() + patience.total_seconds(), 0.05
    while True:
        try:
            if isinstance(outcome, Answer):  # a transactional step: settled with its own writes, or refused with them
                outcome.unwrap()
                backend.settled(held)
                runtime.notifier.notify([queue])
            elif isinstance(outcome, Completed):
                backend.complete(held, outcome.result)
            else:
                return LeaseReport(held, backend.fail(held, outcome))
            return LeaseReport(held)
        except StorageUnavailable as error:
            if time.monotonic() + backoff > gives_up_at:
                return LeaseReport(held, dropped=error)
            time.sleep(backoff)
            backoff = min(backoff * 2, _LONGEST_BACKOFF)
        except SquidError as error:
            return LeaseReport(held, dropped=error)


@contextmanager
def _heartbeats(backend: LeaseBackend, held: Lease, lease: timedelta, cancelled: Cancellation) -> Iterator[None]:
    """Extend a lease during the block; cancel the step when it is lost."""
    ended = threading.Event()
    thread = threading.Thread(
        target=_beat, args=(backend, held, lease, cancelled, ended), name="squid-lease", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _beat(
    backend: LeaseBackend, held: Lease, lease: timedelta, cancelled: Cancellation, ended: threading.Event
) -> None:
    """Extend a lease until the work has ended; cancel the step when the lease is lost.

    It is lost if the backend reports it, or if no heartbeat has succeeded for as long as it lasts.
    """
    length = lease.total_seconds()
    pause, valid_until = length / 3, time.monotonic() + length
    while not ended.wait(pause):
        sent = time.monotonic()
        try:
            backend.heartbeat(held, extend=lease)
            pause, valid_until = length / 3, sent + length
        except (StaleClaim, ExpiredClaim, TerminalRun, NotFound) as error:
            logger.warning("the lease on %s is lost: %s", held.attempt.runnable_key, error)
            cancelled.set()
            return
        except Exception as error:  # noqa: BLE001  without this loop the lease would be lost
            name, pause = type(error).__name__, length / 30
            logger.warning("heartbeat failed on %s: %s: %s", held.attempt.runnable_key, name, error)
            if time.monotonic() > valid_until:
                cancelled.set()
                return
