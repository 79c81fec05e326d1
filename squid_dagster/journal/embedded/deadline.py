"""A bound on waiting, handed down through everything that one call does."""

import time
from datetime import timedelta

_POLL_SECONDS = 0.01


class Deadline:
    """A moment on the monotonic clock after which waiting ends."""

    def __init__(self, timeout: timedelta) -> None:
        """Start to count now."""
        self.timeout = timeout
        self._end = time.monotonic() + timeout.total_seconds()

    @property
    def left_seconds(self) -> float:
        """How long waiting may still take; never negative."""
        return max(0.0, self._end - time.monotonic())

    def pause(self) -> bool:
        """Return way before a condition is looked at again; false when the time is up."""
        if self.left_seconds == 0.0:
            return False
        time.sleep(min(_POLL_SECONDS, self.left_seconds))
        return True
