"""Connections of the pool: one serves statement after statement, and a broken one is never used again."""

import errno
import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest

from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.postgres.connection.pool import make_engine
from squid_dagster.protocol.errors import StorageRefused, StorageUnavailable
from tests.journal.access import eventually, raw


def session(storage: PostgresStorage) -> int:
    """Return the process id of the session that answers."""
    return int(storage.rows("SELECT pg_backend_pid()")[0][0])


def out(storage: PostgresStorage) -> int:
    """Return how many connections are checked out of the pool."""
    return int(storage.engine.pool.checkedout())  # type: ignore[attr-defined]  # a pool with a queue


@pytest.fixture
def storage(postgres: PostgresStorage) -> Iterator[PostgresStorage]:
    """A storage that has not been used yet."""
    made = PostgresStorage(postgres.engine.url.render_as_string(hide_password=False), postgres.schema)
    yield made
    made.close()


def test_one_connection_serves_statement_after_statement(storage: PostgresStorage) -> None:
    assert len({session(storage) for _ in range(5)}) == 1
    assert out(storage) == 0


def test_every_loan_at_a_time_has_a_connection_of_its_own_and_all_come_back(storage: PostgresStorage) -> None:
    with ExitStack() as loans:
        lent = [loans.enter_context(storage.connection()) for _ in range(4)]
        assert len({connection.info.backend_pid for connection in lent}) == 4
        assert out(storage) == 4
    assert out(storage) == 0


def test_an_engine_that_was_handed_over_gets_every_connection_back(storage: PostgresStorage) -> None:
    engine = make_engine(storage.engine.url.render_as_string(hide_password=False))
    theirs = PostgresStorage(engine, storage.schema)
    session(theirs)
    assert out(theirs) == 0
    with engine.connect() as connection:
        assert not connection.connection.driver_connection.autocommit  # type: ignore[union-attr]  # as it was made
    theirs.close()


def test_one_that_was_left_in_a_transaction_is_rolled_back(storage: PostgresStorage) -> None:
    with suppress(ZeroDivisionError), storage.connection() as connection:
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE public.left_behind ()")
        raise ZeroDivisionError
    assert storage.rows("SELECT to_regclass('public.left_behind')") == [(None,)]


def test_one_that_broke_at_rest_is_replaced(storage: PostgresStorage, postgres: PostgresStorage) -> None:
    before = session(storage)
    with raw(postgres) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", (before,))
    assert session(storage) != before
    assert out(storage) == 0


def test_a_storage_that_was_closed_holds_none_and_can_be_used_again(
    storage: PostgresStorage, postgres: PostgresStorage
) -> None:
    with storage.connection() as lent:
        before = {session(storage), lent.info.backend_pid}
        storage.close()  # while one is checked out
    with raw(postgres) as connection:
        left = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)"
        eventually(lambda: connection.execute(left, (list(before),)).fetchone() == (0,))
    assert session(storage) not in before


def test_an_engine_that_began_anew_has_none_of_the_old_ones_used(storage: PostgresStorage) -> None:
    before = session(storage)
    storage.engine.dispose()
    assert session(storage) != before
    assert out(storage) == 0


def test_a_process_that_was_forked_uses_connections_of_its_own(storage: PostgresStorage) -> None:
    before = session(storage)
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[list[int]] = context.Queue()

    def ask() -> None:
        with ExitStack() as loans:
            lent = [loans.enter_context(storage.connection()) for _ in range(3)]
            answers.put([connection.info.backend_pid for connection in lent])

    child = context.Process(target=ask)
    child.start()
    assert before not in answers.get(timeout=30)
    child.join(30)
    assert child.exitcode == 0
    assert session(storage) == before, "and leaves its parent's alone"


def test_what_the_database_refuses_is_told_and_keeps_the_connection(storage: PostgresStorage) -> None:
    before = session(storage)
    with pytest.raises(StorageRefused, match="22012: division by zero"):
        storage.rows("SELECT 1/0")
    assert session(storage) == before


def _lose(connection: psycopg.Connection[Any], said: BaseException) -> None:
    """Answer as psycopg does when the wait for its socket has ended by an error."""
    try:
        raise said
    finally:
        connection.close()
        raise psycopg.OperationalError("the wait has ended")


def test_a_socket_that_was_closed_under_a_statement_is_a_lost_connection(storage: PostgresStorage) -> None:
    with pytest.raises(StorageUnavailable, match="the connection was lost"), storage.connection() as connection:
        _lose(connection, OSError(errno.EBADF, "Bad file descriptor"))
    assert session(storage)


def test_what_a_signal_raises_under_a_statement_is_not_taken_for_a_lost_connection(storage: PostgresStorage) -> None:
    for said in (KeyboardInterrupt(), TimeoutError("of a handler")):
        with pytest.raises(type(said)), storage.connection() as connection:
            _lose(connection, said)
    assert session(storage)


def test_what_the_caller_was_handling_is_not_taken_for_an_interruption(storage: PostgresStorage) -> None:
    for handled in (KeyError("mine"), OSError(errno.ENOENT, "no such file")):
        try:
            raise LookupError("before") from None
        except LookupError:
            try:
                raise handled
            except (KeyError, OSError):
                with pytest.raises(StorageRefused, match="22012"):
                    storage.rows("SELECT 1 / 0")
