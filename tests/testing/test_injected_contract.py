"""A storage with injected faults keeps the whole contract while none is planned: the suite of all storages says so."""

import inspect

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.testing import InjectedStorage
from tests.journal.storage import (
    test_checkpoints,
    test_commits,
    test_cuts,
    test_deletion,
    test_fidelity,
    test_threads,
)

SUITE = (
    test_checkpoints,
    test_commits,
    test_cuts,
    test_deletion,
    test_fidelity,
    test_threads,
)
# Every test of the suite that is about any storage, and not about one of them.
CONTRACT = {
    name: test
    for module in SUITE
    for name, test in vars(module).items()
    if name.startswith("test_") and "storage" in inspect.signature(test).parameters
}
globals().update(CONTRACT)


@pytest.fixture(params=["memory", "memory, split", "memory, thread by thread", "postgres", "postgres, split"])
def storage(request: pytest.FixtureRequest, clock: VirtualClock) -> Storage:
    """An empty journal behind a wrapper that lets nothing go wrong."""
    name, _, how = request.param.partition(", ")
    inner: Storage = MemoryStorage(clock, atomic_across_threads=how != "thread by thread")
    if name == "postgres":
        inner = request.getfixturevalue("postgres_virtual")
    return InjectedStorage(inner, atomic_across_threads=False if how == "split" else None)


def test_the_suite_is_there() -> None:
    assert len(CONTRACT) > 25
    assert {module.__name__ for module in SUITE} == {test.__module__ for test in CONTRACT.values()}
