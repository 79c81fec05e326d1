"""A journal and its queries, in every combination."""

import pytest

from squid_dagster.journal import FoldQueries, MemoryStorage, PostgresQueries
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.journal.queries.fixture import Room


@pytest.fixture(params=["fold on memory", "fold on memory, thread by thread", "fold on postgres", "postgres"])
def room(request: pytest.FixtureRequest, clock: VirtualClock) -> Room:
    """An empty journal and its queries, in every combination."""
    if "memory" in request.param:
        memory = MemoryStorage(clock, atomic_across_threads="thread" not in request.param)
        return Room(memory, FoldQueries(memory), clock)
    postgres: PostgresStorage = request.getfixturevalue("postgres_virtual")
    queries = PostgresQueries(postgres) if request.param == "postgres" else FoldQueries(postgres)
    return Room(postgres, queries, clock)
