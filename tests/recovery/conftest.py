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
from tests.recovery.scenario import Scene

CASE = "case"
ALL = (w.line(), w.diamond(), w.mended(), w.retried(), w.deadly(), w.deadly_mended(), w.decided_first(), *w.family())

MakeScene = Callable[..., Scene]


@pytest.fixture(params=["memory", "memory, thread by thread", "postgres"])
def storage(request: pytest.FixtureRequest, clock: VirtualClock) -> Storage:
    """An empty journal by the virtual clock."""
    match request.param:
        case "memory":
            return MemoryStorage(clock)
        case "memory, thread by thread":
            return MemoryStorage(clock, atomic_across_threads=False)
    found = request.getfixturevalue("postgres_virtual")
    assert isinstance(found, PostgresStorage)
    return found


@pytest.fixture
def make_scene(clock: VirtualClock) -> MakeScene:
    """Set a stage on a journal; each has a `Squid` of its own, as each process has."""

    def make(storage: Storage, workflows: tuple[Workflow, ...] = ALL) -> Scene:
        squid = Squid(storage, workflows, queue=CASE, resources={"clock": clock}, random_unit=lambda: 0.0)
        return Scene(squid, clock, CASE)

    return make


@pytest.fixture
def scene(storage: Storage, make_scene: MakeScene) -> Scene:
    """A stage on the journal under test."""
    return make_scene(storage)
