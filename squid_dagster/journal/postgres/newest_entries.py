"""The newest entries of a journal, of a thread or of a run, for display."""

from typing import LiteralString

from squid_dagster.journal.contract.queries import check_limit
from squid_dagster.journal.postgres.entry_reader import ENTRY, read_entries
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.entries import Entry

LOOK_BACK = 100_000
"""How many entries are searched for those of one type, which is in no index."""

_FIND: LiteralString = (
    ENTRY  # noqa: S608  composed from constants of this module
    + """WHERE position = ANY (ARRAY (
        SELECT position FROM (SELECT position, seq, thread, type FROM {schema}.journal_entries
                               WHERE position <= %(cut)s {which} ORDER BY {order} DESC LIMIT %(look_back)s) n
         WHERE (%(thread)s::text IS NULL OR thread = %(thread)s) AND (%(type)s::text IS NULL OR type = %(type)s)
         ORDER BY {order} DESC LIMIT %(limit)s))
    ORDER BY position"""
)


def _find(which: LiteralString, order: LiteralString) -> LiteralString:
    return _FIND.replace("{which}", which).replace("{order}", order)


# journal_entries_pkey
_NEWEST: LiteralString = _find("", "position")
# journal_entries_run
_OF_RUN: LiteralString = _find("AND run_id = %(run_id)s", "position")
# journal_entries_thread
_OF_THREAD: LiteralString = _find("AND thread = %(thread)s", "seq")


def newest(
    storage: PostgresStorage,
    cut: int,
    limit: int,
    *,
    run_id: str | None = None,
    thread: str | None = None,
    type_name: str | None = None,
) -> list[Entry]:
    """Return the last `limit` entries up to a cut, oldest first; of one run, thread and type if these are given.

    Those of one type are searched among the last 100,000. Raises `InvalidArgument` for a bad limit.
    """
    check_limit(limit)
    text = _OF_RUN if run_id is not None else _OF_THREAD if thread is not None else _NEWEST
    filtered = type_name is not None or (run_id is not None and thread is not None)
    values = {
        "cut": cut,
        "limit": limit,
        "look_back": LOOK_BACK if filtered else limit,
        "run_id": run_id,
        "thread": thread,
        "type": type_name,
    }
    return read_entries(storage.rows(text, values))
