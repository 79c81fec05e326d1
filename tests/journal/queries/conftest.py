"""A journal and its queries, in every combination."""

import pytest

from squid_dagster.journal import FoldQueries, MemoryStorage, PostgresQueries
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.journal.queries.fixture import QueriesFixture


@pytest.fixture(params=["fold on memory", "fold on memory, thread by thread", "fold on postgres", "postgres"])
def fixture(request: pytest.FixtureRequest, clock: VirtualClock) -> QueriesFixture:
    """An empty journal and its queries, in every combination."""
    if "memory" in request.param:
        memory = MemoryStorage(clock, atomic_across_threads="thread" not in request.param)
        return QueriesFixture(memory, FoldQueries(memory), clock)
    postgres: PostgresStorage = request.getfixturevalue("postgres_virtual")
    queries = PostgresQueries(postgres) if request.param == "postgres" else FoldQueries(postgres)
    return QueriesFixture(postgres, queries, clock)
