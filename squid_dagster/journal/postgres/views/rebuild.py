"""The rebuild of the live views from the journal, while writers go on.

Shadow tables are filled up to a cut without blocking any session. Then, with the gate closed that every writer locks,
later entries are folded and the shadows replace the views.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.entry_reader import ENTRY, SchemaReader
from squid_dagster.journal.postgres.schema.long_lock import release_long_lock, take_long_lock
from squid_dagster.journal.postgres.schema.migrations import views_sql
from squid_dagster.journal.postgres.schema.names import VIEWS, lock_number
from squid_dagster.journal.postgres.schema.table_locks import close_gate, describe_holders, end_vacuums, lock_tables
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.folded_rows import ViewRows, forget_loose, forget_runs, rows_of_runs
from squid_dagster.journal.postgres.views.table_swap import SHADOW, swap_in
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.entries import Entry, run_of
from squid_dagster.protocol.errors import StorageUnavailable

_PAGE = 5_000  # entries in one read, and so in one short transaction
_SHORT_TAIL = 1_000  # at most so many new entries are folded while writers wait
_ROUNDS = 8
_SWAPS = 10  # each blocks writers for a second

# journal_entries_run
_PAGE_OF_RUNS: LiteralString = (
    ENTRY
    + "WHERE run_id IS NOT NULL AND (run_id, position) > (%s, %s) AND position <= %s ORDER BY run_id, position LIMIT %s"
)
_RUNS: LiteralString = ENTRY + "WHERE run_id = ANY (%s) AND position <= %s ORDER BY run_id, position"
# journal_entries_loose; of all facts that belong to no run, only those of queues have rows in the views
_LOOSE: LiteralString = (
    ENTRY + "WHERE run_id IS NULL AND starts_with(thread, 'squid:dispatch:') AND position <= %s ORDER BY position"
)
# journal_entries_pkey
_TOUCHED: LiteralString = "SELECT DISTINCT run_id FROM {schema}.journal_entries WHERE position > %s AND position <= %s"
_COUNT: LiteralString = """SELECT count(*) FROM (
    SELECT FROM {schema}.journal_entries WHERE position > %s AND position <= %s LIMIT %s) n"""
_LAST: LiteralString = "SELECT coalesce(max(position), 0) FROM {schema}.journal_entries"
_SHADOWS: LiteralString = """SELECT oid::bigint FROM pg_catalog.pg_class
    WHERE relname = ANY (%s) AND relnamespace = to_regnamespace(%s) ORDER BY oid"""
_VERSION: LiteralString = "SELECT version FROM {schema}.squid_schema"

Progress = Callable[[int], None]
Fill = Callable[[int, Progress], tuple[int, int]]
"""Folds the journal up to a cut into the shadows; returns the numbers of runs and entries."""


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild did."""

    cut: int
    runs: int
    entries: int
    tail_runs: int


@checked
def rebuild_views(
    storage: PostgresStorage, progress: Progress | None = None, *, fill: Fill | None = None
) -> RebuildReport:
    """Rebuild all live views and swap them in; `progress` gets the number of entries read so far.

    Safe while others write, and after a rebuild that crashed. Missing views are created. With `fill`, another function
    folds the entries up to the cut, such as by Spark; if it raises, the views stay as they were.

    Raises:
        StorageUnavailable: another rebuild runs, or the views stay locked by a reader; nothing was changed.
    """
    with _rebuild_lock(storage), storage.connection() as connection:
        return Rebuild(storage, connection, fill).run(progress or (lambda _: None))


class Rebuild(SchemaReader):
    """One rebuild on one connection. A caller that fills the shadows by itself can also call its steps one by one."""

    def __init__(self, storage: PostgresStorage, connection: PgConnection, fill: Fill | None = None) -> None:
        """Bind to a storage and a connection in autocommit mode; `fill` replaces the method of that name."""
        super().__init__(connection, storage.schema)
        self._fill = fill or self.fill
        self._shadows: list[tuple[Any, ...]] = []  # their oids
        self._version: int | None = None  # of the schema, when they were created

    def run(self, progress: Progress) -> RebuildReport:
        """Create, fill, catch up, swap."""
        self.create_shadows()
        cut = self._cut()
        runs, entries = self._fill(cut, progress)
        tail_runs = 0
        for _ in range(_ROUNDS):
            upto = max(cut, self._cut())
            if self._one(_COUNT, cut, upto, _SHORT_TAIL)[0] < _SHORT_TAIL:
                break
            tail_runs += self.catch_up(cut, upto)
            cut = upto
        cut, swapped = self.swap(cut)
        return RebuildReport(cut, runs, entries, tail_runs + swapped)

    def create_shadows(self) -> None:
        """Create empty shadows; those of a rebuild that crashed are dropped."""
        with self._connection.transaction():
            for view in VIEWS:
                name = sql.Identifier(self._schema, view + SHADOW)
                self._connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))
            self._version = self._one(_VERSION)[0]
            self._connection.execute(views_sql(self._schema, SHADOW))
            self._shadows = self._rows(_SHADOWS, [view + SHADOW for view in VIEWS], self._schema)

    def fill(self, cut: int, progress: Progress) -> tuple[int, int]:
        """Fold the journal up to a cut into the shadows; return how many runs and entries there were."""
        last, runs, entries = ("", 0), 0, 0
        pending: list[Entry] = []
        while page := self._entries(_PAGE_OF_RUNS, *last, cut, _PAGE):
            entries += len(page)
            progress(entries)
            pending += page
            last = (_run_id(page[-1]), page[-1].position)
            # The page's last run may go on in the next page.
            whole = [entry for entry in pending if _run_id(entry) != last[0]] if len(page) == _PAGE else pending
            pending = pending[len(whole) :]
            runs += self._insert(whole)
        runs += self._insert(pending)
        loose = ViewRows()
        loose.add_loose(self._entries(_LOOSE, cut))
        loose.insert(self._connection, self._schema, SHADOW)
        return runs, entries

    def _insert(self, entries: list[Entry]) -> int:
        view_rows = rows_of_runs(entries, {_run_id(entry) for entry in entries})
        with self._connection.transaction():
            view_rows.insert(self._connection, self._schema, SHADOW)
        return len(view_rows.runs)

    def catch_up(self, after: int, upto: int) -> int:
        """Fold the runs that got facts between two cuts again; return how many."""
        changed = [row[0] for row in self._rows(_TOUCHED, after, upto)]
        run_ids = [run_id for run_id in changed if run_id is not None]
        for start in range(0, len(run_ids), 500):
            chunk = run_ids[start : start + 500]
            view_rows = rows_of_runs(self._entries(_RUNS, chunk, upto), chunk)
            with self._connection.transaction():
                forget_runs(self._connection, self._schema, chunk, SHADOW)
                view_rows.insert(self._connection, self._schema, SHADOW)
        if None in changed:
            loose = ViewRows()
            loose.add_loose(self._entries(_LOOSE, upto))
            with self._connection.transaction():
                forget_loose(self._connection, self._schema, SHADOW)
                loose.insert(self._connection, self._schema, SHADOW)
        return len(run_ids)

    def swap(self, covered: int) -> tuple[int, int]:
        """Block writers, fold what came after `covered`, and replace the views by the shadows.

        Returns the last position that the views now cover, and how many runs were folded again.
        """
        for tries_left in reversed(range(_SWAPS)):
            try:
                with self._connection.transaction():
                    return self._swap(covered)
            except psycopg.errors.LockNotAvailable as error:
                if not tries_left:
                    holders = describe_holders(self._connection, self._schema, VIEWS) or "an idle transaction?"
                    raise StorageUnavailable(
                        f"the views could not be swapped in: somebody holds a lock on them ({holders})"
                    ) from error
            end_vacuums(self._connection, self._schema, VIEWS)
        raise AssertionError  # the loop returns or raises

    def _swap(self, covered: int) -> tuple[int, int]:
        close_gate(self._connection, self._schema)
        # The lock of a rebuild is lost with its connection: another rebuild may have begun.
        if self._rows(_SHADOWS, [view + SHADOW for view in VIEWS], self._schema) != self._shadows:
            raise _another_rebuild(self._schema)
        # The shadows are those of this code's version: the schema may have been upgraded meanwhile.
        if (version := self._one(_VERSION)[0]) != self._version:
            raise StorageUnavailable(
                f"schema {self._schema!r} was brought to version {version} while its views were rebuilt, which stay as "
                "they were: rebuild them again"
            )
        # Every commit is visible by now. A cut could still be lower: of a commit that has just ended, the lock of its
        # number may be released after that of the gate.
        end = max(covered, int(self._one(_LAST)[0]))
        changed = self.catch_up(covered, end)
        lock_tables(self._connection, self._schema, VIEWS)
        for view in VIEWS:
            swap_in(self._connection, self._schema, view)
        return end, changed

    def _cut(self) -> int:
        return int(self._one("SELECT {schema}.cut()")[0])

    def _one(self, text: LiteralString, *values: object) -> tuple[Any, ...]:
        return self._rows(text, *values)[0]


@contextmanager
def _rebuild_lock(storage: PostgresStorage) -> Iterator[None]:
    with storage.connection() as connection:
        if not take_long_lock(connection, lock_number(storage.schema, "rebuild")):
            raise _another_rebuild(storage.schema)
        try:
            yield
        finally:
            release_long_lock(connection)


def _another_rebuild(schema: str) -> StorageUnavailable:
    return StorageUnavailable(f"another rebuild of the views in schema {schema!r} is under way: wait for it")


def _run_id(entry: Entry) -> str:
    return run_of(entry.fact) or ""
