"""Reading entries: the columns, and what becomes of one that was changed behind our back."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, LiteralString

from squid_dagster.protocol.codec import StoredColumns, decode_many
from squid_dagster.protocol.entries import Entry, MalformedFact

# The beginning of every statement that reads entries, in the order in which `read_entries` takes the columns.
ENTRY: LiteralString = """SELECT thread, seq, position, type, run_id, occurred_at, data::text,
    digest = {schema}.entry_digest(thread, seq, type, run_id, occurred_at, data) FROM {schema}.journal_entries """

# Of the entries of a run's thread, those that the planner's state depends on.
PLANNED_BY: LiteralString = "type <> 'child_run_started'"


def read_entries(rows: Iterable[tuple[Any, ...]]) -> list[Entry]:
    """Read entries from their columns; one whose digest does not fit is malformed, whatever it says."""
    given = list(rows)
    facts = iter(decode_many([StoredColumns(row[0], row[3], row[4], utc(row[5]), row[6]) for row in given if row[7]]))
    return [Entry(row[0], row[1], row[2], next(facts) if row[7] else _changed(row)) for row in given]


def _changed(row: tuple[Any, ...]) -> MalformedFact:
    reason = "changed after it was written: its digest does not fit"
    return MalformedFact(row[3], row[4], utc(row[5]), reason, row[6])


def utc(value: datetime) -> datetime:
    """Give a time in UTC."""
    return value if value.tzinfo is UTC else value.astimezone(UTC)
