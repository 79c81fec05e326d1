"""Behind a transaction pooler: each transaction on another connection of the server, and no lock is left behind."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from squid_dagster.backlog import Backlog
from squid_dagster.backlog.postgres.rebuild import rebuild as rebuild_cards
from squid_dagster.journal import rebuild_views, verify
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import StorageUnavailable
from tests.journal.access import plain_url, raw
from tests.journal.writers import start

_LEFT = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = ANY (%s)"


class GaveUpError(Exception):
    """The fold has given up."""


class PooledConnection:
    """A client's connection: what comes outside of a transaction goes to whichever server connection is next."""

    def __init__(self, idle: deque[psycopg.Connection[Any]]) -> None:
        """Share the server's connections with all other clients."""
        self._idle, self._held = idle, None

    _held: psycopg.Connection[Any] | None

    def execute(self, *args: Any, **options: Any) -> psycopg.Cursor[Any]:
        """Run a statement where the transaction is, or anywhere."""
        try:
            cursor: psycopg.Cursor[Any] = self._take().execute(*args, **options)
            return cursor
        finally:
            self._give_back()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Keep one connection for as long as a transaction lasts."""
        try:
            with self._take().transaction() as transaction:
                yield transaction
        finally:
            self._give_back()

    def cursor(self, *args: Any, **options: Any) -> psycopg.Cursor[Any]:
        """Return a cursor of the connection that the transaction is on."""
        assert self._held is not None, "outside of a transaction, nobody knows where it would be"
        cursor: psycopg.Cursor[Any] = self._held.cursor(*args, **options)
        return cursor

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the server connection at hand."""
        return getattr(self._held or self._idle[0], name)

    def _take(self) -> psycopg.Connection[Any]:
        if self._held is None:
            self._held = self._idle.popleft()
        return self._held

    def _give_back(self) -> None:
        held = self._held
        if held is not None and held.info.transaction_status == TransactionStatus.IDLE:
            self._idle.append(held)
            self._held = None


@pytest.fixture
def server(postgres: PostgresStorage, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The storage behind a pooler with four connections to the server; gives their processes."""
    idle = deque(psycopg.connect(plain_url(postgres_url), autocommit=True) for _ in range(4))

    @contextmanager
    def lend() -> Iterator[PooledConnection]:
        yield PooledConnection(idle)

    made = list(idle)
    monkeypatch.setattr(postgres, "connection", lend)
    yield [connection.info.backend_pid for connection in made]
    for connection in made:
        connection.close()


def test_rebuilds_behind_a_pooler_follow_each_other_and_leave_no_lock(
    postgres: PostgresStorage, server: list[int]
) -> None:
    start(postgres, ["run-1", "run-2"])
    Backlog(postgres).create("a", "card")
    for _ in range(5):
        rebuild_views(postgres)
        rebuild_cards(postgres)
        with raw(postgres) as connection:
            assert connection.execute(_LEFT, (server,)).fetchone() == (0,)
    assert verify(postgres) == []


@pytest.mark.usefixtures("server")
def test_behind_a_pooler_too_a_second_rebuild_is_refused(postgres: PostgresStorage) -> None:
    start(postgres, ["run-1", "run-2"])
    refused: list[str] = []

    def fill(cut: int, _: object) -> tuple[int, int]:
        with pytest.raises(StorageUnavailable, match="another rebuild") as refusal:
            rebuild_views(postgres)
        refused.append(str(refusal.value))
        raise GaveUpError

    # when one begins while another is under way, and that fails
    with pytest.raises(GaveUpError):
        rebuild_views(postgres, fill=fill)
    assert len(refused) == 1
    # then the next one is not
    assert rebuild_views(postgres).runs == 2
    assert verify(postgres) == []


def test_a_rebuild_that_lost_its_lock_swaps_nothing_in_that_is_another_s(postgres: PostgresStorage) -> None:
    start(postgres, ["run-1", "run-2"])

    def fill(cut: int, _: object) -> tuple[int, int]:
        # when the transaction that holds the lock is ended, and another rebuild begins and is not done yet
        with raw(postgres) as connection:
            connection.execute(
                """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                    WHERE state = 'idle in transaction' AND query LIKE '%set_config(name%'"""
            )
        with pytest.raises(GaveUpError):
            rebuild_views(postgres, fill=_give_up)
        return 0, 0

    with pytest.raises(StorageUnavailable, match="another rebuild"):
        rebuild_views(postgres, fill=fill)
    # then the views are as they were
    assert verify(postgres) == []


def _give_up(_cut: int, _progress: object) -> tuple[int, int]:
    raise GaveUpError
