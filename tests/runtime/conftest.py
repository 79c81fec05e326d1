"""A `Squid` on every storage, so that one suite of behaviour runs on them all: memory, thread by thread, Postgres."""

from collections.abc import Iterator

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.verification import verify
from tests.runtime.runs import MakeSquid, Workflows, unsound


@pytest.fixture(params=["memory", "memory, thread by thread", "postgres"])
def storage(request: pytest.FixtureRequest, clock: VirtualClock) -> Storage:
    """An empty journal by the virtual clock, in every adapter."""
    match request.param:
        case "memory":
            return MemoryStorage(clock)
        case "memory, thread by thread":
            return MemoryStorage(clock, atomic_across_threads=False)
    postgres = request.getfixturevalue("postgres_virtual")
    assert isinstance(postgres, PostgresStorage)
    return postgres


@pytest.fixture
def spoilt() -> None:
    """A mark for tests that corrupt their journal: its invariants are not checked afterwards."""


@pytest.fixture
def make_squid(storage: Storage, request: pytest.FixtureRequest) -> Iterator[MakeSquid]:
    """A function that creates a `Squid` of workflows on the journal under test; a second one sees the same journal.

    After each test the journal is sound, and on Postgres its views are what the fold makes of its facts.
    """
    made: list[Squid] = []

    def make(workflows: Workflows = (), **options: object) -> Squid:
        # Without jitter unless a test wants it, so that pauses are what the policy says.
        made.append(Squid(storage, workflows, **{"random_unit": lambda: 0.0, **options}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for squid in made:
        squid.runtime.notifier.close()
    if "spoilt" not in request.fixturenames:
        assert unsound(storage) == []
    if isinstance(storage, PostgresStorage):
        assert verify(storage) == [], "the live views are what the fold makes of the facts"
