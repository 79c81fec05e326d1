"""Following a journal whose database goes away for a while: that is waited for, and said as a worker says it."""

import math
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def when_back(look: Callable[[], T], what: str, until: float | None = None) -> T:
    """Return what one look gives, tried again while the database is away, up to a monotonic time if there is one.

    Raises:
        StorageUnavailable, ViewsMissing: the last look's, when the time is up.
    """
    from squid_dagster.journal.availability import when_available

    def seconds_left() -> float:
        return math.inf if until is None else until - time.monotonic()

    return when_available(look, what, seconds_left=seconds_left)
