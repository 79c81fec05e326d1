"""A journal of its own for each test of the `squid` command, and the command on it."""

from collections.abc import Iterator

import pytest

from squid_dagster.journal import PostgresStorage
from tests.cli.command_line import CommandLine


@pytest.fixture
def cli(postgres: PostgresStorage) -> CommandLine:
    """The command on a journal of the test's own."""
    return CommandLine(postgres)


@pytest.fixture(scope="module")
def empty_cli(postgres_url: str, schema_names: Iterator[str]) -> Iterator[CommandLine]:
    """The command on an empty journal, for tests of what is refused: in the end nothing may be in it."""
    storage = PostgresStorage(postgres_url, next(schema_names))
    storage.upgrade()
    cli = CommandLine(storage)
    yield cli
    assert cli.facts() == 0
    storage.close()
