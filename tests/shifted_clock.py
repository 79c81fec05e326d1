"""A process whose clock is wrong: every way in which Python code reads the time is shifted."""

import datetime as clock
import time
from typing import Self


def shift(hours: float) -> None:
    """Shift the clock of this process. Call it before anything of ours is imported."""
    if not hours:
        return
    seconds = hours * 3600
    _time, _time_ns = time.time, time.time_ns

    class ShiftedDatetime(clock.datetime):
        """The time of a machine whose clock is wrong."""

        @classmethod
        def now(cls, tz: clock.tzinfo | None = None) -> Self:
            """Return the wrong time."""
            return cls.fromtimestamp(_time() + seconds, tz)

        @classmethod
        def utcnow(cls) -> Self:
            """Return the wrong time, without a zone."""
            return cls.fromtimestamp(_time() + seconds, clock.UTC).replace(tzinfo=None)

    time.time = lambda: _time() + seconds
    time.time_ns = lambda: _time_ns() + int(seconds * 1e9)
    clock.datetime = ShiftedDatetime  # type: ignore[misc]  # the point of this module
