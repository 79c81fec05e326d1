"""Our own calls inside a step: they wait for the database as long as the claim stands, and never fail the step.

If the database stays unavailable, `StorageUnavailable` leaves the step, also wrapped in an error of the step, and the
attempt is interrupted. A step may catch it and continue.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from squid_dagster.journal.availability import when_available
from squid_dagster.journal.contract.dispatch_store import Claim
from squid_dagster.protocol.errors import StorageUnavailable, ViewsMissing
from squid_dagster.workflow.authoring.step_context import Cancellation

T = TypeVar("T")

Pause = Callable[[Cancellation, float], object]


@dataclass(frozen=True, slots=True)
class StepCalls:
    """Makes calls for the step of a held claim. `pause` waits between two tries, until cancelled."""

    claim: Claim
    cancelled: Cancellation
    lease: timedelta
    pause: Pause = Cancellation.wait

    def make(self, what: str, call: Callable[[], T]) -> T:
        """Call a function that is safe to repeat; repeat it while the database is unavailable. `what` is for the log.

        Heartbeats cancel the step when its claim is lost. If they succeed and the call does not, it is repeated for as
        long as a lease. An event loop is shared with other steps, so on it nothing is repeated.

        Raises:
            StorageUnavailable, ViewsMissing: the database could not do it in time.
        """
        began = time.monotonic()

        def seconds_left() -> float:
            if self.cancelled or _in_event_loop():
                return -math.inf
            return began + self.lease.total_seconds() - time.monotonic()

        subject = f"step {self.claim.ref.runnable_key} {what} and"
        return when_available(call, subject, seconds_left=seconds_left, pause=lambda s: self.pause(self.cancelled, s))


def infrastructure(error: BaseException | None) -> StorageUnavailable | ViewsMissing | None:
    """Return the failure of the database that an error is, was raised from, or contains; None if there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, StorageUnavailable | ViewsMissing):
            return error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                if (failure := infrastructure(member)) is not None:
                    return failure
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
