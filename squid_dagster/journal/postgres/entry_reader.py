"""The columns of entries, and how entries are read from them; one that was changed in the table is malformed."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, LiteralString

from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.schema.names import statement
from squid_dagster.protocol.codec import StoredColumns, decode_many
from squid_dagster.protocol.entries import Entry, MalformedFact

# Every statement that reads entries begins so, with the columns in the order of `read_entries`.
ENTRY: LiteralString = """SELECT thread, seq, position, type, run_id, occurred_at, data::text,
    digest = {schema}.entry_digest(thread, seq, type, run_id, occurred_at, data) FROM {schema}.journal_entries """

# Of the entries of a run's thread, those that the planner's state depends on.
PLANNED_BY: LiteralString = "type <> 'child_run_started'"


def read_entries(rows: Iterable[tuple[Any, ...]]) -> list[Entry]:
    """Return entries from their columns; one whose digest does not match is malformed."""
    columns = list(rows)
    facts = iter(decode_many([StoredColumns(row[0], row[3], row[4], utc(row[5]), row[6]) for row in columns if row[7]]))
    return [Entry(row[0], row[1], row[2], next(facts) if row[7] else _changed(row)) for row in columns]


def _changed(row: tuple[Any, ...]) -> MalformedFact:
    reason = "changed after it was written: its digest does not fit"
    return MalformedFact(row[3], row[4], utc(row[5]), reason, row[6])


class SchemaReader:
    """Reads rows and entries of one schema on one connection."""

    def __init__(self, connection: PgConnection, schema: str) -> None:
        """Bind to a connection and a schema."""
        self._connection = connection
        self._schema = schema

    def _rows(self, text: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement(text, self._schema), values).fetchall()

    def _entries(self, text: LiteralString, *values: object) -> list[Entry]:
        return read_entries(self._rows(text, *values))


def utc(value: datetime) -> datetime:
    """Return a time in UTC."""
    return value if value.tzinfo is UTC else value.astimezone(UTC)
