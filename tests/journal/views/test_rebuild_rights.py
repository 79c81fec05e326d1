"""Rebuilt views and cards keep their owners and their grants."""

from collections.abc import Iterator

import pytest
from psycopg import sql

from squid_dagster.backlog import Backlog
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.postgres.schema.names import VIEWS
from squid_dagster.journal.postgres.views.rebuild import rebuild_views
from squid_dagster.protocol.errors import StorageUnavailable
from tests.journal.access import raw

TABLES = (*VIEWS, "backlog")


@pytest.fixture
def roles(postgres: PostgresStorage) -> Iterator[tuple[str, str]]:
    """One role that may read and grant that, and one that owns everything."""
    reader, owner = f"reader_{postgres.schema}", f"owner_{postgres.schema}"
    with raw(postgres) as connection:
        for role in (reader, owner):
            connection.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
            rights = sql.SQL("GRANT USAGE, CREATE ON SCHEMA {} TO {}")
            connection.execute(rights.format(sql.Identifier(postgres.schema), sql.Identifier(role)))
        for table in TABLES:
            name = sql.Identifier(table)
            connection.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(name, sql.Identifier(owner)))
            grant = sql.SQL("GRANT SELECT ON {} TO {} WITH GRANT OPTION")
            connection.execute(grant.format(name, sql.Identifier(reader)))
            connection.execute(sql.SQL("GRANT REFERENCES ON {} TO PUBLIC").format(name))
        yield reader, owner
        for role in (reader, owner):
            connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def rights(storage: PostgresStorage) -> dict[str, tuple[str, set[tuple[str, str, bool]]]]:
    """Return each table's owner, and which rights others have on it."""
    text = """SELECT relname, pg_get_userbyid(relowner), a.privilege_type, a.grantee::regrole::text, a.is_grantable
        FROM pg_class, aclexplode(relacl) a WHERE relnamespace = %s::regnamespace AND relname = ANY (%s)"""
    rights_: dict[str, tuple[str, set[tuple[str, str, bool]]]] = {}
    with raw(storage) as connection:
        for table, owner, *right in connection.execute(text.encode(), (storage.schema, list(TABLES))):
            rights_.setdefault(table, (owner, set()))[1].add(tuple(right))
    return rights_


def test_a_rebuild_keeps_owners_and_rights(postgres: PostgresStorage, roles: tuple[str, str]) -> None:
    reader, owner = roles
    before = rights(postgres)
    assert set(before) == set(TABLES)
    assert {one for one, _ in before.values()} == {owner}
    assert all(("SELECT", reader, True) in granted for _, granted in before.values())
    rebuild_views(postgres)
    Backlog(postgres).rebuild()
    assert rights(postgres) == before


def test_a_user_without_rights_is_told_so(postgres: PostgresStorage, roles: tuple[str, str]) -> None:
    reader, _ = roles
    with postgres.connection() as connection:
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(reader)))
    try:
        with pytest.raises(StorageUnavailable, match=r"does not let this user use schema .*permission denied"):
            Backlog(postgres).create("A", "a")
    finally:
        postgres.close()
