"""Connections: one SQLAlchemy pool per storage, psycopg underneath, and errors that say what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.rows import TupleRow
from sqlalchemy import Engine, create_engine, exc
from sqlalchemy.engine import make_url

from squid_dagster.journal.tiers import display_url, normalized_url
from squid_dagster.protocol.errors import StorageUnavailable

PgConnection = Connection[TupleRow]


def make_engine(url: str, pool_size: int = 5) -> Engine:
    """Make an engine for a Postgres URL; nothing is connected yet.

    Statements are never prepared by name, so that it works behind a transaction pooler.
    """
    return create_engine(
        make_url(normalized_url(url)),
        pool_size=pool_size,
        max_overflow=pool_size,
        hide_parameters=True,
        connect_args={"prepare_threshold": None, "application_name": "squid_dagster", "connect_timeout": 10},
    )


@contextmanager
def borrow(engine: Engine) -> Iterator[PgConnection]:
    """Lend a psycopg connection in autocommit mode; after one that broke, the pool starts anew.

    Raises:
        StorageUnavailable: the database cannot be reached, or the connection broke on the way. Nothing is retried here.
    """
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
    except psycopg.OperationalError as error:
        if connection.broken or connection.closed:
            raise unavailable(engine, error) from error
        raise
    finally:
        if connection.broken or connection.closed:
            # The server restarted, most likely: none of the pooled connections is worth trying.
            lent.invalidate()
            engine.dispose()
        else:
            connection.rollback()
            connection.autocommit = usual
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
