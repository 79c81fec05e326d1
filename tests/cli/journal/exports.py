"""Journals and their exports, and everything that a journal holds, for tests that compare."""

from collections.abc import Callable
from typing import Any, LiteralString

from squid_dagster.api import Squid
from squid_dagster.backlog.postgres.rebuild import rebuild_within
from squid_dagster.journal import PostgresStorage, rebuild_views
from squid_dagster.journal.transfer.transfer import Transferred, export_journal, import_journal
from tests.cli.workflows import hello, nap, orders
from tests.facts import T0, signal, started
from tests.journal.access import AWKWARD, put, raw

Maker = Callable[..., PostgresStorage]

_DUMP: dict[str, LiteralString] = {
    "entries": "SELECT to_jsonb(v)::text, v.data::text FROM {schema}.journal_entries v ORDER BY position",
    "threads": "SELECT id, {schema}.revision_of(id, rev) FROM {schema}.journal_threads ORDER BY id",
    "commits": "SELECT to_jsonb(v)::text, v.receipt::text FROM {schema}.journal_commits v ORDER BY id",
    "runs": "SELECT to_jsonb(v)::text FROM {schema}.runs v ORDER BY run_id",
    "attempts": "SELECT to_jsonb(v)::text FROM {schema}.attempts v ORDER BY run_id, runnable_key",
    "children": "SELECT to_jsonb(v)::text FROM {schema}.children v ORDER BY run_id, child_run_id",
    "queues": "SELECT to_jsonb(v)::text FROM {schema}.queues v ORDER BY queue",
    "anomalies": "SELECT to_jsonb(v)::text FROM {schema}.anomalies v ORDER BY thread, seq, ordinal",
    "backlog": "SELECT to_jsonb(v)::text FROM {schema}.backlog v ORDER BY id",
}


def dump(storage: PostgresStorage) -> dict[str, list[Any]]:
    """Read everything that a journal holds, without its internal caches."""
    return {name: storage.rows(text) for name, text in _DUMP.items()}


def exported(storage: PostgresStorage) -> list[bytes]:
    lines: list[bytes] = []
    export_journal(storage, lines.append)
    return lines


def imported(storage: PostgresStorage, lines: list[bytes]) -> Transferred:
    return import_journal(storage, lines, also=rebuild_within)


def insert_raw_entry(storage: PostgresStorage, thread: str, type_name: str, run_id: str | None, data: str) -> None:
    """Write an entry that our own code would not, as a later version or a broken one might have."""
    with raw(storage) as connection, connection.transaction():
        connection.execute("INSERT INTO journal_threads VALUES (%s, 0) ON CONFLICT DO NOTHING", (thread,))
        connection.execute("UPDATE journal_threads SET rev = revision_of(id, rev) + 1 WHERE id = %s", (thread,))
        connection.execute(
            """INSERT INTO journal_entries
               SELECT nextval('journal_numbers') << 20, t.id, t.rev, v.type, v.run_id, %(at)s, v.data,
                      entry_digest(t.id, t.rev, v.type, v.run_id, %(at)s, v.data)
                 FROM journal_threads t, (SELECT %(type)s::text, %(run)s::text, %(data)s::json) v (type, run_id, data)
                WHERE t.id = %(thread)s""",
            {"at": T0, "thread": thread, "type": type_name, "run": run_id, "data": data},
        )


def busy(storage: PostgresStorage) -> PostgresStorage:
    """Create runs that are done, open, waiting and due later, a paused queue, cards, and unreadable entries."""
    squid = Squid(storage, [hello, orders, nap])
    squid.start_many("hello", [{"name": f"n{n}"} for n in range(5)])
    squid.start("orders", {"item": "tea", "password": "hunter2"})
    squid.start("nap")
    squid.pause_queue("slow", idempotency_key="once", metadata={"why": "AWKWARD"})
    squid.worker(until_idle=True)
    squid.start("hello", {"name": "waits"})
    squid.backlog.create("a", "first", acceptance=AWKWARD)
    squid.backlog.create("b", "second", depends_on=["a"])
    squid.backlog.claim("ada")
    put(storage, signal("odd", payload=AWKWARD), started("odd"))
    insert_raw_entry(storage, "squid:run:odd", "run_teleported", "odd", '{ "to" : "mars",\n  "n": 1.00, "n": 2 }')
    insert_raw_entry(storage, "squid:dispatch:default", "attempt_claimed", "odd", "{}")
    rebuild_views(storage)
    return storage
