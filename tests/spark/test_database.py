"""Connections of the data source: nothing is taken from a role's defaults, and errors say what to do."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import StorageRefused, StorageUnavailable
from squid_dagster.spark.source.columns import SCHEMA
from squid_dagster.spark.source.credentials import Location, handed_over
from squid_dagster.spark.source.data_source import JournalReader, SourceOptions, read_journal
from squid_dagster.spark.source.database import batches, connected
from tests.facts import queue_paused
from tests.journal.access import LONG, plain_url
from tests.servers.proxy import Proxy
from tests.servers.strict_pooler import StrictPooler
from tests.spark.journal_generator import Plan, generate
from tests.spark.reading import location

_SETTINGS = ("search_path", "statement_timeout", "lock_timeout", "TimeZone", "client_encoding")
_SHOWN = "SELECT " + ", ".join(f"pg_catalog.current_setting('{name}')" for name in _SETTINGS)
OURS = ("pg_catalog, pg_temp", "0", "30s", "UTC", "UTF8")
UNKIND = {"client_encoding": "LATIN1", "TimeZone": "Asia/Kathmandu", "default_transaction_isolation": "serializable"}
TIMEOUTS = {"statement_timeout": "1ms", "lock_timeout": "1ms", "idle_in_transaction_session_timeout": "1ms"}


@pytest.fixture
def generated(postgres: PostgresStorage) -> PostgresStorage:
    """A journal of some facts, one of them of no run."""
    generate(postgres, Plan(200, runs_per_commit=20))
    postgres.append(queue_paused().thread, [queue_paused()])
    return postgres


@pytest.fixture
def role(postgres_url: str, schema: str) -> Iterator[str]:
    """A role that may read everything, whose functions stand before those of Postgres, and with other settings."""
    name, shadows = sql.Identifier(f"unkind_{schema}"), sql.Identifier(f"shadows_{schema}")
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN SUPERUSER").format(name))
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(shadows))
        for function, answer in (
            ("starts_with(text, text) RETURNS boolean", "false"),
            ("hashtext(text) RETURNS integer", "-7"),
            ("set_config(text, text, boolean) RETURNS text", "''"),
        ):
            text = f"CREATE FUNCTION {{}}.{function} LANGUAGE sql AS $$ SELECT {answer}::{function.split()[-1]} $$"
            connection.execute(sql.SQL(text).format(shadows))
        path = sql.SQL("ALTER ROLE {} SET search_path = {}, pg_catalog").format(name, shadows)
        connection.execute(path)
        _alter(connection, name, {**UNKIND, **TIMEOUTS})
        yield f"unkind_{schema}"
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(shadows))
        connection.execute(sql.SQL("DROP ROLE {}").format(name))


def _alter(connection: psycopg.Connection[Any], role: sql.Identifier, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        setting = sql.SQL("ALTER ROLE {} SET {} = {}").format(role, sql.Identifier(name), sql.Literal(value))
        connection.execute(setting)


def calm(postgres_url: str, role: str) -> None:
    """Remove the timeouts: behind a pooler, they end a session before its first statement."""
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection:
        _alter(connection, sql.Identifier(role), dict.fromkeys(TIMEOUTS, "10s"))


def url_of(url: str, role: str) -> str:
    """Return the server's URL for a role."""
    return url.replace("postgres@", f"{role}@", 1)


def all_rows(spark: SparkSession, url: str, storage: PostgresStorage) -> None:
    """Read between cuts, in all ways: nothing is missing, and nothing there twice."""
    upto = storage.cut()
    expected = [entry.position for entry in storage.read_between(0, upto)]
    for by in ("position", "thread", "run"):
        frame = read_journal(spark, {"url": url}, schema=storage.schema, upto=upto, partitions=3, by=by)
        rows = frame.select("position", "intact").collect()
        assert sorted(row.position for row in rows) == expected
        assert {row.intact for row in rows} == {True}
    with connected(Location("url", url), storage.schema) as cursor:
        cursor.execute(_SHOWN)
        assert cursor.fetchone() == OURS


def test_a_read_gives_all_rows_whatever_the_defaults_of_its_role_are(
    spark: SparkSession, generated: PostgresStorage, postgres_url: str, role: str
) -> None:
    all_rows(spark, url_of(postgres_url, role), generated)


@pytest.mark.parametrize("drops", [True, False])
def test_behind_a_pooler_that_takes_no_options_a_read_gives_all_rows_too(
    spark: SparkSession, generated: PostgresStorage, postgres_url: str, role: str, drops: bool
) -> None:
    calm(postgres_url, role)
    with closing(StrictPooler(url_of(postgres_url, role), drops=drops)) as pooler:
        all_rows(spark, pooler.url, generated)
        assert pooler.refused > 0


def test_options_of_the_url_are_kept(postgres: PostgresStorage) -> None:
    url = f"{location(postgres)['url']}&options=-c%20work_mem%3D5MB%20-c%20statement_timeout%3D7s"
    with connected(Location("url", url), postgres.schema) as cursor:
        cursor.execute("SELECT current_setting('work_mem'), current_setting('statement_timeout')")
        assert cursor.fetchone() == ("5MB", "0")


def _options_of_the_kernel(proxy: Proxy) -> tuple[int, ...]:
    """Return the socket options of this process's one connection to a proxy."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  numbers
        try:
            there = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # no socket, or closed meanwhile
            continue
        with there:
            try:
                if there.family != socket.AF_INET or there.getpeername() != (proxy.host, proxy.port):
                    continue
            except OSError:  # not connected
                continue
            names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            return (
                there.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                *(there.getsockopt(socket.IPPROTO_TCP, name) for name in names),
            )
    raise AssertionError("there is no connection to the proxy")


def test_the_kernel_ends_reads_whose_server_is_gone(postgres: PostgresStorage) -> None:
    url = location(postgres)["url"]
    with Proxy(url) as proxy:
        with connected(Location("url", proxy.url(url)), postgres.schema):
            assert _options_of_the_kernel(proxy) == (1, 15, 5, 3, 30_000)
        own = f"{proxy.url(url)}&keepalives_idle=77&tcp_user_timeout=1234"
        with connected(Location("url", own), postgres.schema):
            assert _options_of_the_kernel(proxy) == (1, 77, 5, 3, 1234)


@pytest.mark.parametrize(
    ("statement", "kind", "sqlstate", "words"),
    [
        ("SELECT 1 / 0", StorageRefused, "22012", "refuses this: a value cannot be stored"),
        ("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(9)::text", StorageUnavailable, "57014", "was cancelled"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", StorageUnavailable, "57P01", "it shuts down"),
        ("SELECT * FROM nothing_here", StorageUnavailable, "42P01", "there is no journal in schema"),
    ],
)
def test_an_error_of_the_database_says_what_to_do_about_it(
    postgres: PostgresStorage, statement: str, kind: type[Exception], sqlstate: str, words: str
) -> None:
    at = pytest.raises(kind, match=words)
    with at as refused, connected(Location("url", location(postgres)["url"]), postgres.schema) as cursor:
        cursor.execute(statement)
        cursor.fetchall()
    assert getattr(refused.value, "sqlstate", None) == sqlstate


def test_an_error_in_the_middle_of_a_read_is_one_of_ours(postgres: PostgresStorage) -> None:
    at = pytest.raises(StorageUnavailable, match=r"cannot read from Postgres at .* division by zero")
    with at, connected(Location("url", location(postgres)["url"]), postgres.schema) as cursor:
        for _ in batches(cursor, "SELECT 1 / (n - 99999) FROM generate_series(1, 100000) n"):
            """Read on."""


@pytest.mark.parametrize("planned", [False, True])
def test_a_read_whose_connection_is_lost_before_the_first_row_begins_again(
    generated: PostgresStorage, planned: bool
) -> None:
    url = location(generated)["url"]
    with Proxy(url) as proxy, handed_over(proxy.url(url)) as where:
        options = SourceOptions.parse({**where, "schema": generated.schema})
        reader = JournalReader(options, StructType([SCHEMA["position"]]))
        before = reader.partitions() if planned else []
        happened = proxy.swallow_after(b"journal_entries" if planned else b"journal_numbers", delivered=False)

        def cut() -> None:
            assert happened.wait(LONG)
            proxy.cut()

        cutter = threading.Thread(target=cut)
        cutter.start()
        parts = before or reader.partitions()
        rows = [row["position"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        cutter.join()
    assert sorted(rows) == [entry.position for entry in generated.read_between(0, generated.cut())]
