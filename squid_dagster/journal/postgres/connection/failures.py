"""Errors of the database as errors of ours, and the one place that repeats a transaction.

Nothing of psycopg's or SQLAlchemy's leaves this package: `translated` decides by the table in `sqlstates`.
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

_TRIES = 20  # for what is worth repeating at once
_PATIENCE_SECONDS = 5.0  # after which it is not repeated any more, however few tries there were
_LONGEST_PAUSE_SECONDS = 0.1
_DEADLOCK = "40P01"


class TransactionFailure(StorageUnavailable):
    """The database gave up on a transaction, or the connection was lost: it may succeed when it is repeated at once."""


class NotNew(SquidError):
    """A start found its run written already, or the database at another time: take the general way."""


def retry_if_safe(attempt: Callable[[], T], unless: Collection[str] = ()) -> T:
    """Call `attempt` again when its transaction was rolled back by chance, or its connection was lost.

    That is repeated some twenty times within five seconds, with growing pauses; what has to be waited for, such as a
    server that restarts, once more at once; an error with one of the SQLSTATEs `unless`, not at all. Only for what is
    safe to repeat after a commit whose answer was lost: by a commit id, or because doing it twice changes nothing.

    Raises:
        StorageUnavailable: it did not help; wait, and call again.
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
            # A lock that was waited for in vain has taken its time already.
            gives_up_at = gives_up_at or (began if error.sqlstate == LOCK_TIMEOUT else now) + _PATIENCE_SECONDS
            if tries > _TRIES or now > gives_up_at:
                raise
            # Our own statements keep one lock order: a deadlock is news. The rest is what happens under load.
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
    """Return the error of ours for one of psycopg's or SQLAlchemy's; `lost` says that the connection is gone."""
    cause = _original(error)
    state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
    if lost:
        gone = TransactionFailure(
            f"cannot reach Postgres at {_place(engine)}: the connection was lost: {_said(engine, cause)}"
        )
        gone.sqlstate = state
        return gone
    if state is None and _is_connecting(cause):
        return unavailable(engine, cause)
    known = sqlstate_rule(state, cause.diag.constraint_name if isinstance(cause, psycopg.Error) else None)
    made = error_for(known, _place(engine), f"{state or type(cause).__name__}: {_said(engine, cause)}")
    made.sqlstate = state
    return made


def error_for(known: SqlstateRule, place: str, said: str) -> StorageUnavailable | StorageRefused:
    """Return the error for what a SQLSTATE means; `said` is the code with the words of the database at `place`."""
    told = f"{known.words} ({said})"
    if known.remedy:
        told += f". {known.remedy}"
    match known.action:
        case ErrorAction.REPEAT:
            return TransactionFailure(f"Postgres at {place} cannot do this now: {told}")
        case ErrorAction.WAIT:
            return StorageUnavailable(f"Postgres at {place} cannot do this now: {told}")
        case ErrorAction.REFUSE:
            return StorageRefused(f"Postgres at {place} refuses this: {told}")


def unavailable(engine: Engine, error: Exception) -> StorageUnavailable:
    """Return the error for a database that cannot be reached, without what one logs in with."""
    cause = _original(error)
    made = StorageUnavailable(
        f"cannot reach Postgres at {_place(engine)}: {_said(engine, cause)}. Is it running, and is the URL right?"
    )
    made.sqlstate = cause.sqlstate if isinstance(cause, psycopg.Error) else None
    return made


def _original(error: Exception) -> Exception:
    """Return psycopg's error behind one of SQLAlchemy's."""
    original = getattr(error, "orig", None)
    return original if isinstance(original, Exception) else error


def _is_connecting(error: Exception) -> bool:
    """Tell whether the database was never reached: what it answers has a code."""
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | exc.TimeoutError | OSError)


def _said(engine: Engine, error: Exception) -> str:
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    lines = (primary or str(error)).strip().splitlines()
    said = lines[0] if lines else type(error).__name__
    password = engine.url.password
    return said.replace(str(password), "***") if password else said


def _place(engine: Engine) -> str:
    return display_url(engine.url.render_as_string(hide_password=True))
