"""Reading entries: the columns, and what becomes of one that was changed behind our back."""

from datetime import UTC, datetime
from typing import Any, LiteralString

from squid_dagster.protocol.codec import decode
from squid_dagster.protocol.entries import Entry, MalformedFact

# The beginning of every statement that reads entries, in the order in which `read_entry` takes the columns.
ENTRY: LiteralString = """SELECT thread, seq, position, type, run_id, occurred_at, data::text,
    digest = {schema}.entry_digest(thread, seq, type, run_id, occurred_at, data) FROM {schema}.journal_entries """


def read_entry(row: tuple[Any, ...]) -> Entry:
    """Read an entry from its columns; one whose digest does not fit is malformed, whatever it says."""
    thread, seq, position, type_name, run_id, occurred_at, data, intact = row
    if not intact:
        reason = "changed after it was written: its digest does not fit"
        return Entry(thread, seq, position, MalformedFact(type_name, run_id, utc(occurred_at), reason, data))
    return Entry(thread, seq, position, decode(thread, type_name, run_id, utc(occurred_at), data))


def utc(value: datetime) -> datetime:
    """Give a time in UTC."""
    return value.astimezone(UTC)
