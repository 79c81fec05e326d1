"""Clocks. The storage owns the one that decides; only tests bind another."""

from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Protocol

from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import InvalidArgument


class Clock(Protocol):
    """Something that tells the time in UTC."""

    def now(self) -> datetime:
        """Tell the time."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Tell the time."""
        return datetime.now(UTC)


@checks_arguments
class VirtualClock:
    """A clock that moves only when told to. Safe to share between threads."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        """Start at an aware time."""
        self._now = start.astimezone(UTC)
        self._lock = Lock()

    def now(self) -> datetime:
        """Tell the time."""
        return self._now

    def advance(self, by: timedelta) -> datetime:
        """Move on, and tell the new time; moving back is allowed, since real clocks do it too."""
        with self._lock:
            try:
                self._now += by
            except OverflowError:
                raise InvalidArgument(f"{by} after {self._now.isoformat()} is no time any more") from None
            return self._now
