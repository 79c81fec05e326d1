"""Working on leases: run the step that a backend has delivered, and bring its outcome back."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from squid_dagster.journal.dispatch import DEFAULT_LEASE, Answer, Completed
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import ExpiredClaim, NotFound, SquidError, StaleClaim, TerminalRun
from squid_dagster.runtime.core import Runtime
from squid_dagster.runtime.executor import Executor
from squid_dagster.runtime.leases import Lease, LeaseBackend, LeaseOutcome
from squid_dagster.workflow.context import Cancellation

logger = redacting_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """What came of one lease: it was completed, or failed and what becomes of it; or was dropped, and why."""

    lease: Lease
    outcome: LeaseOutcome | None = None
    dropped: SquidError | None = None

    @property
    def completed(self) -> bool:
        """Whether its result counts."""
        return self.outcome is None and self.dropped is None


def work_one_lease(
    runtime: Runtime, backend: LeaseBackend, queue: str, owner: str, *, lease: timedelta = DEFAULT_LEASE
) -> LeaseReport | None:
    """Take one piece of work from a backend, run its step in this thread with heartbeats, bring back what came of it.

    Gives None when there is no work. An outcome that was dropped is in the report: no error, since the work was
    somebody else's by then.

    Raises:
        InvalidArgument, InvalidThread: a bad queue, owner or lease.
        StorageUnavailable: the journal cannot be reached; the lease runs out by itself.
    """
    found = backend.claim(queue, owner, lease=lease)
    if not found:
        return None
    cancelled = Cancellation()
    with _heartbeats(backend, found[0], lease, cancelled):
        outcome = Executor(runtime, asyncio.run).perform(found[0].claim, cancelled)
    try:
        if isinstance(outcome, Answer):  # a transactional step: settled with its own writes, or refused with them
            outcome.unwrap()
            backend.settled(found[0])
            runtime.notifier.notify([queue])
        elif isinstance(outcome, Completed):
            backend.complete(found[0], outcome.result)
        else:
            return LeaseReport(found[0], backend.fail(found[0], outcome))
    except SquidError as error:
        return LeaseReport(found[0], dropped=error)
    return LeaseReport(found[0])


@contextmanager
def _heartbeats(backend: LeaseBackend, held: Lease, lease: timedelta, cancelled: Cancellation) -> Iterator[None]:
    """Keep a lease alive; when it is lost, tell the step so."""
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
    """Extend a lease until the work has ended, or until it is lost, which is said to the step.

    It is lost when the backend says so, and when no heartbeat got through for as long as it lasts.
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
        except Exception as error:  # noqa: BLE001  whatever it is, without this loop the lease would be lost
            name, pause = type(error).__name__, length / 30
            logger.warning("heartbeat failed on %s: %s: %s", held.attempt.runnable_key, name, error)
            if time.monotonic() > valid_until:
                cancelled.set()
                return
