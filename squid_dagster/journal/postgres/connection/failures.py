"""Errors of the database as errors of ours, and the one place that repeats a transaction.

No exception of psycopg or SQLAlchemy leaves this package: `translated` decides by the table in `sqlstates`.
"""

import logging
import time
from collections.abc import Callable, Collection
from random import random
from typing import TypeVar

import psycopg
from sqlalchemy import Engine, exc

from squid_dagster.journal.postgres.connection.sqlstates import LOCK_TIMEOUT, ErrorAction, SqlstateRule, sqlstate_rule
from squid_dagster.journal.tiers import display_url
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import SquidError, StorageRefused, StorageUnavailable

logger = redacting_logger(__name__)

T = TypeVar("T")

_TRIES = 20  # of a transaction that may succeed at once
_PATIENCE_SECONDS = 5.0  # after which it is not repeated any more, however few tries there were
_LONGEST_PAUSE_SECONDS = 0.1
_DEADLOCK = "40P01"


class TransactionFailure(StorageUnavailable):
    """A transaction was rolled back, or its connection was lost: it may succeed when it is repeated at once."""


class NotNew(SquidError):
    """A fast start found that its run exists, or that the database has another time: take the general way."""


def retry_if_safe(attempt: Callable[[], T], unless: Collection[str] = ()) -> T:
    """Call `attempt`, and repeat it if its transaction was rolled back by chance or its connection was lost.

    Such errors are repeated some twenty times within five seconds, with growing pauses; `StorageUnavailable`, such as
    of a server that restarts, once more at once; an error with one of the SQLSTATEs `unless`, not at all. Only for
    calls that are safe to repeat after a commit whose answer was lost: by a commit id, or because they are idempotent.

    Raises:
        StorageUnavailable: the last try failed; wait, and call again.
    """
    tries, waited, began, gives_up_at = 0, False, time.monotonic(), 0.0
    while True:
        try:
            return attempt()
        except TransactionFailure as error:
            if error.sqlstate in unless:
                raise
            tries += 1
            now = time.monotonic()
            # A lock timeout has used up its time already.
            gives_up_at = gives_up_at or (began if error.sqlstate == LOCK_TIMEOUT else now) + _PATIENCE_SECONDS
            if tries > _TRIES or now > gives_up_at:
                raise
            # Our own statements keep one lock order: a deadlock is a defect. The rest happens under load.
            level = logging.WARNING if error.sqlstate == _DEADLOCK else logging.DEBUG
            logger.log(level, "a transaction was rolled back, it is repeated: %s", error)
        except StorageUnavailable:
            if waited:
                raise
            waited = True
            continue
        if tries > 1:
            time.sleep(min(0.001 * 2**tries, _LONGEST_PAUSE_SECONDS) * random())  # noqa: S311  nothing secret about it


def translated(engine: Engine, error: Exception, *, lost: bool = False) -> SquidError:
    """Return our error for one of psycopg or SQLAlchemy; `lost` means that the connection is lost."""
    cause = _original(error)
    state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
    if lost:
        message = f"cannot reach Postgres at {_place(engine)}: the connection was lost: {_message(engine, cause)}"
        repeatable = TransactionFailure(message)
        repeatable.sqlstate = state
        return repeatable
    if state is None and _is_connecting(cause):
        return unavailable(engine, cause)
    rule = sqlstate_rule(state, cause.diag.constraint_name if isinstance(cause, psycopg.Error) else None)
    failure = error_for(rule, _place(engine), f"{state or type(cause).__name__}: {_message(engine, cause)}")
    failure.sqlstate = state
    return failure


def error_for(rule: SqlstateRule, place: str, message: str) -> StorageUnavailable | StorageRefused:
    """Return the error for a SQLSTATE's rule; `message` is the code with the message of the database at `place`."""
    text = f"{rule.words} ({message})"
    if rule.remedy:
        text += f". {rule.remedy}"
    match rule.action:
        case ErrorAction.REPEAT:
            return TransactionFailure(f"Postgres at {place} cannot do this now: {text}")
        case ErrorAction.WAIT:
            return StorageUnavailable(f"Postgres at {place} cannot do this now: {text}")
        case ErrorAction.REFUSE:
            return StorageRefused(f"Postgres at {place} refuses this: {text}")


def unavailable(engine: Engine, error: Exception) -> StorageUnavailable:
    """Return the error for a database that cannot be reached, without credentials."""
    cause = _original(error)
    failure = StorageUnavailable(
        f"cannot reach Postgres at {_place(engine)}: {_message(engine, cause)}. Is it running, and is the URL right?"
    )
    failure.sqlstate = cause.sqlstate if isinstance(cause, psycopg.Error) else None
    return failure


def _original(error: Exception) -> Exception:
    """Return the psycopg error that one of SQLAlchemy wraps."""
    original = getattr(error, "orig", None)
    return original if isinstance(original, Exception) else error


def _is_connecting(error: Exception) -> bool:
    """Return whether the database was never reached: its answers have a code."""
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | exc.TimeoutError | OSError)


def _message(engine: Engine, error: Exception) -> str:
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    lines = (primary or str(error)).strip().splitlines()
    message = lines[0] if lines else type(error).__name__
    password = engine.url.password
    return message.replace(str(password), "***") if password else message


def _place(engine: Engine) -> str:
    return display_url(engine.url.render_as_string(hide_password=True))
