"""A board on every storage that the contract names."""

from collections.abc import Iterator

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.backlog.contract import Board


@pytest.fixture(params=["memory", "postgres"])
def board(request: pytest.FixtureRequest, clock: VirtualClock) -> Iterator[Board]:
    """An empty backlog, in every storage; whatever a test has done to it, cards and facts agree in the end."""
    storage: Storage = MemoryStorage(clock)
    if request.param == "postgres":
        storage = request.getfixturevalue("shared_postgres")
    made = Board(storage, clock)
    yield made
    made.check()


@pytest.fixture(scope="module")
def module_postgres(postgres_url: str, schema_names: Iterator[str]) -> Iterator[PostgresStorage]:
    """One schema for a module: making one takes longer than a test."""
    storage = PostgresStorage(postgres_url, next(schema_names))
    storage.upgrade()
    yield storage
    storage.close()


@pytest.fixture
def shared_postgres(module_postgres: PostgresStorage, clock: VirtualClock) -> PostgresStorage:
    """That schema without a card, by the test's own clock."""
    module_postgres.clock = clock
    module_postgres.delete_thread("squid:backlog:cards")
    return module_postgres


@pytest.fixture
def postgres_board(shared_postgres: PostgresStorage, clock: VirtualClock) -> Board:
    """An empty backlog on Postgres."""
    return Board(shared_postgres, clock)
