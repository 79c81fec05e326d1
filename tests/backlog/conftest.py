"""A backlog on every storage that the contract names."""

from collections.abc import Iterator

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.backlog.contract import BacklogFixture


@pytest.fixture(params=["memory", "postgres"])
def fixture(request: pytest.FixtureRequest, clock: VirtualClock) -> Iterator[BacklogFixture]:
    """An empty backlog, in every storage; after the test, cards and facts must agree."""
    storage: Storage = MemoryStorage(clock)
    if request.param == "postgres":
        storage = request.getfixturevalue("shared_postgres")
    made = BacklogFixture(storage, clock)
    yield made
    made.check()


@pytest.fixture(scope="module")
def module_postgres(postgres_url: str, schema_names: Iterator[str]) -> Iterator[PostgresStorage]:
    """One schema for a module: to create one takes longer than a test."""
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
def postgres_fixture(shared_postgres: PostgresStorage, clock: VirtualClock) -> BacklogFixture:
    """An empty backlog on Postgres."""
    return BacklogFixture(shared_postgres, clock)
