"""The log of an outage: once when it begins, once for each further reason, and once when it is over.

Claims, commits, heartbeats and maintenance all meet the same outage repeatedly, each in a thread of its own.
"""

import threading
import time

from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import SquidError

logger = redacting_logger(__name__)

_UNREACHABLE = ("08", "57")  # SQLSTATE classes of a server that shuts down, or is not reachable
_CANCELLED = "57014"


class Outage:
    """The parts of one worker that cannot work now. Safe between threads."""

    def __init__(self, who: str) -> None:
        """Log under the name of a worker."""
        self._who = who
        self._lock = threading.Lock()
        self._parts: set[str] = set()
        self._reasons: set[str] = set()
        self._since = 0.0

    @property
    def under_way(self) -> bool:
        """Whether any part waits."""
        return bool(self._parts)

    def begin(self, part: str, error: Exception) -> None:
        """Record that a part has failed, at each of its tries; log each reason once."""
        reason = _reason(error)
        with self._lock:
            if not self._parts:
                self._since = time.monotonic()
                self._reasons.clear()
            self._parts.add(part)
            is_new = reason not in self._reasons
            self._reasons.add(reason)
        if is_new:
            # An error that is none of ours is a defect: it is logged with a traceback.
            trace = None if isinstance(error, SquidError) else error
            logger.warning("%s: %s must wait, and will be tried again: %s", self._who, part, error, exc_info=trace)

    def end(self, part: str) -> None:
        """Record that a part works again; log the end of the outage if it was the last one."""
        if part not in self._parts:
            return
        with self._lock:
            if self._parts == {part}:  # logged before `under_way` becomes False
                logger.warning("%s: goes on after %.1f s", self._who, time.monotonic() - self._since)
            self._parts.discard(part)


def _reason(error: Exception) -> str:
    """Return the reason by which errors are grouped: a server that restarts reports many for the same."""
    if not isinstance(error, SquidError):
        return type(error).__name__
    state: str | None = getattr(error, "sqlstate", None)
    if state is not None and (state == _CANCELLED or state[:2] not in _UNREACHABLE):
        return state
    return "unreachable" if hasattr(error, "sqlstate") else type(error).__name__
