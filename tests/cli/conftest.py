"""A journal of its own for each test of the `squid` command, and the command on it."""

from collections.abc import Iterator

import pytest

from squid_dagster.journal import PostgresStorage
from tests.cli.command_line import Typed


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
