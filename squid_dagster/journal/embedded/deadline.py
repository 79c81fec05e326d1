"""A bound on waiting that one call passes to all its parts."""

import time
from datetime import timedelta

_POLL_SECONDS = 0.01


class Deadline:
    """A time on the monotonic clock at which waiting ends."""

    def __init__(self, timeout: timedelta) -> None:
        """Start the timeout now."""
        self.timeout = timeout
        self._end = time.monotonic() + timeout.total_seconds()

    @property
    def left_seconds(self) -> float:
        """How long waiting may still take; at least 0."""
        return max(0.0, self._end - time.monotonic())

    def pause(self) -> bool:
        """Sleep before a condition is polled again; return False when the time is up."""
        if self.left_seconds == 0.0:
            return False
        time.sleep(min(_POLL_SECONDS, self.left_seconds))
        return True
