"""Creating and upgrading the schema: by many at once, beside others, with few rights, on every Postgres of a wheel."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from squid_dagster.journal import rebuild_views, verify
from squid_dagster.journal.contract.dispatch_store import ClaimRef, Completed, Settlement
from squid_dagster.journal.embedded import EmbeddedPostgres, cluster, wheel
from squid_dagster.journal.embedded.account import account_for
from squid_dagster.journal.embedded.deadline import Deadline
from squid_dagster.journal.embedded.layout import Layout
from squid_dagster.journal.embedded.locks import try_lock
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.schema import migrations
from squid_dagster.journal.postgres.schema import upgrade as migrate
from squid_dagster.journal.postgres.schema.drift import drift
from squid_dagster.journal.postgres.schema.names import CODE_VERSION
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import SchemaOutdated
from tests.facts import applied, fenced, planned, queue_paused, queued, scheduled, signal, started, terminal
from tests.journal.access import THREAD, Opener, all_entries, assert_views_agree_with_the_journal, plain_url, put, raw
from tests.journal.schema.released_schemas import EARLIER_VERSIONS, make_released, written_by_this_code
from tests.scratch import SCRATCH

# Ten processes, forked once everything is imported: they race for the schema and not for the interpreter.
_UPGRADE = """
import os, sys
from squid_dagster.journal.postgres.storage import PostgresStorage

gate, start = os.pipe()
children = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        os.close(start)
        os.read(gate, 1)
        storage = PostgresStorage(sys.argv[1], sys.argv[2])
        found = storage.upgrade(), storage.check()
        storage.close()
        os.write(1, f"{os.getpid()} {found}\\n".encode())
        os._exit(0)
    children.append(child)
os.close(start)
sys.exit(max(os.waitpid(child, 0)[1] for child in children))
"""


def _objects(storage: PostgresStorage) -> list[Any]:
    """Return what the schema holds: tables, indexes, sequences, functions, triggers."""
    with raw(storage) as connection:
        return connection.execute(
            """SELECT 'relation', relname::text, relkind::text FROM pg_class WHERE relnamespace = to_regnamespace(%(s)s)
               UNION ALL SELECT 'function', proname::text, pg_get_function_identity_arguments(oid)
                 FROM pg_proc WHERE pronamespace = to_regnamespace(%(s)s)
               UNION ALL SELECT 'trigger', tgname::text, tgenabled::text FROM pg_trigger t
                 JOIN pg_class c ON c.oid = tgrelid WHERE relnamespace = to_regnamespace(%(s)s) AND NOT tgisinternal
               ORDER BY 1, 2, 3""",
            {"s": storage.schema},
        ).fetchall()


def test_ten_processes_that_upgrade_at_once_all_succeed_and_make_one_schema(
    postgres_url: str, schema: str, open_storage: Opener
) -> None:
    # when ten processes make the same schema at the same time
    command = [sys.executable, "-W", "error", "-c", _UPGRADE, postgres_url, schema]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    answers = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    # then all of them have it, and it was made once
    assert (done.returncode, done.stderr) == (0, "")
    assert list(answers.values()) == [str((CODE_VERSION, CODE_VERSION))] * 10
    storage = open_storage()
    with raw(storage) as connection:
        assert connection.execute("SELECT version FROM squid_schema").fetchall() == [(CODE_VERSION,)]
    assert storage.append(THREAD, [signal()]) == 1


def test_an_upgrade_of_what_is_up_to_date_changes_nothing(postgres: PostgresStorage) -> None:
    put(postgres, signal(), started(), planned(), scheduled())
    before, entries = _objects(postgres), all_entries(postgres)
    assert [postgres.upgrade() for _ in range(3)] == [CODE_VERSION] * 3
    assert postgres.check() == CODE_VERSION
    assert _objects(postgres) == before
    assert all_entries(postgres) == entries


def test_two_schemas_in_one_database_know_nothing_of_each_other(
    postgres: PostgresStorage, open_storage: Opener
) -> None:
    # given two journals side by side
    other = open_storage(name=f"{postgres.schema}_b")
    with pytest.raises(SchemaOutdated):
        other.check()
    other.upgrade()
    assert _objects(other) == _objects(postgres)
    # when one of them is written to
    put(postgres, signal(), started(), planned(), queued(), scheduled(), queue_paused())
    # then the other is empty, counts for itself and gives claims although the first is paused
    assert all_entries(other) == []
    assert other.cut() == 0
    put(other, scheduled())
    assert all_entries(other)[0].position == 2**20 + 1
    assert PostgresDispatchStore(postgres).claim("default", "w") == []
    assert len(PostgresDispatchStore(other).claim("default", "w")) == 1
    # and goes when it is dropped, without a trace in the first
    before = _objects(postgres), all_entries(postgres)
    with raw(postgres) as connection:
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(other.schema)))
    assert (_objects(postgres), all_entries(postgres)) == before
    assert postgres.append(THREAD, [signal()]) == 4


def test_nothing_is_made_outside_the_schema(open_storage: Opener, schema: str) -> None:
    storage = open_storage()
    others = """SELECT relnamespace::regnamespace::text, relname FROM pg_class WHERE relkind IN ('r', 'S', 'v')
        AND relnamespace <> coalesce(to_regnamespace(%s), 0) AND relnamespace::regnamespace::text NOT LIKE 'pg\\_%%'
        ORDER BY 1, 2"""
    with raw(storage) as connection:
        before = connection.execute(others, (schema,)).fetchall()
        storage.upgrade()
        assert connection.execute(others, (schema,)).fetchall() == before


def test_an_empty_schema_that_is_there_already_is_used(open_storage: Opener, schema: str) -> None:
    storage = open_storage()
    with raw(storage) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    assert storage.upgrade() == CODE_VERSION
    assert storage.append(THREAD, [signal()]) == 1


def test_tables_of_other_names_in_the_schema_are_no_hindrance(open_storage: Opener, schema: str) -> None:
    storage = open_storage()
    with raw(storage) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        connection.execute(sql.SQL("CREATE TABLE {}.invoices (id int)").format(sql.Identifier(schema)))
        assert storage.upgrade() == CODE_VERSION
        assert connection.execute("SELECT count(*) FROM invoices").fetchone() == (0,)


@pytest.fixture
def limited_role_url(postgres_url: str, schema: str) -> Iterator[str]:
    """The URL of a role that may not create schemas, and owns one."""
    names = {
        "role": sql.Identifier(f"lowly_{schema}"),
        "schema": sql.Identifier(schema),
        "database": sql.Identifier(f"of_{schema}"),
    }
    url = plain_url(postgres_url)
    with psycopg.connect(url, autocommit=True) as connection:
        for text in ("CREATE ROLE {role} LOGIN", "CREATE DATABASE {database}"):
            connection.execute(sql.SQL(text).format(**names))
        for text in ("REVOKE ALL ON DATABASE {database} FROM PUBLIC", "GRANT CONNECT ON DATABASE {database} TO {role}"):
            connection.execute(sql.SQL(text).format(**names))
        own_url = url.replace("/postgres?", f"/of_{schema}?")
        with psycopg.connect(own_url, autocommit=True) as inside:
            inside.execute(sql.SQL("CREATE SCHEMA {schema} AUTHORIZATION {role}").format(**names))
        yield own_url.replace("postgres@", f"lowly_{schema}@", 1)
        connection.execute(sql.SQL("DROP DATABASE {database} WITH (FORCE)").format(**names))
        connection.execute(sql.SQL("DROP ROLE {role}").format(**names))


def test_a_role_that_may_not_create_schemas_can_use_one_of_its_own(limited_role_url: str, open_storage: Opener) -> None:
    # given such a role
    storage = open_storage(limited_role_url)
    with raw(storage) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("CREATE SCHEMA another")
    # when it makes its journal, then everything works
    assert storage.upgrade() == storage.upgrade() == CODE_VERSION
    work(storage)
    storage.delete_thread(THREAD)
    assert storage.read(THREAD) == []


def work(storage: PostgresStorage) -> None:
    """Call some of everything, and assert that it is right."""
    put(storage, signal(), started(), planned(), queued(), scheduled())
    store = PostgresDispatchStore(storage)
    (held,) = store.claim("default", "worker-1", lease=timedelta(minutes=1))
    assert store.heartbeat([held.ref])[0].unwrap().status == "claimed"
    assert store.settle([Settlement(held.ref, Completed({"ok": 1e300}))])[0].unwrap().status == "completed"
    assert storage.put_checkpoint(THREAD, 2, "{}")
    assert storage.cut() == all_entries(storage)[-1].position
    assert_views_agree_with_the_journal(storage)


@pytest.fixture(params=[16])
def older_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedPostgres]:
    """A server of an older major version, if the wheel brings one."""
    shipped = wheel.installed()
    if request.param not in shipped:
        pytest.skip(f"the wheel brings Postgres {', '.join(map(str, sorted(shipped)))}, not {request.param}")
    with tempfile.TemporaryDirectory(prefix="squid-older-", dir=SCRATCH) as directory:
        Path(directory).chmod(0o755)
        layout = Layout(Path(directory) / "postgres")
        account = account_for(layout.pgdata)
        layout.make_data_dir()
        lock_fd = try_lock(layout.server_lock)
        assert lock_fd is not None
        binaries = wheel.readable_by(account, shipped[request.param], layout.binaries)
        cluster.create(layout, binaries, account, lock_fd=lock_fd, deadline=Deadline(timedelta(seconds=60)))
        os.close(lock_fd)
        server = EmbeddedPostgres(layout.data_dir)
        server.ensure_running()
        try:
            yield server
        finally:
            server.stop()


def test_the_journal_works_on_an_older_postgres_too(older_server: EmbeddedPostgres, open_storage: Opener) -> None:
    storage = open_storage(older_server.url)
    assert storage.upgrade() == CODE_VERSION
    work(storage)
    with raw(storage) as connection:
        version = connection.info.server_version // 10000
        with pytest.raises(psycopg.errors.RestrictViolation):
            connection.execute("DELETE FROM journal_entries")
    assert version == older_server.status().major


# --- from every version that was released ---------------------------------------------------------------------------


def test_migrations_are_numbered_from_one_to_the_version_of_this_code() -> None:
    assert {migrations.number_of(name) for name in migrations.sources()} == set(range(1, CODE_VERSION + 1))


def test_a_migration_that_fails_leaves_the_schema_as_it_was(
    open_storage: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a journal of the version before, and a migration whose last statement fails
    storage = make_released(open_storage(), CODE_VERSION - 1)
    before = _objects(storage)
    failing = {**migrations.sources(), f"{CODE_VERSION:04}_z": "DROP TABLE {schema}.children; SELECT 1 / 0"}
    monkeypatch.setattr(migrations, "sources", lambda: failing)
    # when it is upgraded
    with pytest.raises(psycopg.errors.DivisionByZero), storage.engine.begin() as connection:
        migrate.build(connection, storage.schema)
    # then nothing of it was done
    assert (_objects(storage), storage.version()) == (before, CODE_VERSION - 1)
    # and it is upgraded when that works
    monkeypatch.undo()
    assert storage.upgrade() == CODE_VERSION
    assert drift(storage) == []


@pytest.mark.parametrize("version", EARLIER_VERSIONS)
@pytest.mark.parametrize("gone", ["TABLE attempts", "TABLE children, runs", "INDEX IF EXISTS children_key"])
def test_a_schema_whose_views_are_not_whole_is_upgraded_and_then_rebuilt(
    open_storage: Opener, version: int, gone: str
) -> None:
    # given a journal of that version of which a view is missing, or was made by code of another version
    storage = make_released(open_storage(), version)
    with raw(storage) as connection:
        connection.execute("DROP " + gone)
    # when it is upgraded
    assert storage.upgrade() == storage.check() == CODE_VERSION
    # then a rebuild is all that is left to do
    if "TABLE" in gone:
        rebuild_views(storage)
    assert drift(storage) == []


@pytest.mark.parametrize("version", [6, 7])
def test_code_that_connects_while_the_schema_is_upgraded_finds_what_it_looks_for(
    open_storage: Opener, version: int
) -> None:
    # given code of an earlier version that has read which version the schema is at
    storage = make_released(open_storage(), version)
    with raw(storage, autocommit=False) as upgrading, raw(storage) as connecting:
        connecting.execute("SET lock_timeout = '10s'")
        functions = connecting.execute("SELECT digest FROM squid_functions").fetchall()
        # when an upgrade is under way, and when it is done
        migrations.run(upgrading, storage.schema, after=version, upto=CODE_VERSION)
        assert connecting.execute("SELECT digest FROM squid_functions").fetchall() == functions
        upgrading.commit()
        # then it finds the functions of its time
        assert connecting.execute("SELECT digest FROM squid_functions").fetchall() == functions


@pytest.mark.parametrize("version", EARLIER_VERSIONS)
def test_a_claim_that_is_held_through_an_upgrade_from_any_version_is_settled_after_it(
    open_storage: Opener, version: int
) -> None:
    # given a journal as that version left it: a run that waits, one that is claimed, one that has ended
    storage = make_released(open_storage(), version)
    runs = ("run-1", "run-2", "run-3")
    with written_by_this_code(storage, version):
        for run_id in runs:
            put(storage, signal(run_id), started(run_id), planned(run=run_id), queued(run_id), scheduled(run_id))
        put(storage, fenced("run-3"), terminal("run-3"))
    with raw(storage) as connection:
        (claim,) = _claim_as_released(connection)
    before, cut = all_entries(storage), storage.cut()
    with pytest.raises(SchemaOutdated, match=f"at version {version}"):
        storage.check()
    # when it is upgraded
    assert storage.upgrade() == storage.check() == CODE_VERSION
    # then it is as a new one, and no fact or view has changed
    assert drift(storage) == []
    assert all_entries(storage) == before
    assert storage.cut() == cut == before[-1].position
    assert verify(storage) == []
    # and what was open goes on to its end
    store = PostgresDispatchStore(storage)
    (waiting,) = store.claim("default", "worker-2", limit=5)
    refs = [waiting.ref, ClaimRef("default", claim["run_id"], claim["runnable_key"], claim["claim_id"], "token")]
    for answer in store.settle([Settlement(ref, Completed({"ok": True})) for ref in refs]):
        assert answer.unwrap().status == "completed"
    for run_id in {ref.run_id for ref in refs}:
        put(storage, applied(run_id, result={"ok": True}), terminal(run_id))
    assert storage.rows("SELECT DISTINCT status FROM {schema}.runs") == [("completed",)]
    assert storage.cut() == all_entries(storage)[-1].position > cut
    assert verify(storage) == []


def _claim_as_released(connection: psycopg.Connection[Any]) -> list[Any]:
    """Claim one attempt by the function that every version has, with the same arguments."""
    row = connection.execute(
        "SELECT claim_attempts(%s, 'default', 'worker-1', '1 hour', %s::text[], %s::text[], NULL, NULL)",
        (uuid4(), ["claim-1"], [sha256(b"token").hexdigest()]),
    ).fetchone()
    assert row is not None
    claimed: list[Any] = row[0]["claimed"]
    return claimed
