"""Every storage by the clock of the fixture `squid_clock`, so that one suite shows the kit at work on them all."""

from collections.abc import Iterator

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.facts import T0


@pytest.fixture
def clock(squid_clock: VirtualClock) -> VirtualClock:
    """The one clock of a test, whatever a fixture calls it."""
    assert squid_clock.now() == T0
    return squid_clock


@pytest.fixture(params=["memory", "memory, thread by thread", "postgres"])
def storage(request: pytest.FixtureRequest, clock: VirtualClock) -> Iterator[Storage]:
    """An empty journal by the virtual clock, in every adapter."""
    match request.param:
        case "memory":
            yield MemoryStorage(clock)
        case "memory, thread by thread":
            yield MemoryStorage(clock, atomic_across_threads=False)
        case _:
            storage = request.getfixturevalue("postgres_virtual")
            assert isinstance(storage, PostgresStorage)
            yield storage
