"""A storage with injected faults keeps the whole storage contract while none is planned."""

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.testing import InjectedStorage
from squid_dagster.testing.storage_contract import StorageContract


class TestInjectedStorage(StorageContract):
    @pytest.fixture(params=["memory", "memory, split", "memory, thread by thread", "postgres", "postgres, split"])
    def storage(self, request: pytest.FixtureRequest, clock: VirtualClock) -> Storage:
        """An empty journal behind a wrapper that lets nothing go wrong."""
        name, _, how = request.param.partition(", ")
        inner: Storage = MemoryStorage(clock, atomic_across_threads=how != "thread by thread")
        if name == "postgres":
            inner = request.getfixturevalue("postgres_virtual")
        return InjectedStorage(inner, atomic_across_threads=False if how == "split" else None)
