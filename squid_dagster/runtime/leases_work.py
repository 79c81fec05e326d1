"""Working on leases: run the step that a backend has delivered, and bring its outcome back."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from squid_dagster.journal.dispatch import DEFAULT_LEASE, Answer, Completed
from squid_dagster.protocol.errors import SquidError
from squid_dagster.runtime.core import Runtime
from squid_dagster.runtime.executor import Executor
from squid_dagster.runtime.leases import Lease, LeaseBackend, LeaseOutcome
from squid_dagster.workflow.context import Cancellation

logger = logging.getLogger(__name__)


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

    def beat() -> None:
        while not ended.wait((lease / 3).total_seconds()):
            try:
                backend.heartbeat(held, extend=lease)
            except SquidError as error:
                logger.warning("the lease on %s is lost: %s", held.attempt.runnable_key, error)
                cancelled.set()
                return

    thread = threading.Thread(target=beat, name="squid-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
