"""When work that a worker knows of is due, so that it looks at the right moment however seldom it polls."""

import heapq
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta

_MOST = 10_000  # moments that are remembered; what is beyond is found by polling


class DueTimes:
    """Moments in the future, by a clock of seconds that the caller hands in. Safe between threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with none."""
        self._clock = clock
        self._moments: list[float] = []
        self._lock = threading.Lock()

    def add(self, delays: Iterable[timedelta]) -> None:
        """Remember when these times will have passed; what is due at once needs no memory."""
        now = self._clock()
        with self._lock:
            for delay in delays:
                if delay > timedelta(0) and len(self._moments) < _MOST:
                    heapq.heappush(self._moments, now + delay.total_seconds())

    def next_within(self, seconds: float) -> float:
        """Say in how many seconds something is due next, or `seconds` if nothing is due before."""
        now = self._clock()
        with self._lock:
            passed = False
            while self._moments and self._moments[0] <= now:
                heapq.heappop(self._moments)
                passed = True
            if passed:
                return 0.0
            return min(seconds, self._moments[0] - now) if self._moments else seconds
