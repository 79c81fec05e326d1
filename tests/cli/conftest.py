"""A journal of its own for each test of the `squid` command, and the command on it."""

from collections.abc import Iterator

import psycopg
import pytest

from squid_dagster.journal import PostgresStorage
from tests.cli.command_line import Typed
from tests.journal.access import plain_url


@pytest.fixture(scope="session")
def postgres_url(postgres_url: str) -> str:
    """The same server, told not to wait for the disk: many schemas are made here, none outlives the tests."""
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    return postgres_url


@pytest.fixture
def typed(postgres: PostgresStorage) -> Typed:
    """The command on a journal that nobody else uses."""
    return Typed(postgres)


@pytest.fixture(scope="module")
def untouched(postgres_url: str, schema_names: Iterator[str]) -> Iterator[Typed]:
    """The command on an empty journal, for tests of what is refused: in the end nothing may be in it."""
    storage = PostgresStorage(postgres_url, next(schema_names))
    storage.upgrade()
    typed = Typed(storage)
    yield typed
    assert typed.facts() == 0
    storage.close()
