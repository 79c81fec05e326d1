"""What our SQL relies on in a session, set by us instead of taken from the defaults of a role or a database.

There are four ways, since no one of them reaches everywhere:

- `BEGIN` opens every transaction that writes, in the message that writes: it holds for any session, also one that a
  transaction pooler lends for this transaction alone, or an engine that was handed over.
- Settings that the server reports to its client are looked at whenever a connection is lent, which costs nothing, and
  set where they differ. Poolers keep these apart for each client.
- `startup_options` go with the connection of an engine of ours, and hold for all it does. A pooler that does not take
  them is connected to without.
- `SET_LOCAL` is for drivers without the two ways in between: the first statement of a transaction that reads.

Steps get connections with the defaults of their role, but for the isolation level. A database that was made read-only
is left so: see `sqlstates`.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg import IsolationLevel, sql
from sqlalchemy import Engine, event

_BEGIN: LiteralString = """BEGIN ISOLATION LEVEL read committed; SET LOCAL statement_timeout = 0;
    SET LOCAL search_path = pg_catalog, pg_temp; """
WAIT_LONG: LiteralString = "SET LOCAL lock_timeout = '30s'; "
_WAIT_SHORT: LiteralString = "SET LOCAL lock_timeout = '500ms'; "

BEGIN: LiteralString = _BEGIN + WAIT_LONG
"""Opens a transaction that writes. Somebody who holds a lock for longer is worth an error that says so."""
BEGIN_GROUP: LiteralString = _BEGIN + _WAIT_SHORT
"""Opens a transaction that writes for many independent members. It waits for a row of one of them no longer than that,
since all others wait with it; for the row of a queue's thread, which all of them need, as long as any other."""
BEGIN_STATEMENTS = BEGIN.count(";")

ISOLATION = IsolationLevel.READ_COMMITTED

_REPORTED = {"client_encoding": "UTF8", "DateStyle": "ISO", "standard_conforming_strings": "on"}
_OTHERS = {
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "statement_timeout": "0",
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "5min",  # appends set a shorter one
    "search_path": "pg_catalog, pg_temp",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}
_ALL = {**_REPORTED, **_OTHERS}

SET_LOCAL = "SELECT " + ", ".join(f"pg_catalog.set_config('{name}', '{value}', true)" for name, value in _ALL.items())
"""Sets them all until the end of the transaction."""

_REFUSALS = ("startup parameter", "command-line options")  # in what poolers say to options that they do not take


def startup_options(given: str | None = None) -> str:
    """Return libpq's `options`: those that were given, by the URL or by PGOPTIONS, and ours, which go before them."""
    before = given if given is not None else os.environ.get("PGOPTIONS", "")
    ours = [f"-c {name}={_escaped(value)}" for name, value in _ALL.items()]
    return " ".join([*filter(None, [before]), *ours])


def refuses_options(error: Exception) -> bool:
    """Return whether an error of connecting is the answer of a pooler that takes no options."""
    return any(words in str(error).lower() for words in _REFUSALS)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


class StartupOptions:
    """Gives every connection of an engine its options, unless whatever answers there does not take them."""

    def __init__(self, engine: Engine) -> None:
        """Take part in the making of the engine's connections from now on."""
        self._refused = False
        self._local = threading.local()
        event.listen(engine, "do_connect", self._connect)

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Make connections without them in this thread, for code that is not ours."""
        self._local.left_out = True
        try:
            yield
        finally:
            self._local.left_out = False

    def _connect(self, dialect: Any, record: Any, arguments: Any, parameters: dict[str, Any]) -> Any:
        if self._refused or getattr(self._local, "left_out", False):
            return dialect.connect(*arguments, **parameters)
        try:
            options = startup_options(parameters.get("options"))
            return dialect.connect(*arguments, **{**parameters, "options": options})
        except psycopg.OperationalError as error:
            if not refuses_options(error):
                raise
            made = dialect.connect(*arguments, **parameters)
            self._refused = True
            return made


def adjust(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Set what the server reports to be otherwise; return what it was, to be set again.

    The connection is in autocommit mode. Raises `psycopg.Error`.
    """
    reported = connection.pgconn.parameter_status
    found = {name: (reported(name.encode()) or b"").decode() for name in _REPORTED}
    former = {name: value for name, value in found.items() if value and value.partition(",")[0] != _REPORTED[name]}
    if former:
        _set(connection, {name: _REPORTED[name] for name in former})
    return former


def restore(connection: psycopg.Connection[Any], former: Mapping[str, str]) -> None:
    """Set again what `adjust` changed. Raises `psycopg.Error`."""
    if former:
        _set(connection, former)


def _set(connection: psycopg.Connection[Any], settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        listed = name == "DateStyle"  # which is a list of words: in quotes, it is one
        values = [sql.Literal(part.strip()) for part in value.split(",")] if listed else [sql.Literal(value)]
        connection.execute(sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.SQL(", ").join(values)))
