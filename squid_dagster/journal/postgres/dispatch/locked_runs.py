"""Runs that other sessions hold locked: found by one look that waits for nothing, and remembered until the next one.

Groups ask here, so that a member whose run is locked keeps no other member waiting.
"""

from collections.abc import Collection
from typing import LiteralString

from squid_dagster.journal.postgres.connection.message import execute, json_of
from squid_dagster.journal.postgres.connection.session_settings import BEGIN_GROUP, BEGIN_STATEMENTS
from squid_dagster.journal.postgres.connection.sqlstates import LOCK_TIMEOUT
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.transaction import names
from squid_dagster.protocol.errors import StorageUnavailable

# runs_pkey, journal_threads_pkey, attempts_pkey: a row that is there and cannot be locked is another session's.
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
    """The runs that were locked when they were last looked at. Safe between threads."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Look at the runs of a storage."""
        self._storage = storage
        self._locked: frozenset[str] = frozenset()

    def check(self, run_ids: Collection[str]) -> None:
        """Raise `StorageUnavailable` if one of these was locked before, so that they are looked at again first."""
        if self._locked and not self._locked.isdisjoint(run_ids):
            error = StorageUnavailable("another session holds a row of it: look for a transaction left open")
            error.sqlstate = LOCK_TIMEOUT
            raise error

    def find(self, run_ids: Collection[str]) -> set[str]:
        """Return those of these runs that are locked now."""
        try:
            with self._storage.connection() as connection:
                results = execute(connection, self._storage.sql(_FIND), (names(run_ids),))
            found = set(json_of(results[BEGIN_STATEMENTS]) or ())
        except StorageUnavailable as error:
            if error.sqlstate != LOCK_TIMEOUT:
                raise
            found = set()  # a whole table is locked: that concerns all
        locked = (self._locked - set(run_ids)) | found
        self._locked = locked if len(locked) <= _MOST_REMEMBERED else frozenset(found)
        return found
