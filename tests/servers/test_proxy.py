"""The proxy that other tests break connections with: each fault looks as it does in a network."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Protocol

import psycopg
import pytest

from tests.journal.access import eventually, plain_url
from tests.servers.proxy import Proxy


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    """A proxy in front of the tests' server."""
    with Proxy(postgres_url) as proxy:
        yield proxy


class Connector(Protocol):
    def __call__(self, connect_timeout: int = 10) -> psycopg.Connection: ...


@pytest.fixture
def connect(proxy: Proxy, postgres_url: str) -> Iterator[Connector]:
    """Connects through the proxy; all connections are closed at the end."""
    with ExitStack() as made:

        def connect(connect_timeout: int = 10) -> psycopg.Connection:
            url = plain_url(proxy.url(postgres_url))
            return made.enter_context(closing(psycopg.connect(url, autocommit=True, connect_timeout=connect_timeout)))

        yield connect


def _pid(connection: psycopg.Connection) -> int:
    return connection.info.backend_pid


def _lives(postgres_url: str, pid: int) -> bool:
    with psycopg.connect(plain_url(postgres_url)) as connection:
        row = connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone()
    return row is not None


def _ask_in_background(connection: psycopg.Connection, query: bytes) -> tuple[threading.Thread, list[object]]:
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(connection.execute(query).fetchone())
        except psycopg.Error as error:
            answers.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread, answers


def test_what_is_swallowed_is_answered_by_nobody_and_stays_dead(
    proxy: Proxy, postgres_url: str, connect: Connector
) -> None:
    connection = connect()
    proxy.swallow()
    thread, answers = _ask_in_background(connection, b"SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="timeout"):
        connect(connect_timeout=2)
    proxy.resume()
    with connect() as other:
        assert other.execute("SELECT 2").fetchone() == (2,)
    assert not answers
    assert _lives(postgres_url, _pid(connection))
    proxy.cut()
    thread.join(10)
    assert isinstance(answers[0], psycopg.OperationalError)
    eventually(lambda: not _lives(postgres_url, _pid(connection)))


def test_the_end_of_a_swallowed_connection_does_not_reach_the_server(
    proxy: Proxy, postgres_url: str, connect: Connector
) -> None:
    connection = connect()
    pid = _pid(connection)
    proxy.swallow()
    connection.close()
    proxy.resume()
    connect().close()
    assert _lives(postgres_url, pid)
    proxy.cut()
    eventually(lambda: not _lives(postgres_url, pid))


def test_a_commit_reaches_the_server_and_its_answer_is_swallowed(
    proxy: Proxy, postgres_url: str, schema: str, connect: Connector
) -> None:
    table = f"proxied_{schema}"
    with (
        psycopg.connect(plain_url(postgres_url), autocommit=True) as direct,
        connect() as bystander,
    ):
        direct.execute(f"CREATE TABLE {table} (value int)".encode())
        connection = connect()
        happened = proxy.swallow_after(b"COMMIT")
        connection.execute(f"INSERT INTO {table} VALUES (1)".encode())
        connection.execute("BEGIN")
        connection.execute(f"INSERT INTO {table} VALUES (2)".encode())
        assert not happened.is_set()
        thread, answers = _ask_in_background(connection, b"COMMIT")
        assert happened.wait(10)
        eventually(lambda: direct.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == (2,))
        assert bystander.execute("SELECT 3").fetchone() == (3,)
        assert not answers
        proxy.cut()
        thread.join(10)
        assert isinstance(answers[0], psycopg.OperationalError)
        direct.execute(f"DROP TABLE {table}".encode())


def test_a_request_that_is_swallowed_before_it_is_delivered_does_nothing(
    proxy: Proxy, postgres_url: str, connect: Connector
) -> None:
    connection = connect()
    happened = proxy.swallow_after(b"pg_advisory_lock", delivered=False)
    _ask_in_background(connection, b"SELECT pg_advisory_lock(7, 99)")
    assert happened.wait(10)
    with psycopg.connect(plain_url(postgres_url)) as direct:
        assert direct.execute("SELECT pg_try_advisory_xact_lock(7, 99)").fetchone() == (True,)


def test_swallowing_can_begin_after_some_bytes(proxy: Proxy, connect: Connector) -> None:
    connection = connect()
    happened = proxy.swallow_after(1000)
    assert connection.execute("SELECT 1").fetchone() == (1,)
    thread, answers = _ask_in_background(connection, b"SELECT '" + b"x" * 1000 + b"'")
    assert happened.wait(10)
    assert not answers
    proxy.cut()
    thread.join(10)


def test_what_is_held_is_delivered_late(proxy: Proxy, connect: Connector) -> None:
    connection = connect()
    proxy.hold()
    thread, answers = _ask_in_background(connection, b"SELECT 1")
    assert not answers
    proxy.resume()
    thread.join(10)
    assert answers == [(1,)]


def test_a_delay_makes_every_answer_late(proxy: Proxy, connect: Connector) -> None:
    connection = connect()
    proxy.delay(0.1)
    began = time.monotonic()
    assert connection.execute("SELECT 1").fetchone() == (1,)
    assert time.monotonic() - began >= 0.2
    proxy.resume()


def test_a_refused_connection_is_refused_until_it_is_resumed(proxy: Proxy, connect: Connector) -> None:
    connection = connect()
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        connect()
    proxy.resume()
    with connect() as other:
        assert other.execute("SELECT 2").fetchone() == (2,)
