"""Our own calls inside a step: they wait for the database as long as the claim stands, and never fail the step.

What still fails then leaves the step as `StorageUnavailable`, also wrapped into an error of the step's own, and gives
the attempt back. A step that catches it goes on as it likes.
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
    """Makes calls for the step that a claim is held for. `pause` waits between two tries, until cancelled."""

    claim: Claim
    cancelled: Cancellation
    lease: timedelta
    pause: Pause = Cancellation.wait

    def make(self, what: str, call: Callable[[], T]) -> T:
        """Make a call that is safe to repeat, and repeat it while the database cannot do it; `what` is for the log.

        The heartbeats know until when the claim stands, and cancel the step then. Where they go through and the call
        does not, it is waited for as long as a lease. An event loop, which others share, is not kept waiting at all.

        Raises:
            StorageUnavailable, ViewsMissing: the database could not do it in time.
        """
        began = time.monotonic()

        def seconds_left() -> float:
            if self.cancelled or _in_event_loop():
                return -math.inf
            return began + self.lease.total_seconds() - time.monotonic()

        told = f"step {self.claim.ref.runnable_key} {what} and"
        return when_available(call, told, seconds_left=seconds_left, pause=lambda s: self.pause(self.cancelled, s))


def infrastructure(error: BaseException | None) -> StorageUnavailable | ViewsMissing | None:
    """Return the failure of the database that an error is, was raised from, or holds; None: it is something else."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, StorageUnavailable | ViewsMissing):
            return error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                if (found := infrastructure(member)) is not None:
                    return found
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
