"""A database that cannot be reached or is not ours: an error says so, without its password; nothing is changed."""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.postgres.schema.names import CODE_VERSION
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import (
    ForeignSchema,
    InvalidArgument,
    SchemaOutdated,
    SchemaTooNew,
    StorageUnavailable,
)
from tests.facts import signal
from tests.journal.access import THREAD, Opener, all_entries, plain_url, put, raw

SECRET = "p4ss-hunter2"


# --- databases that cannot be reached -------------------------------------------------------------------------------


def unavailable(storage: PostgresStorage) -> None:
    """Assert that each call is refused in the same words, without the password."""
    calls: dict[str, Callable[[], object]] = {
        "commit": lambda: storage.commit([Append(THREAD, [signal()])], uuid4()),
        "read": lambda: storage.read(THREAD),
        "cut": lambda: storage.cut(),
        "now": lambda: storage.now(),
        "checkpoint": lambda: storage.put_checkpoint(THREAD, 0, "{}"),
        "delete": lambda: storage.delete_thread(THREAD),
        "upgrade": lambda: storage.upgrade(),
        "check": lambda: storage.check(),
    }
    for name, call in calls.items():
        with pytest.raises(StorageUnavailable) as refused:
            call()
        said = [str(refused.value), repr(refused.value)]
        cause = refused.value.__cause__
        while cause is not None:
            said.append(repr(cause))
            cause = cause.__cause__
        assert SECRET not in " ".join(said), name
        assert "cannot reach Postgres" in said[0], name
        assert re.search(r"\?$|URL", said[0]), name
    assert SECRET not in repr(storage)


def test_a_closed_port_is_told_without_the_password(open_storage: Opener) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    unavailable(open_storage(f"postgresql://somebody:{SECRET}@127.0.0.1:{port}/journal"))


def test_a_socket_directory_that_does_not_exist_is_told_without_the_password(
    tmp_path: Path, open_storage: Opener
) -> None:
    unavailable(open_storage(f"postgresql://somebody:{SECRET}@/journal?host={tmp_path}/nowhere"))


def test_a_password_in_the_query_is_not_told_either(tmp_path: Path, open_storage: Opener) -> None:
    unavailable(open_storage(f"postgresql://somebody@/journal?host={tmp_path}/nowhere&password={SECRET}"))


def test_a_host_name_that_does_not_resolve_is_told_without_the_password(open_storage: Opener) -> None:
    unavailable(open_storage(f"postgresql://somebody:{SECRET}@no-such-host.invalid/journal"))


@pytest.fixture
def guarded_url(own_server: EmbeddedPostgres) -> Iterator[str]:
    """The URL of a server that requires a password of one role, and the URL with a wrong one."""
    url = plain_url(own_server.ensure_running())
    rules = own_server.data_dir / "pgdata" / "pg_hba.conf"
    usual = rules.read_bytes()
    rules.write_bytes(b"local all guarded scram-sha-256\n" + usual)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'the right one'")
        connection.execute("SELECT pg_reload_conf()")
        yield url.replace("postgres@", f"guarded:{SECRET}@", 1)
        connection.execute("DROP OWNED BY guarded CASCADE")
        connection.execute("DROP ROLE guarded")
    rules.write_bytes(usual)


def test_a_wrong_password_is_told_and_not_shown(guarded_url: str, open_storage: Opener) -> None:
    assert open_storage(guarded_url.replace(SECRET, "the%20right%20one"), "guarded").upgrade() == CODE_VERSION
    unavailable(open_storage(guarded_url))


def test_a_database_that_does_not_exist_is_told(postgres_url: str, open_storage: Opener) -> None:
    unavailable(
        open_storage(
            plain_url(postgres_url).replace("/postgres?", "/nowhere?").replace("postgres@", f"postgres:{SECRET}@")
        )
    )


def test_a_url_that_is_none_is_refused_at_once() -> None:
    for url in ("", "postgres", f"mysql://somebody:{SECRET}@host/db", f"postgresql://somebody:{SECRET}@host:port/db"):
        with pytest.raises(InvalidArgument) as refused:
            PostgresStorage(url)
        assert SECRET not in str(refused.value)


# --- schemas that do not fit ----------------------------------------------------------------------------------------


def _shape(storage: PostgresStorage) -> list[Any]:
    """Return everything that the schema holds."""
    with raw(storage) as connection:
        return connection.execute(
            """SELECT relname, relkind, pg_get_userbyid(relowner) FROM pg_class
                WHERE relnamespace = to_regnamespace(%s) ORDER BY 1, 2""",
            (storage.schema,),
        ).fetchall()


@pytest.mark.parametrize(
    "foreign",
    [
        "TABLE {schema}.runs (id int, name text)",
        "TABLE {schema}.journal_entries (position bigint)",
        "TABLE {schema}.queues (queue text)",
        "VIEW {schema}.attempts AS SELECT 1 AS one",
        "SEQUENCE {schema}.journal_numbers",
        "TABLE {schema}.squid_schema (id int)",
        "TABLE {schema}.squid_schema (version integer NOT NULL, oldest_code integer NOT NULL)",
    ],
    ids=["runs", "entries", "queues", "a view", "the sequence", "another squid_schema", "an empty squid_schema"],
)
def test_tables_of_our_names_that_are_not_ours_are_left_alone(open_storage: Opener, schema: str, foreign: Any) -> None:
    # given a schema in which another application has an object with one of our names
    storage = open_storage()
    with raw(storage) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {schema}").format(schema=sql.Identifier(schema)))
        connection.execute(sql.SQL("CREATE " + foreign).format(schema=sql.Identifier(schema)))
    before = _shape(storage)
    # when the journal is to be made there, or looked for
    with pytest.raises(ForeignSchema, match=schema):
        storage.upgrade()
    with pytest.raises(ForeignSchema, match=schema):
        storage.check()
    # then nothing has changed
    assert _shape(storage) == before


def test_a_schema_of_a_newer_version_that_needs_newer_code_is_refused(postgres: PostgresStorage) -> None:
    put(postgres, signal())
    with raw(postgres) as connection:
        connection.execute("UPDATE squid_schema SET version = 99, oldest_code = 99")
    before = _shape(postgres)
    with pytest.raises(SchemaTooNew, match=r"99.*upgrade squid-dagster"):
        postgres.check()
    with pytest.raises(SchemaTooNew):
        postgres.upgrade()
    assert _shape(postgres) == before
    assert len(all_entries(postgres)) == 1


def test_a_schema_of_a_newer_version_that_this_code_can_use_is_used(postgres: PostgresStorage) -> None:
    with raw(postgres) as connection:
        connection.execute("UPDATE squid_schema SET version = 99, oldest_code = 1")
    assert postgres.check() == 99
    assert postgres.upgrade() == 99
    assert postgres.append(THREAD, [signal()]) == 1


def test_an_outdated_schema_names_the_command(postgres: PostgresStorage) -> None:
    with raw(postgres) as connection:
        connection.execute("UPDATE squid_schema SET version = 0")
    with pytest.raises(SchemaOutdated, match="squid db upgrade"):
        postgres.check()


def test_a_journal_that_was_never_made_names_the_command_whatever_is_asked_first(open_storage: Opener) -> None:
    storage = open_storage()
    wrong: dict[str, str] = {}
    calls: dict[str, Callable[[], object]] = {
        "check": storage.check,
        "commit": lambda: storage.append(THREAD, [signal()]),
        "read": lambda: storage.read(THREAD),
        "cut": storage.cut,
        "checkpoint": lambda: storage.put_checkpoint(THREAD, 0, "{}"),
    }
    for name, call in calls.items():
        try:
            call()
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            if not isinstance(error, SchemaOutdated) or "squid db upgrade" not in str(error):
                wrong[name] = f"{type(error).__name__}: {error}"
        else:
            wrong[name] = "answered"
    assert wrong == {}
    assert _shape(storage) == []


def test_a_schema_name_that_cannot_be_used_as_it_is_is_refused(postgres_url: str) -> None:
    for name in ("", "A", "a-b", "a b", 'a"b', "1a", "pg_x", "a" * 41, "ä", "a.b", "a\n", "a;drop schema public", None):
        with pytest.raises(InvalidArgument, match="schema"):
            PostgresStorage(postgres_url, name)  # type: ignore[arg-type]
