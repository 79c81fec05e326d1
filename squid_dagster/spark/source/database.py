"""Connections of the data source, by ADBC: Arrow batches, Unix sockets, and errors without secrets.

Does not rely on defaults of the role: the settings of `postgres/connection/session_settings.py` are sent with the
connection, and set again in its transaction, so that they hold behind a pooler that refuses or drops such options.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
from adbc_driver_manager import AdbcStatusCode, OperationalError
from adbc_driver_manager import Error as AdbcError
from adbc_driver_postgresql import dbapi

from squid_dagster.journal.network import NetworkBounds, tcp_settings
from squid_dagster.journal.postgres.connection.failures import error_for
from squid_dagster.journal.postgres.connection.session_settings import SET_LOCAL, refuses_options, startup_options
from squid_dagster.journal.postgres.connection.sqlstates import sqlstate_rule
from squid_dagster.journal.tiers import DRIVER, display_url
from squid_dagster.protocol.errors import StorageRefused, StorageUnavailable
from squid_dagster.spark.source.credentials import Location

# The driver waits in C, where only the kernel's timeouts end a wait.
_SETTINGS = (
    "application_name=squid_spark",
    *(f"{name}={value}" for name, value in tcp_settings(NetworkBounds()).items()),
)
# The columns have built-in types. To resolve others, too, the driver reads the whole catalog at each connection: a
# second for some hundred schemas, and each partition makes a connection.
_DRIVER_OPTIONS = {"adbc.postgresql.type_resolver_mode": "builtin"}
_PARTS = re.compile(r"[:@=&?/]")
_MISSING = ("42P01", "42883", "3F000")  # no such table, function, schema


@contextmanager
def connected(location: Location, schema: str) -> Iterator[Any]:
    """Yield an ADBC cursor on a new connection, in a transaction that is rolled back afterwards.

    Does not retry: see `retry_if_safe`.

    Raises:
        InvalidArgument: the URL is not where `location` says.
        StorageUnavailable: the database cannot be reached or cannot do this now, or holds no journal in this schema.
        StorageRefused: the database refuses the statement.
    """
    url = location.read()
    try:
        with _connect(url) as connection, connection.cursor() as cursor:
            first_row(cursor, SET_LOCAL)
            yield cursor
    except AdbcError as error:
        raise _translated(error, url, schema) from None


def batches(cursor: Any, statement: str) -> Iterator[pa.RecordBatch]:
    """Run a statement and yield its rows as they come in; raises `AdbcError`, as all that a cursor does."""
    cursor.execute(statement)
    reader = cursor.fetch_record_batch()
    while True:
        try:
            batch = next(reader, None)
        except (OSError, pa.ArrowException) as error:  # of the driver's stream, which carries no SQLSTATE
            raise OperationalError(str(error), status_code=AdbcStatusCode.IO) from None
        if batch is None:
            return
        yield batch


def first_row(cursor: Any, statement: str) -> tuple[Any, ...]:
    """Run a statement and return its first row."""
    cursor.execute(statement)
    row: tuple[Any, ...] = cursor.fetchone()
    return row


def _connect(url: str) -> Any:
    try:
        return dbapi.connect(_uri(url), _DRIVER_OPTIONS)
    except AdbcError as error:
        if not refuses_options(error):
            raise
        return dbapi.connect(_uri(url, with_options=False), _DRIVER_OPTIONS)


def _uri(url: str, *, with_options: bool = True) -> str:
    """Return the URL as libpq takes it, with the network's timeouts and the settings of the session."""
    place, _, query = ("postgresql" + url.removeprefix(DRIVER)).partition("?")
    given = [part for part in query.split("&") if part]
    named = {part.partition("=")[0] for part in given}
    parts = [*given, *(part for part in _SETTINGS if part.partition("=")[0] not in named)]
    if with_options:
        before = [unquote(part.partition("=")[2]) for part in given if part.startswith("options=")]
        parts = [part for part in parts if not part.startswith("options=")]
        parts.append(f"options={quote(startup_options(before[-1] if before else None), safe='')}")
    return f"{place}?{'&'.join(parts)}"


def _translated(error: AdbcError, url: str, schema: str) -> StorageUnavailable | StorageRefused:
    """Return the `SquidError` for an error of the driver, by its SQLSTATE if the database was reached."""
    state, where, message = error.sqlstate, display_url(url), _message(error, url)
    translated: StorageUnavailable | StorageRefused
    if state in _MISSING:
        translated = StorageUnavailable(
            f"there is no journal in schema {schema!r} at {where}: check the option schema, or run `squid db upgrade`"
        )
    elif state is not None:
        translated = error_for(sqlstate_rule(state), where, f"{state}: {message}")
    else:
        translated = StorageUnavailable(f"cannot read from Postgres at {where}: {message}")
    translated.sqlstate = state
    return translated


def _message(error: AdbcError, url: str) -> str:
    """Return the first line of an error, without secret parts of the URL."""
    where = display_url(url)
    lines = str(error).strip().splitlines()
    message = lines[0] if lines else type(error).__name__
    # libpq quotes what it cannot parse: no secret of the URL may be shown that way.
    for part in sorted({*_PARTS.split(url), *_PARTS.split(unquote(url))}, key=len, reverse=True):
        if part and part not in where:
            message = message.replace(part, "***")
    return message
