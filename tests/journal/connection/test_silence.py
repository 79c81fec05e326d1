"""Connections that are swallowed without a sign: every wait ends within its bound, and nothing is written twice."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import create_engine, exc

from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.network import NetworkBounds
from squid_dagster.journal.postgres.connection.pool import connect, make_engine
from squid_dagster.journal.postgres.notification.listener import ListenerTimes
from squid_dagster.journal.postgres.notification.notifier import PostgresNotifier
from squid_dagster.protocol.errors import InvalidArgument, StorageUnavailable
from tests.facts import signal
from tests.journal.access import LONG, THREAD, eventually, plain_url, raw
from tests.servers.proxy import Proxy

# What SQLAlchemy asks on the first connection of an engine, before a caller gets it.
FIRST = [b"BEGIN", b"pg_catalog.version", b"current_schema", b"transaction isolation level", b"hstore"]
SHORT = NetworkBounds(silence=0.3, confirmation=0.1, longest_pause=0.3, probe=5, connect=2)


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    """A proxy in front of the server."""
    with Proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def behind_proxy(postgres: PostgresStorage, proxy: Proxy, postgres_url: str) -> Iterator[PostgresStorage]:
    """The same journal, behind the proxy."""
    storage = PostgresStorage(proxy.url(postgres_url), postgres.schema, bounds=SHORT)
    yield storage
    storage.close()


@contextmanager
def at_the_same_time(work: Callable[[], None]) -> Iterator[None]:
    """Run something in a thread beside the block, and join it when the block ends."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result(LONG)


def sessions(storage: PostgresStorage, pid: int) -> int:
    return int(storage.rows("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid)[0][0])


@pytest.mark.parametrize("delivered", [True, False])
def test_a_statement_whose_answer_is_swallowed_is_asked_again_on_another_connection(
    behind_proxy: PostgresStorage, proxy: Proxy, delivered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    first = behind_proxy.rows("SELECT pg_backend_pid()")[0][0]
    happened = proxy.swallow_after(b"pg_backend_pid", delivered=delivered)
    assert behind_proxy.rows("SELECT pg_backend_pid()")[0][0] != first
    assert happened.is_set()
    (record,) = caplog.records
    assert record.message.startswith("a connection is given up: no answer from Postgres for ")
    assert record.message.endswith("s, the server does not work on it")


def test_the_session_of_a_swallowed_connection_ends_so_that_its_locks_do(
    behind_proxy: PostgresStorage, proxy: Proxy, postgres: PostgresStorage
) -> None:
    with behind_proxy.connection() as connection:
        pid = connection.info.backend_pid
        connection.execute("BEGIN")
        connection.execute("SELECT pg_advisory_xact_lock(71, 5)")
        proxy.swallow_after(b"SELECT 2")
        with pytest.raises(psycopg.OperationalError, match=r"no answer for .* the server does not work on it"):
            connection.execute("SELECT 2")
    eventually(lambda: sessions(postgres, pid) == 0)
    assert postgres.rows("SELECT pg_try_advisory_lock(71, 5)") == [(True,)]


@pytest.mark.parametrize("marker", [b"lock_runs", b"append_entries"])
@pytest.mark.parametrize("delivered", [True, False])
def test_a_commit_that_is_swallowed_is_applied_once(
    behind_proxy: PostgresStorage, proxy: Proxy, postgres: PostgresStorage, marker: bytes, delivered: bool
) -> None:
    happened = proxy.swallow_after(marker, delivered=delivered)
    commit_id = uuid4()
    assert behind_proxy.commit([Append(THREAD, [signal()])], commit_id) == {THREAD: 1}
    assert happened.is_set()
    assert len(postgres.read(THREAD)) == 1
    assert postgres.find_commit(commit_id) == {THREAD: 1}


def test_a_statement_that_the_server_works_on_is_waited_for_however_long_that_takes(
    behind_proxy: PostgresStorage, postgres: PostgresStorage, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with raw(postgres) as holder:
        holder.execute("SELECT pg_advisory_lock(71, 6)")
        before = proxy.accepted

        def unlock() -> None:
            eventually(lambda: proxy.accepted >= before + 4)  # the connection, and three probes
            holder.execute("SELECT pg_advisory_unlock(71, 6)")

        with at_the_same_time(unlock), behind_proxy.connection() as connection:
            connection.execute("SELECT pg_advisory_lock(71, 6)")
    (record,) = caplog.records  # logged once
    assert record.message.endswith("the server works on it")


def test_behind_a_pooler_a_statement_is_waited_for_while_a_session_works_on_one(
    postgres: PostgresStorage, postgres_url: str
) -> None:
    with Proxy(postgres_url, as_pooler=True) as pooler:
        storage = PostgresStorage(pooler.url(postgres_url), postgres.schema, bounds=SHORT)
        with raw(postgres) as holder:
            holder.execute("SELECT pg_advisory_lock(71, 7)")

            def unlock() -> None:
                eventually(lambda: pooler.accepted >= 4)
                holder.execute("SELECT pg_advisory_unlock(71, 7)")

            with at_the_same_time(unlock), storage.connection() as connection:
                pid = connection.info.backend_pid
                row = connection.execute("SELECT pg_backend_pid(), pg_advisory_lock(71, 7)").fetchone()
                assert row is not None
                assert row[0] != pid
        happened = pooler.swallow_after(b"clock_timestamp")
        storage.now()
        assert happened.is_set()
        storage.close()


def test_an_answer_that_comes_while_the_server_is_asked_is_taken(behind_proxy: PostgresStorage, proxy: Proxy) -> None:
    with behind_proxy.connection() as connection:
        pid = connection.info.backend_pid
        proxy.hold()
        threading.Timer(0.5, proxy.resume).start()  # the probe is held as well
        assert connection.execute("SELECT pg_backend_pid()").fetchone() == (pid,)


def test_a_descriptor_that_leads_elsewhere_by_now_is_not_closed(behind_proxy: PostgresStorage, proxy: Proxy) -> None:
    source, sink = os.pipe()
    with behind_proxy.connection() as connection:
        number = connection.fileno()
        happened = proxy.swallow_after(b"SELECT 2", delivered=False)

        def close_and_reuse() -> None:
            assert happened.wait(LONG)
            os.dup2(source, number)

        with at_the_same_time(close_and_reuse), pytest.raises(psycopg.OperationalError, match="no answer for"):
            connection.execute("SELECT 2")
        assert os.fstat(number).st_ino == os.fstat(source).st_ino
    behind_proxy.now()
    assert os.fstat(number).st_ino == os.fstat(source).st_ino
    for end in (source, sink):
        os.close(end)


def test_a_server_that_nothing_reaches_is_told_within_the_bound(behind_proxy: PostgresStorage, proxy: Proxy) -> None:
    behind_proxy.now()
    began = time.monotonic()
    with proxy.swallowing(), pytest.raises(StorageUnavailable, match="cannot reach Postgres"):
        behind_proxy.now()
    # two probes that cannot connect; then the second try, which cannot either
    assert time.monotonic() - began < SHORT.silence + SHORT.confirmation + 3 * SHORT.connect + LONG
    behind_proxy.now()


def test_a_server_that_takes_no_more_connections_is_not_taken_for_lost(
    postgres: PostgresStorage, postgres_url: str
) -> None:
    role = f"few_{postgres.schema}"
    with raw(postgres) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1".encode())
    url = postgres_url.replace("postgres@", f"{role}@", 1)
    storage = PostgresStorage(url, postgres.schema, bounds=SHORT)
    brief = PostgresStorage(url, postgres.schema, bounds=replace(SHORT, untold=0.1))
    try:
        assert storage.rows("SELECT pg_sleep(1)::text") == [("",)]
        storage.close()
        _wait_for_no_session(postgres, role)
        # but not without end
        with brief.connection() as connection, pytest.raises(psycopg.OperationalError, match="does not tell"):
            connection.execute("SELECT pg_sleep(30)")
    finally:
        storage.close()
        brief.close()
        with raw(postgres) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (role,))
        _wait_for_no_session(postgres, role)
        with raw(postgres) as connection:
            connection.execute(f"DROP ROLE {role}".encode())


def _wait_for_no_session(postgres: PostgresStorage, role: str) -> None:
    """Return once the role has no session: the server ends one after its client has closed it."""
    count = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"
    with raw(postgres) as connection:
        eventually(lambda: connection.execute(count, (role,)).fetchone() == (0,))


@pytest.mark.parametrize("marker", FIRST)
@pytest.mark.parametrize("delivered", [True, False])
def test_the_first_statement_of_a_process_is_asked_again(
    behind_proxy: PostgresStorage, proxy: Proxy, marker: bytes, delivered: bool
) -> None:
    happened = proxy.swallow_after(marker, delivered=delivered)
    behind_proxy.now()
    assert happened.is_set()


@pytest.mark.parametrize("marker", FIRST[1:])
def test_the_first_statement_of_each_other_engine_is_asked_again(
    behind_proxy: PostgresStorage, proxy: Proxy, marker: bytes
) -> None:
    behind_proxy.now()
    happened = proxy.swallow_after(marker)
    assert behind_proxy.check() == behind_proxy.version()
    assert happened.is_set()
    happened = proxy.swallow_after(marker)
    with pytest.raises(exc.OperationalError, match="no answer for"):  # a worker repeats that
        behind_proxy.step_engine.connect()
    assert happened.is_set()
    behind_proxy.step_engine.connect().close()


def test_several_threads_whose_first_statement_is_swallowed_go_on(behind_proxy: PostgresStorage, proxy: Proxy) -> None:
    happened = proxy.swallow_after(b"pg_catalog.version")
    with ThreadPoolExecutor(4) as pool:
        for call in [pool.submit(behind_proxy.now) for _ in range(4)]:
            call.result(LONG)
    assert happened.is_set()


def test_a_server_that_is_gone_behind_the_first_handshake_is_told_within_the_bound(
    behind_proxy: PostgresStorage, proxy: Proxy
) -> None:
    happened = proxy.swallow_after(b"pg_catalog.version")

    def lose_everything() -> None:
        assert happened.wait(LONG)
        proxy.swallow()

    began = time.monotonic()
    with at_the_same_time(lose_everything), pytest.raises(StorageUnavailable, match="cannot reach Postgres"):
        behind_proxy.now()
    assert time.monotonic() - began < SHORT.silence + SHORT.confirmation + 3 * SHORT.connect + LONG


def test_a_probe_that_is_swallowed_at_its_first_statement_ends_within_its_bound(
    postgres: PostgresStorage, proxy: Proxy, postgres_url: str
) -> None:
    bounds = replace(SHORT, probe=0.5)
    far = PostgresStorage(proxy.url(postgres_url), postgres.schema, bounds=bounds)
    happened, again = proxy.swallow_after(b"pg_catalog.version"), threading.Event()

    def swallow_the_probe() -> None:
        assert happened.wait(LONG)
        assert proxy.swallow_after(b"pg_stat_activity").wait(LONG)
        again.set()

    with at_the_same_time(swallow_the_probe):
        far.now()
    assert again.is_set()
    far.close()


def test_work_on_the_schema_notices_too(behind_proxy: PostgresStorage, proxy: Proxy) -> None:
    happened = proxy.swallow_after(b"pg_namespace")
    assert behind_proxy.check() == behind_proxy.version()
    assert happened.is_set()


def test_an_engine_that_was_handed_over_is_watched_and_left_as_it_was(
    postgres: PostgresStorage, proxy: Proxy, postgres_url: str
) -> None:
    engine = create_engine(proxy.url(postgres_url))
    storage = PostgresStorage(engine, postgres.schema, bounds=SHORT)
    happened = proxy.swallow_after(b"pg_catalog.version")
    storage.now()
    assert happened.is_set()
    happened = proxy.swallow_after(b"clock_timestamp")
    storage.now()
    assert happened.is_set()
    with engine.connect() as connection:
        assert "wait" not in vars(connection.connection.driver_connection)
    happened = proxy.swallow_after(b"pg_namespace")
    storage.check()
    assert happened.is_set()
    storage.close()
    engine.dispose()


def test_a_listener_that_is_swallowed_listens_again(
    behind_proxy: PostgresStorage, postgres: PostgresStorage, proxy: Proxy
) -> None:
    patience = ListenerTimes(quiet=0.2, answer=0.5)
    with closing(PostgresNotifier(behind_proxy, patience=patience).listen(["default"])) as listener:
        assert listener.wait(LONG)  # it is connected
        proxy.swallow()
        proxy.resume()
        assert listener.wait(LONG)  # it is connected again: something may have been missed
        PostgresNotifier(postgres).notify(["default"])
        assert listener.wait(LONG)


@pytest.mark.parametrize("marker", [*FIRST[1:], b"LISTEN"])
def test_a_listener_that_is_swallowed_while_it_connects_connects_again(
    behind_proxy: PostgresStorage, proxy: Proxy, marker: bytes
) -> None:
    happened = proxy.swallow_after(marker)
    patience = ListenerTimes(quiet=0.2, answer=0.5)
    with closing(PostgresNotifier(behind_proxy, patience=patience).listen(["default"])) as listener:
        assert listener.wait(LONG)  # it is connected
    assert happened.is_set()


def _option(connection: psycopg.Connection, level: int, name: int) -> int:
    with closing(socket.socket(fileno=os.dup(connection.fileno()))) as there:
        return there.getsockopt(level, name)


def test_the_kernel_ends_connections_whose_peer_is_gone(proxy: Proxy, postgres_url: str) -> None:
    bounds = NetworkBounds(keepalive=12, unacknowledged=7)
    with closing(connect(make_engine(proxy.url(postgres_url), bounds=bounds))) as connection:
        assert _option(connection, socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert _option(connection, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 6
        assert _option(connection, socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 2
        assert _option(connection, socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
        assert _option(connection, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000


def test_what_the_url_says_of_the_network_stands(proxy: Proxy, postgres_url: str) -> None:
    url = f"{proxy.url(postgres_url)}&keepalives_idle=77&tcp_user_timeout=1234&connect_timeout=4&application_name=mine"
    with closing(connect(make_engine(url))) as connection:
        assert _option(connection, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77
        assert _option(connection, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1234
        said = connection.info.get_parameters()
        assert (said["connect_timeout"], said["application_name"]) == ("4", "mine")


@pytest.mark.parametrize("wrong", [0, -1, True, "5", float("nan"), float("inf")])
def test_bounds_are_positive_numbers(wrong: float) -> None:
    with pytest.raises(InvalidArgument, match="silence must be a positive number of seconds"):
        NetworkBounds(silence=wrong)


def test_a_plain_url_is_used_as_it_is(postgres_url: str) -> None:
    with closing(psycopg.connect(plain_url(postgres_url))) as connection:
        assert "wait" not in vars(connection)
