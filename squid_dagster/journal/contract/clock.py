"""Clocks. The storage's own clock decides; only tests use another one."""

from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Protocol

from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import InvalidArgument


class Clock(Protocol):
    """A clock in UTC."""

    def now(self) -> datetime:
        """Return the time."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Return the time."""
        return datetime.now(UTC)


@checks_arguments
class VirtualClock:
    """A clock that moves only by `advance`. Safe between threads."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        """Start at an aware time."""
        self._now = start.astimezone(UTC)
        self._lock = Lock()

    def now(self) -> datetime:
        """Return the time."""
        return self._now

    def advance(self, by: timedelta) -> datetime:
        """Move the clock and return the new time; backwards, too, since real clocks do that."""
        with self._lock:
            try:
                self._now += by
            except OverflowError:
                raise InvalidArgument(f"{by} after {self._now.isoformat()} is no time any more") from None
            return self._now
