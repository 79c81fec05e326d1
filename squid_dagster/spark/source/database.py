"""Connections of the data source: ADBC, which gives Arrow batches and speaks Unix sockets; errors without secrets.

Nothing is taken from the defaults of the role: the settings of
`postgres/connection/session_settings.py` go with the connection, and open its
transaction, so that they hold behind a pooler too, whether it refuses such options or drops them without a word.
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

# The driver waits in C: what the kernel ends is what ends.
_SETTINGS = (
    "application_name=squid_spark",
    *(f"{name}={value}" for name, value in tcp_settings(NetworkBounds()).items()),
)
# All of our columns are of types that every Postgres has. Asked for others too, the driver reads the whole catalog
# whenever it connects: a second for some hundred schemas, and a connection is made for each partition.
_DRIVER_OPTIONS = {"adbc.postgresql.type_resolver_mode": "builtin"}
_PARTS = re.compile(r"[:@=&?/]")
_MISSING = ("42P01", "42883", "3F000")  # no such table, function, schema


@contextmanager
def connected(location: Location, schema: str) -> Iterator[Any]:
    """Lend an ADBC cursor on a connection of its own, in a transaction that is given up afterwards.

    Nothing is repeated here: see `retry_if_safe`.

    Raises:
        InvalidArgument: the URL is not where `location` says.
        StorageUnavailable: the database cannot be reached or cannot do this now, or holds no journal in this schema.
        StorageRefused: the database refuses what it was asked.
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
        except (OSError, pa.ArrowException) as error:  # of the driver's stream, which has no way to give a SQLSTATE
            raise OperationalError(str(error), status_code=AdbcStatusCode.IO) from None
        if batch is None:
            return
        yield batch


def first_row(cursor: Any, statement: str) -> tuple[Any, ...]:
    """Run a statement and give its first row."""
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
    """Spell the URL as libpq takes it, with the bounds of the network and the settings of the session."""
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
    """Return the error of ours for one of the driver's, by its SQLSTATE if the database was reached."""
    state, where, said = error.sqlstate, display_url(url), _said(error, url)
    made: StorageUnavailable | StorageRefused
    if state in _MISSING:
        made = StorageUnavailable(
            f"there is no journal in schema {schema!r} at {where}: check the option schema, or run `squid db upgrade`"
        )
    elif state is not None:
        made = error_for(sqlstate_rule(state), where, f"{state}: {said}")
    else:
        made = StorageUnavailable(f"cannot read from Postgres at {where}: {said}")
    made.sqlstate = state
    return made


def _said(error: AdbcError, url: str) -> str:
    """Return the first line of an error, without what may not be shown of the URL."""
    where = display_url(url)
    said = str(error).strip().splitlines()
    why = said[0] if said else type(error).__name__
    # What libpq cannot parse it quotes; whatever of the URL may not be shown must not come back that way.
    for part in sorted({*_PARTS.split(url), *_PARTS.split(unquote(url))}, key=len, reverse=True):
        if part and part not in where:
            why = why.replace(part, "***")
    return why
