"""The test suite of the storage contract: an adapter keeps the contract when a subclass of `StorageContract` passes.

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def storage(self, clock: VirtualClock) -> Iterator[Storage]:
            storage = MyStorage(clock)
            yield storage
            storage.close()

Needs pytest, which the rest of the library does without, its pytest plugin apart. The plugin registers this package
for assertion rewriting, so that a failure shows the values that were compared.
"""

from collections.abc import Callable

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.testing.example_facts import T0
from squid_dagster.testing.storage_contract.checkpoints import CheckpointContract
from squid_dagster.testing.storage_contract.commits import CommitContract
from squid_dagster.testing.storage_contract.cuts import CutContract
from squid_dagster.testing.storage_contract.deletion import DeletionContract
from squid_dagster.testing.storage_contract.invalid_arguments import InvalidArgumentContract
from squid_dagster.testing.storage_contract.threads import ThreadContract
from squid_dagster.testing.storage_contract.values import ValueContract

__all__ = ["StorageContract"]


class StorageContract(
    ThreadContract,
    CommitContract,
    CutContract,
    CheckpointContract,
    DeletionContract,
    ValueContract,
    InvalidArgumentContract,
):
    """Every promise of `Storage`, as tests. Subclass it in a class named `Test...` with a fixture `storage`."""

    @pytest.fixture
    def clock(self) -> VirtualClock | None:
        """The clock that `storage` is to go by. Return None from yours if the storage cannot go by one."""
        return VirtualClock(T0)

    @pytest.fixture
    def storage(self) -> Storage:
        """A new, empty storage for each test. Override it."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `storage` that returns a new, empty storage")

    @pytest.fixture
    def check_storage(self) -> Callable[[Storage], None]:
        """What else to check after a conflict and after a deletion, such as tables derived from entries."""
        return lambda storage: None
