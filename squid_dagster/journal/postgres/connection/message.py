"""Statements by the simple query protocol: one message with values to the server, and one with results back.

A psycopg cursor knows every type, which takes a good part of the time of a start on an idle machine. Here, values are
of a few plain types, and results are JSON.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg import generators
from psycopg.errors import error_from_result
from psycopg.pq import Escaping, ExecStatus
from psycopg.pq.abc import PGresult
from pydantic_core import from_json

from squid_dagster.journal.postgres.connection.pool import PgConnection

Value = str | int | UUID | datetime | timedelta | Sequence[str] | None

_FINE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


def execute(connection: PgConnection, text: bytes, values: Sequence[Value] = ()) -> list[PGresult]:
    """Execute statements, with a value in the place of each `%s`, and return their results.

    Raises:
        psycopg.Error: one of them was refused; the ones before it may have been committed.
    """
    send(connection, text, values)
    return receive(connection)


def send(connection: PgConnection, text: bytes, values: Sequence[Value] = ()) -> None:
    """Send statements, whose results `receive` reads. Raises `psycopg.Error`."""
    connection.pgconn.send_query(text % tuple([_literal(connection, value) for value in values]))


def receive(connection: PgConnection) -> list[PGresult]:
    """Return the results of the statements that were sent. Raises as `execute`."""
    results: list[PGresult] = connection.wait(generators.execute(connection.pgconn))
    for result in results:
        if result.status not in _FINE:
            raise error_from_result(result)
    return results


def json_of(result: PGresult) -> Any:
    """Return the one value of a result, parsed as JSON."""
    value = result.get_value(0, 0)
    return None if value is None else from_json(value)


def _literal(connection: PgConnection, value: Value) -> bytes:
    match value:
        case None:
            return b"NULL"
        case bool():
            return b"true" if value else b"false"
        case int():
            return b"(%d)" % value  # a sign binds less than a cast
        case str():
            text = value
        case timedelta():
            text = f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"
        case UUID() | datetime():
            text = str(value)
        case _:
            text = array(value)
    if "\0" in text:
        raise psycopg.DataError("a text with a NUL character cannot be sent")
    data = text.encode() if text.isascii() else text.encode(connection.info.encoding)
    return Escaping(connection.pgconn).escape_literal(data)


def array(texts: Sequence[str]) -> str:
    """Format any texts as a Postgres array."""
    return "{" + ",".join(['"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts]) + "}"
