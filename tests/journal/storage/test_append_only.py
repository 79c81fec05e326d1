"""The journal is append-only by force: the database itself refuses every other change, to every role."""

from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import run_thread
from tests.facts import RUN, cataloged, queued, signal, started
from tests.journal.access import all_entries, put, raw

CHANGES: dict[str, LiteralString] = {
    "update": "UPDATE journal_entries SET type = 'run_terminal'",
    "update of nothing": "UPDATE journal_entries SET seq = seq WHERE false",
    "delete": "DELETE FROM journal_entries",
    "delete of nothing": "DELETE FROM journal_entries WHERE false",
    "truncate": "TRUNCATE journal_entries",
    "truncate cascade": "TRUNCATE journal_threads, journal_entries RESTART IDENTITY CASCADE",
    "delete in a CTE": "WITH gone AS (DELETE FROM journal_entries RETURNING position) SELECT count(*) FROM gone",
    "update in a CTE": "WITH moved AS (UPDATE journal_entries SET seq = 9 RETURNING seq) SELECT count(*) FROM moved",
    "upsert": "INSERT INTO journal_entries SELECT * FROM journal_entries ON CONFLICT (position) DO UPDATE SET seq = 9",
    "merge": "MERGE INTO journal_entries e USING (SELECT 1) s ON true WHEN MATCHED THEN DELETE",
    "update from": "UPDATE journal_entries e SET data = '{}' FROM journal_threads t WHERE t.id = e.thread",
    "delete using": "DELETE FROM journal_entries e USING journal_threads t WHERE t.id = e.thread",
    "in a block": "DO $$ BEGIN DELETE FROM journal_entries; END $$",
}


@pytest.fixture
def journal(postgres: PostgresStorage) -> PostgresStorage:
    """A journal with some entries."""
    put(postgres, signal(), started(), queued(), cataloged())
    return postgres


@pytest.fixture
def role(journal: PostgresStorage) -> Iterator[str]:
    """A plain role that was granted everything that can be granted."""
    name = f"plain_{journal.schema}"
    with raw(journal) as connection:
        names = {"role": sql.Identifier(name), "schema": sql.Identifier(journal.schema)}
        for text in (
            "CREATE ROLE {role} LOGIN",
            "GRANT ALL ON SCHEMA {schema} TO {role}",
            "GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}",
            "GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
        ):
            connection.execute(sql.SQL(text).format(**names))
        yield name
        connection.execute(sql.SQL("DROP OWNED BY {role}").format(**names))
        connection.execute(sql.SQL("DROP ROLE {role}").format(**names))


def refuse_everything(connection: psycopg.Connection[Any]) -> None:
    """Try every change, and meet the same refusal every time."""
    for name, text in CHANGES.items():
        with pytest.raises(psycopg.errors.RestrictViolation, match="append-only") as refused:
            connection.execute(text)
        assert "journal_entries" in str(refused.value), name
        assert refused.value.diag.message_hint, name


def test_a_superuser_who_owns_the_table_can_neither_update_nor_delete_nor_truncate(journal: PostgresStorage) -> None:
    before = all_entries(journal)
    with raw(journal) as connection:
        refuse_everything(connection)
    assert all_entries(journal) == before


def test_a_session_that_plays_a_replica_cannot_either(journal: PostgresStorage) -> None:
    before = all_entries(journal)
    with raw(journal) as connection:
        connection.execute("SET session_replication_role = replica")
        refuse_everything(connection)
    assert all_entries(journal) == before


def test_a_plain_role_that_was_granted_everything_cannot_either(journal: PostgresStorage, role: str) -> None:
    before = all_entries(journal)
    with raw(journal) as connection:
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        assert connection.execute("SELECT count(*) FROM journal_entries").fetchone() == (4,)
        refuse_everything(connection)
        # nor lift the guard
        for text in (
            "ALTER TABLE journal_entries DISABLE TRIGGER ALL",
            "ALTER TABLE journal_entries DISABLE TRIGGER journal_entries_append_only",
            "DROP TRIGGER journal_entries_append_only ON journal_entries",
            "DROP TABLE journal_entries",
            "SET session_replication_role = replica",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(text)
    assert all_entries(journal) == before


def test_a_plain_role_that_owns_the_table_cannot_either(journal: PostgresStorage, role: str) -> None:
    before = all_entries(journal)
    with raw(journal) as connection:
        owner = sql.Identifier(role)
        connection.execute(sql.SQL("ALTER TABLE journal_entries OWNER TO {}").format(owner))
        connection.execute(sql.SQL("SET ROLE {}").format(owner))
        refuse_everything(connection)
        connection.execute("RESET ROLE")
        connection.execute("ALTER TABLE journal_entries OWNER TO CURRENT_USER")
    assert all_entries(journal) == before


def test_a_refused_change_takes_the_rest_of_its_transaction_with_it(journal: PostgresStorage) -> None:
    with raw(journal, autocommit=False) as connection:
        connection.execute("INSERT INTO queues VALUES ('default', true)")
        with pytest.raises(psycopg.errors.RestrictViolation):
            connection.execute("DELETE FROM journal_entries")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM queues").fetchone() == (0,)


def test_the_guard_does_not_stand_in_the_way_of_appends(journal: PostgresStorage) -> None:
    with raw(journal) as connection, pytest.raises(psycopg.errors.RestrictViolation):
        connection.execute("DELETE FROM journal_entries")
    assert journal.append(run_thread(RUN), [signal()], expected_rev=2) == 3


def test_a_sequence_number_cannot_be_used_twice(journal: PostgresStorage) -> None:
    again = """INSERT INTO journal_entries
        SELECT position + 100, thread, seq, type, run_id, occurred_at, data, digest FROM journal_entries"""
    with raw(journal) as connection, pytest.raises(psycopg.errors.UniqueViolation, match="journal_entries_thread"):
        connection.execute(again)
    assert len(all_entries(journal)) == 4
