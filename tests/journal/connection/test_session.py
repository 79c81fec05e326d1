"""A role with hostile defaults: nothing that the library's SQL relies on is taken from them."""

import io
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine

from squid_dagster.api import Squid
from squid_dagster.backlog import Backlog
from squid_dagster.journal import PostgresStorage, rebuild_views, verify
from squid_dagster.journal.postgres.connection.pool import make_engine
from squid_dagster.journal.postgres.connection.session_settings import startup_options
from squid_dagster.journal.postgres.schema.drift import drift
from squid_dagster.journal.transfer.transfer import export_journal, import_journal
from squid_dagster.protocol.errors import StorageRefused
from squid_dagster.workflow import StepContext, Workflow
from tests.journal.access import AWKWARD, all_entries, plain_url, raw
from tests.servers.strict_pooler import StrictPooler

HOSTILE = {
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "default_transaction_deferrable": "on",
    "default_transaction_isolation": "serializable",
    "extra_float_digits": "-15",
    "search_path": "",
    "standard_conforming_strings": "off",
}
TIMEOUTS = {"statement_timeout": "1ms", "lock_timeout": "1ms", "idle_in_transaction_session_timeout": "1ms"}


@pytest.fixture
def role(postgres_url: str, schema: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A role with these defaults that may create a schema of its own."""
    name = f"hostile_{schema}"
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection:
        identifier = sql.Identifier(name)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(identifier))
        connection.execute(sql.SQL("GRANT CREATE ON DATABASE postgres TO {}").format(identifier))
        for setting, value in {**HOSTILE, **TIMEOUTS}.items():
            connection.execute(
                sql.SQL("ALTER ROLE {} SET {} = {}").format(identifier, sql.Identifier(setting), sql.Literal(value))
            )
        yield name
        connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(identifier))
        connection.execute(sql.SQL("DROP ROLE {}").format(identifier))


def calm(postgres_url: str, role: str) -> None:
    """Reset the timeouts that bound sessions which this test does not open."""
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection:
        for timeout in TIMEOUTS:
            connection.execute(sql.SQL("ALTER ROLE {} RESET {}").format(sql.Identifier(role), sql.Identifier(timeout)))


def url_of(postgres_url: str, role: str) -> str:
    """Return the server's URL for a role."""
    return postgres_url.replace("postgres@", f"{role}@", 1)


def note_isolation(storage: PostgresStorage) -> None:
    """Install a trigger that records the isolation level of every append."""
    install = """CREATE TABLE {schema}.seen (level text);
        CREATE FUNCTION {schema}.note_level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO {schema}.seen VALUES (current_setting('transaction_isolation')); RETURN NULL; END $$;
        CREATE TRIGGER note_level AFTER INSERT ON {schema}.journal_entries
            FOR EACH STATEMENT EXECUTE FUNCTION {schema}.note_level()"""
    with storage.connection() as connection:
        connection.execute(sql.SQL(install).format(schema=sql.Identifier(storage.schema)))


def everything(storage: PostgresStorage, other: PostgresStorage, *, transactional: bool = True) -> None:
    """Call all that a journal offers; `other` is an empty one.

    The timeouts of a role are those of its transactional steps.
    """
    assert storage.upgrade() == storage.check()
    assert drift(storage) == []
    note_isolation(storage)
    workflow, calls = Workflow("wide"), list[str]()

    @workflow.step
    def first(ctx: StepContext) -> Any:
        calls.append(ctx.step)
        return AWKWARD

    def second(ctx: StepContext, first: Any) -> Any:
        calls.append(ctx.step)
        return first

    workflow.step(after=first, transactional=transactional)(second)
    squid = Squid(storage, workflow)
    # runs: starts of all kinds, a worker, commands, recovery
    run_id = squid.start("wide", idempotency_key="schlüssel").run_id
    assert squid.start("wide", idempotency_key="schlüssel").repeated
    others = [receipt.run_id for receipt in squid.start_many("wide", [None] * 3)]
    squid.cancel(others[0], actor="für 🦑")
    report = squid.worker(until_idle=True)
    assert (report.completed, report.refused, report.failed) == (6, 0, 0)
    assert [squid.inspect_run(one).status for one in (run_id, *others)] == [
        "completed",
        "cancelled",
        *["completed"] * 2,
    ]
    assert squid.recover().failed == {}
    # looking
    assert squid.inspect_run(run_id, include_history=True).history
    assert squid.explain_run(run_id)
    assert squid.inspect_run_timeline(run_id)
    assert len(squid.list_runs().runs) == 4
    squid.close()
    # cards
    backlog = Backlog(storage)
    backlog.create("karte", "für 🦑")
    card = backlog.claim("worker")
    assert card is not None
    assert card.id == "karte"
    backlog.complete("karte")
    assert backlog.reclaim() == []
    backlog.rebuild()
    assert backlog.differences() == []
    assert backlog.stats().counts["done"] == 1
    assert storage.rows("SELECT DISTINCT level FROM {schema}.seen") == [("read committed",)]
    # rebuild, verify, transfer
    before = all_entries(storage)
    rebuild_views(storage)
    assert verify(storage) == []
    stream = io.BytesIO()
    exported = export_journal(storage, stream.write)
    other.upgrade()
    stream.seek(0)
    assert import_journal(other, stream).digest == exported.digest
    assert [entry.fact for entry in all_entries(other)] == [entry.fact for entry in before]
    storage.delete_thread(f"squid:run:{run_id}")
    assert verify(storage) == []


def test_a_journal_works_whatever_the_defaults_of_its_role_are(postgres_url: str, role: str, schema: str) -> None:
    url = url_of(postgres_url, role)
    storage, other = PostgresStorage(url, schema), PostgresStorage(url, f"{schema}_other")
    everything(storage, other, transactional=False)
    storage.close()
    other.close()


def test_an_engine_that_was_handed_over_has_its_own_settings_again_afterwards(
    postgres_url: str, role: str, schema: str
) -> None:
    calm(postgres_url, role)
    engine = create_engine(url_of(postgres_url, role))
    look = "SELECT name, setting FROM pg_catalog.pg_settings WHERE name = ANY (%s)"

    def settings() -> dict[str, str]:
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            return dict(driver.execute(look, (list(HOSTILE),)).fetchall())

    before = settings()
    assert before["client_encoding"] == "LATIN1"
    storage, other = PostgresStorage(engine, schema), PostgresStorage(engine, f"{schema}_other")
    everything(storage, other)
    assert settings() == before
    storage.close()
    other.close()


def test_behind_a_pooler_that_takes_no_options_a_journal_works_too(postgres_url: str, role: str, schema: str) -> None:
    calm(postgres_url, role)
    pooler = StrictPooler(url_of(postgres_url, role))
    storage, other = PostgresStorage(pooler.url, schema), PostgresStorage(pooler.url, f"{schema}_other")
    everything(storage, other)
    assert pooler.refused == 2, "once by each engine: then it knows"
    storage.close()
    other.close()
    pooler.close()


def test_steps_have_the_defaults_of_their_role(postgres: PostgresStorage) -> None:
    shown: dict[str, str] = {}
    workflow = Workflow("own")

    @workflow.step(transactional=True)
    def step(connection: psycopg.Connection[Any]) -> None:
        for name in ("search_path", "transaction_isolation", "lock_timeout"):
            (shown[name],) = connection.execute(f"SHOW {name}").fetchone() or ("",)

    squid = Squid(postgres, workflow)
    squid.start("own")
    squid.worker(until_idle=True)
    assert shown == {"search_path": '"$user", public', "transaction_isolation": "read committed", "lock_timeout": "0"}


def test_options_that_were_given_are_kept_and_ours_go_before_them(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(url: str) -> tuple[str, ...]:
        engine = make_engine(url)
        with engine.connect() as connection:
            settings = connection.exec_driver_sql(
                "SELECT current_setting('work_mem'), current_setting('statement_timeout')"
            ).one()
        engine.dispose()
        return tuple(settings)

    given = "-c work_mem=5MB -c statement_timeout=7s"
    assert startup_options(given).startswith(given)
    assert shown(f"{postgres_url}&options={given.replace(' ', '%20')}") == ("5MB", "0")
    monkeypatch.setenv("PGOPTIONS", given)
    assert shown(postgres_url) == ("5MB", "0")


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_text_is_refused(
    postgres_url: str, schema: str, postgres: PostgresStorage, encoding: str
) -> None:
    name = f"{schema}_{encoding.lower()}"
    with raw(postgres) as connection:
        create = sql.SQL("CREATE DATABASE {} ENCODING {} TEMPLATE template0 LOCALE 'C'")
        connection.execute(create.format(sql.Identifier(name), encoding))
    storage = PostgresStorage(postgres_url.replace("/postgres?", f"/{name}?", 1), schema)
    for call in (storage.upgrade, storage.check):
        with pytest.raises(StorageRefused, match=f"{encoding}.*ENCODING 'UTF8' TEMPLATE template0"):
            call()
    storage.close()
    with raw(postgres) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
