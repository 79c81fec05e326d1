"""The session settings that our SQL relies on, set by us and not taken from the defaults of a role or a database.

There are four ways, since none of them reaches every session:

- `BEGIN` opens every transaction that writes, in the message that writes. It holds for any session, also behind a
  transaction pooler, and for an engine that the caller has made.
- Settings that the server reports to its client are compared whenever a connection is checked out, without a round
  trip, and set if they differ. Poolers keep these per client.
- `startup_options` are sent when an engine of ours connects, and hold for the session. If a pooler refuses them, we
  connect without.
- `SET_LOCAL` is for drivers that offer neither of these two: the first statement of a transaction that reads.

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
"""Opens a transaction that writes. If another session holds a lock for longer, an error says so."""
BEGIN_GROUP: LiteralString = _BEGIN + _WAIT_SHORT
"""Opens a transaction that writes for many independent members. It waits no longer than that for a row of one member,
since all others wait with it. For the row of a queue's thread, which all need, it waits as long as `BEGIN`."""
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
"""Sets all of them until the end of the transaction."""

_REFUSALS = ("startup parameter", "command-line options")  # in the errors of poolers that refuse options


def startup_options(given: str | None = None) -> str:
    """Return libpq's `options`: those of the URL or of PGOPTIONS, then ours, which take precedence."""
    before = given if given is not None else os.environ.get("PGOPTIONS", "")
    ours = [f"-c {name}={_escaped(value)}" for name, value in _ALL.items()]
    return " ".join([*filter(None, [before]), *ours])


def refuses_options(error: Exception) -> bool:
    """Return whether a connection error is that of a pooler which refuses options."""
    return any(words in str(error).lower() for words in _REFUSALS)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


class StartupOptions:
    """The startup options of an engine's connections, left out if the server or pooler refuses them."""

    def __init__(self, engine: Engine) -> None:
        """Add the options to the connections that the engine makes from now on."""
        self._refused = False
        self._local = threading.local()
        event.listen(engine, "do_connect", self._connect)

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Connect without the options in this thread, for code that is not ours."""
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
            connection = dialect.connect(*arguments, **parameters)
            self._refused = True
            return connection


def adjust(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Set the reported settings that differ from ours; return their former values, for `restore`.

    The connection is in autocommit mode. Raises `psycopg.Error`.
    """
    reported = connection.pgconn.parameter_status
    values = {name: (reported(name.encode()) or b"").decode() for name in _REPORTED}
    former = {name: value for name, value in values.items() if value and value.partition(",")[0] != _REPORTED[name]}
    if former:
        _set(connection, {name: _REPORTED[name] for name in former})
    return former


def restore(connection: psycopg.Connection[Any], former: Mapping[str, str]) -> None:
    """Set the former values of settings that `adjust` changed. Raises `psycopg.Error`."""
    if former:
        _set(connection, former)


def _set(connection: psycopg.Connection[Any], settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        listed = name == "DateStyle"  # a list of words, each quoted by itself
        values = [sql.Literal(part.strip()) for part in value.split(",")] if listed else [sql.Literal(value)]
        connection.execute(sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.SQL(", ").join(values)))
