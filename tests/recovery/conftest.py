"""Journals for recovery: in every adapter, by a virtual clock, with all workflows of the scenarios known."""

from collections.abc import Callable

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.workflow import Workflow
from tests.recovery import workflows as w
from tests.recovery.scenario import Client

CASE = "case"
ALL = (w.line(), w.diamond(), w.mended(), w.retried(), w.deadly(), w.deadly_mended(), w.decided_first(), *w.family())

MakeClient = Callable[..., Client]


@pytest.fixture(params=["memory", "memory, thread by thread", "postgres"])
def storage(request: pytest.FixtureRequest, clock: VirtualClock) -> Storage:
    """An empty journal by the virtual clock."""
    match request.param:
        case "memory":
            return MemoryStorage(clock)
        case "memory, thread by thread":
            return MemoryStorage(clock, atomic_across_threads=False)
    postgres = request.getfixturevalue("postgres_virtual")
    assert isinstance(postgres, PostgresStorage)
    return postgres


@pytest.fixture
def make_client(clock: VirtualClock) -> MakeClient:
    """A function that creates a client of a journal; each client has a `Squid` of its own, as each process has."""

    def make(storage: Storage, workflows: tuple[Workflow, ...] = ALL) -> Client:
        squid = Squid(storage, workflows, queue=CASE, resources={"clock": clock}, random_unit=lambda: 0.0)
        return Client(squid, clock, CASE)

    return make


@pytest.fixture
def client(storage: Storage, make_client: MakeClient) -> Client:
    """A client of the journal under test."""
    return make_client(storage)
