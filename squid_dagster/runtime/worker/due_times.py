"""When work that a worker has scheduled is due, so that it claims at that time, however seldom it polls."""

import heapq
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta

_MOST = 10_000  # times that are stored; work beyond that is found by polling


class DueTimes:
    """Times in the future, in seconds of the caller's clock. Safe between threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without any."""
        self._clock = clock
        self._times: list[float] = []
        self._lock = threading.Lock()

    def add(self, delays: Iterable[timedelta]) -> None:
        """Add the ends of these delays; work that is due at once is ignored."""
        now = self._clock()
        with self._lock:
            for delay in delays:
                if delay > timedelta(0) and len(self._times) < _MOST:
                    heapq.heappush(self._times, now + delay.total_seconds())

    def next_within(self, seconds: float) -> float:
        """Return in how many seconds something is due next; at most `seconds`."""
        now = self._clock()
        with self._lock:
            passed = False
            while self._times and self._times[0] <= now:
                heapq.heappop(self._times)
                passed = True
            if passed:
                return 0.0
            return min(seconds, self._times[0] - now) if self._times else seconds
