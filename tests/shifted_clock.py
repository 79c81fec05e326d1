"""A process whose clock is wrong: every way in which Python code reads the time is shifted."""

import datetime as clock
import time
from typing import Self

_MOVE_SECONDS = 5


def shift(hours: float, *, moves: bool = False) -> None:
    """Shift the clock of this process; if it `moves`, it is wrong and right in turn, for some seconds each.

    Call it before `squid_dagster` is imported.
    """
    if not hours:
        return
    _time, _time_ns = time.time, time.time_ns

    def seconds() -> float:
        return 0.0 if moves and int(time.monotonic()) // _MOVE_SECONDS % 2 else hours * 3600

    class ShiftedDatetime(clock.datetime):
        """The time of a machine whose clock is wrong."""

        @classmethod
        def now(cls, tz: clock.tzinfo | None = None) -> Self:
            """Return the wrong time."""
            return cls.fromtimestamp(_time() + seconds(), tz)

        @classmethod
        def utcnow(cls) -> Self:
            """Return the wrong time, without a zone."""
            return cls.fromtimestamp(_time() + seconds(), clock.UTC).replace(tzinfo=None)

    time.time = lambda: _time() + seconds()
    time.time_ns = lambda: _time_ns() + int(seconds() * 1e9)
    clock.datetime = ShiftedDatetime  # type: ignore[misc]  # the point of this module
