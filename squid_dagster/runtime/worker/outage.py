"""What a worker waits for: said once when it begins, once for each other reason, and once when it is over.

Claims, commits, heartbeats and housekeeping all meet the same outage, each in a thread of its own and again and again.
"""

import threading
import time

from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import SquidError

logger = redacting_logger(__name__)

_UNREACHABLE = ("08", "57")  # classes of SQLSTATEs of a server that goes, or is not there
_CANCELLED = "57014"


class Outage:
    """What the parts of one worker cannot do now. Safe between threads."""

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
        """Note that a part cannot go on, to be called at each of its tries; logs what is news."""
        reason = _reason(error)
        with self._lock:
            if not self._parts:
                self._since = time.monotonic()
                self._reasons.clear()
            self._parts.add(part)
            news = reason not in self._reasons
            self._reasons.add(reason)
        if news:
            # What is no error of ours is a mistake in the code: where it was made is worth a traceback.
            trace = None if isinstance(error, SquidError) else error
            logger.warning("%s: %s must wait, and will be tried again: %s", self._who, part, error, exc_info=trace)

    def end(self, part: str) -> None:
        """Note that a part goes on; logs when it was the last one that waited."""
        if part not in self._parts:
            return
        with self._lock:
            if self._parts == {part}:  # said before anybody can see that nothing waits any more
                logger.warning("%s: goes on after %.1f s", self._who, time.monotonic() - self._since)
            self._parts.discard(part)


def _reason(error: Exception) -> str:
    """Tell reasons apart that people would: while a server restarts, it has many words for the same."""
    if not isinstance(error, SquidError):
        return type(error).__name__
    state: str | None = getattr(error, "sqlstate", None)
    if state is not None and (state == _CANCELLED or state[:2] not in _UNREACHABLE):
        return state
    return "unreachable" if hasattr(error, "sqlstate") else type(error).__name__
