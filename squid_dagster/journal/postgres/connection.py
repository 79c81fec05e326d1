"""Connections: one SQLAlchemy pool per storage, psycopg underneath, and errors that say what to do."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow
from psycopg.types.json import set_json_loads
from pydantic_core import from_json
from sqlalchemy import Engine, create_engine, event, exc
from sqlalchemy.engine import make_url

from squid_dagster.journal.tiers import display_url, normalized_url
from squid_dagster.protocol.errors import StorageUnavailable

PgConnection = Connection[TupleRow]


def make_engine(url: str, pool_size: int = 5) -> Engine:
    """Make an engine for a Postgres URL; nothing is connected yet.

    Statements are never prepared by name, so that it works behind a transaction pooler.
    """
    parsed = make_url(normalized_url(url))
    if isinstance(password := parsed.query.get("password"), str):
        # Where SQLAlchemy knows it for one, and hides it.
        parsed = parsed.difference_update_query(["password"]).set(password=password)
    engine = create_engine(
        parsed,
        pool_size=pool_size,
        max_overflow=pool_size,
        hide_parameters=True,
        connect_args={"prepare_threshold": None, "application_name": "squid_dagster", "connect_timeout": 10},
    )
    event.listen(engine, "connect", lambda connection, _: set_json_loads(from_json, connection))
    return engine


def make_step_engine(engine: Engine) -> Engine:
    """Make an engine for those who keep a connection for long: however many they are, the other has its own left.

    Its connections are made as the other's are, and tried before they are handed out.
    """
    return create_engine(
        engine.url,
        creator=lambda: connect(engine),
        pool_size=5,
        max_overflow=-1,
        pool_pre_ping=True,
        hide_parameters=True,
    )


def connect(engine: Engine) -> PgConnection:
    """Make a new connection as the engine makes them, that its pool knows nothing of. Raises `StorageUnavailable`."""
    try:
        made = engine.pool.recreate().connect()
    except (exc.OperationalError, psycopg.OperationalError) as error:
        raise unavailable(engine, error) from None
    connection: Any = made.driver_connection  # before it is detached: afterwards nobody knows it
    made.detach()
    assert isinstance(connection, psycopg.Connection)  # noqa: S101  no other driver is supported
    return connection


@contextmanager
def borrow(engine: Engine) -> Iterator[PgConnection]:
    """Lend a psycopg connection in autocommit mode; after one that broke, the pool starts anew.

    Raises:
        StorageUnavailable: the database cannot be reached, or the connection broke on the way. Nothing is retried here.
    """
    handled, pool = sys.exception(), engine.pool
    try:
        lent = engine.raw_connection()
    except (exc.OperationalError, psycopg.OperationalError, exc.TimeoutError) as error:
        raise unavailable(engine, error) from None
    connection: Any = lent.driver_connection
    usual = connection.autocommit
    try:
        connection.autocommit = True
        connection.prepare_threshold = None
        yield connection
    except psycopg.Error as error:
        interruption = _interruption(error, handled)
        if interruption is not None:
            raise interruption from None
        if connection.broken or connection.closed:
            raise unavailable(engine, error) from error
        raise
    finally:
        _give_back(engine, lent, connection, usual)
        if engine.pool is not pool:
            pool.dispose()  # the engine began anew meanwhile: nobody else closes what came back to the old pool


def _interruption(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """Give what a signal raised while we waited; psycopg, busy with its pipeline, answers with an error of its own.

    What the caller was already handling when it came to us is no interruption.
    """
    context = error.__context__
    while context is not None and isinstance(context, psycopg.Error):
        context = context.__context__
    return None if context is handled else context


def _give_back(engine: Engine, lent: Any, connection: Any, autocommit: bool) -> None:
    try:
        if connection.broken or connection.closed:
            # The server restarted, most likely: none of the pooled connections is worth trying.
            lent.invalidate()
            engine.dispose()
            return
        if connection.info.transaction_status == TransactionStatus.ACTIVE:
            # A signal took us away from a statement that is still running: it must not commit behind our back.
            connection.cancel_safe(timeout=5)
            lent.invalidate()
            return
        connection.rollback()
        connection.autocommit = autocommit
    except psycopg.Error:  # left in the middle of something by a signal
        lent.invalidate()
    finally:
        lent.close()


def unavailable(engine: Engine, error: Exception) -> StorageUnavailable:
    """Say that the database cannot be reached, without saying how one would log in."""
    cause = str(getattr(error, "orig", None) or error).strip().splitlines()
    where = display_url(engine.url.render_as_string(hide_password=True))
    why = cause[0] if cause else type(error).__name__
    password = engine.url.password
    if password:
        why = why.replace(str(password), "***")
    return StorageUnavailable(f"cannot reach Postgres at {where}: {why}. Is it running, and is the URL right?")
