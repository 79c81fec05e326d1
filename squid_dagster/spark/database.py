"""Connections of the data source: ADBC, which gives Arrow batches and speaks Unix sockets; errors without secrets."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from adbc_driver_manager import Error as AdbcError
from adbc_driver_postgresql import dbapi

from squid_dagster.journal.network import NetworkBounds, tcp_settings
from squid_dagster.journal.tiers import DRIVER, display_url
from squid_dagster.protocol.errors import StorageUnavailable
from squid_dagster.spark.credentials import Location

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
    """Lend an ADBC cursor on a connection of its own.

    Raises:
        InvalidArgument: the URL is not where `location` says.
        StorageUnavailable: the database cannot be reached, or holds no journal in this schema.
    """
    url = location.read()
    try:
        with dbapi.connect(_uri(url), _DRIVER_OPTIONS, autocommit=True) as connection, connection.cursor() as cursor:
            yield cursor
    except AdbcError as error:
        raise StorageUnavailable(_explained(error, url, schema)) from None


def first_row(cursor: Any, statement: str) -> tuple[Any, ...]:
    """Run a statement and give its first row."""
    cursor.execute(statement)
    row: tuple[Any, ...] = cursor.fetchone()
    return row


def _uri(url: str) -> str:
    """Spell the URL as libpq takes it."""
    plain = "postgresql" + url.removeprefix(DRIVER)
    named = {text.partition("=")[0] for text in plain.partition("?")[2].split("&")}
    more = [text for text in _SETTINGS if text.partition("=")[0] not in named]
    return f"{plain}{'&' if '?' in plain else '?'}{'&'.join(more)}" if more else plain


def _explained(error: AdbcError, url: str, schema: str) -> str:
    where = display_url(url)
    if getattr(error, "sqlstate", None) in _MISSING:
        return (
            f"there is no journal in schema {schema!r} at {where}: check the option schema, or run `squid db upgrade`"
        )
    said = str(error).strip().splitlines()
    why = said[0] if said else type(error).__name__
    # What libpq cannot parse it quotes; whatever of the URL may not be shown must not come back that way.
    for part in sorted({*_PARTS.split(url), *_PARTS.split(unquote(url))}, key=len, reverse=True):
        if part and part not in where:
            why = why.replace(part, "***")
    return f"cannot read from Postgres at {where}: {why}"
