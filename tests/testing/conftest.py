"""Every storage by the clock of the fixture `squid_clock`, so that one suite shows the kit at work on them all."""

from collections.abc import Iterator

import psycopg
import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.facts import T0
from tests.journal.access import plain_url


@pytest.fixture(scope="session")
def postgres_url(postgres_url: str) -> str:
    """The same server, told not to wait for the disk: nothing here outlives the tests."""
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    return postgres_url


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
            found = request.getfixturevalue("postgres_virtual")
            assert isinstance(found, PostgresStorage)
            yield found
