"""Runs that other sessions hold locked: found by one statement that waits for no lock, and remembered until the next.

Groups check here, so that other members do not wait for a member whose run is locked.
"""

from collections.abc import Collection
from typing import LiteralString

from squid_dagster.journal.postgres.connection.message import execute, json_of
from squid_dagster.journal.postgres.connection.session_settings import BEGIN_GROUP, BEGIN_STATEMENTS
from squid_dagster.journal.postgres.connection.sqlstates import LOCK_TIMEOUT
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.transaction import names
from squid_dagster.protocol.errors import StorageUnavailable

# runs_pkey, journal_threads_pkey, attempts_pkey: a row that exists and is skipped is locked by another session.
_LOCKED: LiteralString = """SELECT json_agg(n.id) FROM unnest(%s::text[]) n (id)
    WHERE (SELECT count(*) FROM {schema}.runs WHERE run_id = n.id)
        > (SELECT count(*) FROM (SELECT FROM {schema}.runs WHERE run_id = n.id FOR UPDATE SKIP LOCKED) f)
       OR (SELECT count(*) FROM {schema}.journal_threads WHERE id = 'squid:run:' || n.id)
        > (SELECT count(*) FROM (
               SELECT FROM {schema}.journal_threads WHERE id = 'squid:run:' || n.id FOR UPDATE SKIP LOCKED) f)
       OR (SELECT count(*) FROM {schema}.attempts WHERE run_id = n.id)
        > (SELECT count(*) FROM (SELECT FROM {schema}.attempts WHERE run_id = n.id FOR UPDATE SKIP LOCKED) f)"""
_FIND: LiteralString = BEGIN_GROUP + _LOCKED + "; COMMIT"
_MOST_REMEMBERED = 10_000


class LockedRuns:
    """The runs that were locked when they were last checked. Safe between threads."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Bind to a storage."""
        self._storage = storage
        self._locked: frozenset[str] = frozenset()

    def check(self, run_ids: Collection[str]) -> None:
        """Raise `StorageUnavailable` if one of these was locked before: `find` has to check them again first."""
        if self._locked and not self._locked.isdisjoint(run_ids):
            error = StorageUnavailable("another session holds a row of it: look for a transaction left open")
            error.sqlstate = LOCK_TIMEOUT
            raise error

    def find(self, run_ids: Collection[str]) -> set[str]:
        """Return those of these runs that are locked now."""
        try:
            with self._storage.connection() as connection:
                results = execute(connection, self._storage.sql(_FIND), (names(run_ids),))
            locked = set(json_of(results[BEGIN_STATEMENTS]) or ())
        except StorageUnavailable as error:
            if error.sqlstate != LOCK_TIMEOUT:
                raise
            locked = set()  # a whole table is locked, which is no matter of single runs
        remembered = (self._locked - set(run_ids)) | locked
        self._locked = remembered if len(remembered) <= _MOST_REMEMBERED else frozenset(locked)
        return locked
