"""Retries while the database is unavailable, with growing pauses; logged at first, and then less and less often."""

import time
from collections.abc import Callable
from typing import TypeVar

from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import StorageUnavailable, ViewsMissing

logger = redacting_logger(__name__)

T = TypeVar("T")

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 2.0
_FIRST_REMINDER_SECONDS, _LONGEST_REMINDER_SECONDS = 10.0, 600.0


def when_available(
    attempt: Callable[[], T],
    what: str,
    *,
    seconds_left: Callable[[], float],
    pause: Callable[[float], object] = time.sleep,
) -> T:
    """Retry `attempt` until the database is available, and return its result; `what` names it in the log.

    `seconds_left` returns how long it may still wait; `pause` waits between two tries, and may return early.

    Raises:
        StorageUnavailable, ViewsMissing: the last try's, when no time is left.
    """
    began = time.monotonic()
    delay, reminder, logged_at = _FIRST_PAUSE_SECONDS, _FIRST_REMINDER_SECONDS, 0.0
    while True:
        try:
            result = attempt()
        except (StorageUnavailable, ViewsMissing) as error:
            left = seconds_left()
            if left <= 0:
                raise
            now = time.monotonic()
            if not logged_at:
                logged_at = now
                logger.warning("%s waits for the database: %s", what, error)
            elif now - logged_at >= reminder:
                logged_at, reminder = now, min(2 * reminder, _LONGEST_REMINDER_SECONDS)
                logger.warning("%s has waited for the database for %.0f s: %s", what, now - began, error)
            pause(min(delay, left))
            delay = min(2 * delay, _LONGEST_PAUSE_SECONDS)
            continue
        if logged_at:
            logger.info("%s goes on: the database is there after %.1f s", what, time.monotonic() - began)
        return result
