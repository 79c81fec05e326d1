"""Rebuild of the table of cards from the facts, and its comparison with them, while writers continue."""

from typing import LiteralString

import psycopg
from psycopg import sql

from squid_dagster.backlog.card_store import CardRebuild
from squid_dagster.backlog.postgres.rows import Row, card_row, cards_json, normalized_row
from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.entry_reader import ENTRY, read_entries
from squid_dagster.journal.postgres.schema.long_lock import release_long_lock, take_long_lock
from squid_dagster.journal.postgres.schema.migrations import render
from squid_dagster.journal.postgres.schema.names import lock_number, statement
from squid_dagster.journal.postgres.schema.table_locks import close_gate, describe_holders, end_vacuums, lock_tables
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.table_swap import SHADOW, swap_in
from squid_dagster.protocol.backlog.projection import BacklogProjection
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import StorageUnavailable
from squid_dagster.protocol.threads import BACKLOG_THREAD

_PAGE = 5_000
_SWAPS = 10  # tries; each blocks writers for up to a second
_TABLES = ("backlog",)

# journal_entries_thread
_READ: LiteralString = ENTRY + "WHERE thread = %s AND seq > %s AND seq <= %s ORDER BY seq LIMIT %s"
_INSERT: LiteralString = """INSERT INTO {schema}.backlog{suffix}
    SELECT c.* FROM json_populate_recordset(NULL::{schema}.backlog{suffix}, %s) c"""
_FORGET: LiteralString = "DELETE FROM {schema}.backlog{suffix} WHERE id = ANY (%s)"
_REVISION: LiteralString = "SELECT {schema}.revision_of(id, rev) FROM {schema}.journal_threads WHERE id = %s"
_ROWS: LiteralString = "SELECT to_json(b) FROM {schema}.backlog b"
_END = 2**63 - 1


def rebuild(storage: PostgresStorage) -> CardRebuild:
    """Rebuild the table and swap it in; a missing one is created.

    Raises:
        StorageUnavailable: another rebuild is under way, or a session holds a lock on the table; nothing was changed.
    """
    with storage.connection() as guard, storage.connection() as connection:
        if not take_long_lock(guard, lock_number(storage.schema, "rebuild cards")):
            raise StorageUnavailable(f"another rebuild of the cards in schema {storage.schema!r} is under way: wait")
        try:
            return _Rebuild(storage, connection).run()
        finally:
            release_long_lock(guard)


def rebuild_within(storage: PostgresStorage, connection: PgConnection) -> CardRebuild:
    """Rebuild the table in the open transaction of a connection, such as that of an import.

    Raises:
        StorageUnavailable: a session holds a lock on the table; nothing was changed.
    """
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(storage.schema, "rebuild cards"),))
    return _Rebuild(storage, connection).run()


class _Rebuild:
    def __init__(self, storage: PostgresStorage, connection: PgConnection) -> None:
        self._storage, self._connection = storage, connection
        self._projection, self._revision = BacklogProjection(), 0
        self._shadow_oid: object = None  # identifies the shadow table that this rebuild has created

    def run(self) -> CardRebuild:
        """Fold existing facts without blocking writers; then block them, fold the rest, and swap."""
        schema = self._storage.schema
        self._connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, "backlog" + SHADOW)))
        self._connection.execute(render("0004_1_cards", schema, SHADOW))
        self._shadow_oid = self._find_shadow(schema)
        self._catch_up(SHADOW)
        for tries_left in reversed(range(_SWAPS)):
            try:
                with self._connection.transaction():
                    self._swap(schema)
                break
            except psycopg.errors.LockNotAvailable as error:
                if not tries_left:
                    holders = describe_holders(self._connection, schema, _TABLES, "cards") or "an idle transaction?"
                    raise StorageUnavailable(
                        f"the cards could not be swapped in: somebody holds a lock on them ({holders})"
                    ) from error
            end_vacuums(self._connection, schema, _TABLES)
        return CardRebuild(self._revision, len(self._projection.cards), len(self._projection.anomalies))

    def _find_shadow(self, schema: str) -> object:
        name = f'"{schema}".backlog{SHADOW}'
        return self._connection.execute("SELECT to_regclass(%s)::oid::bigint", (name,)).fetchone()

    def _catch_up(self, suffix: LiteralString) -> None:
        schema = self._storage.schema
        while page := _read(self._storage, self._connection, self._revision):
            self._projection.changed.clear()
            for entry in page:
                self._projection.apply(entry)
            self._revision = page[-1].seq
            changed = sorted(self._projection.changed)
            self._connection.execute(statement(_FORGET, schema, suffix), (changed,))
            rows = cards_json(self._projection.cards[card_id] for card_id in changed)
            if rows is not None:
                self._connection.execute(statement(_INSERT, schema, suffix), (rows,))

    def _swap(self, schema: str) -> None:
        close_gate(self._connection, schema, "cards")
        if self._find_shadow(schema) != self._shadow_oid:  # the lock of a rebuild may be lost with its connection
            raise StorageUnavailable(f"another rebuild of the cards in schema {schema!r} is under way: wait")
        lock_tables(self._connection, schema, _TABLES)
        # The swap comes first: a rollback after a lock timeout would not undo what is folded in memory.
        swap_in(self._connection, schema, "backlog")
        self._catch_up("")


def differences(storage: PostgresStorage) -> list[str]:
    """Return a line for each card that is missing, unexpected or different, with the columns that differ.

    Raises:
        ViewsMissing: there is no table to compare.
    """
    with storage.connection() as connection:
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = connection.execute(storage.sql(_REVISION), (BACKLOG_THREAD,)).fetchone()
            actual = {row["id"]: normalized_row(row) for (row,) in connection.execute(storage.sql(_ROWS))}
        # Facts never change: up to that revision they are read outside of the transaction, which would hold up VACUUM.
        last, projection, revision = row[0] if row else 0, BacklogProjection(), 0
        while page := _read(storage, connection, revision, last):
            for entry in page:
                projection.apply(entry)
            revision = page[-1].seq
    expected = {card.id: card_row(card) for card in projection.cards.values()}
    return [
        f"card {card_id}: {_difference(expected.get(card_id), actual.get(card_id))}"
        for card_id in sorted({*expected, *actual})
        if expected.get(card_id) != actual.get(card_id)
    ]


def _read(storage: PostgresStorage, connection: PgConnection, after: int, upto: int = _END) -> list[Entry]:
    values = (BACKLOG_THREAD, after, upto, _PAGE)
    return read_entries(connection.execute(storage.sql(_READ), values).fetchall())


def _difference(expected: Row | None, actual: Row | None) -> str:
    if expected is None or actual is None:
        return "a row that no fact explains" if expected is None else "a row is missing"
    return "other values in " + ", ".join(sorted(name for name in expected if expected[name] != actual.get(name)))
