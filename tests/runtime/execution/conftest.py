"""A journal in real time for tests of single attempts."""

import pytest

from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage


@pytest.fixture(params=["memory", "postgres"])
def journal(request: pytest.FixtureRequest) -> Storage:
    """A journal by the real time, in both adapters."""
    storage = MemoryStorage() if request.param == "memory" else request.getfixturevalue("postgres")
    assert isinstance(storage, MemoryStorage | PostgresStorage)
    return storage
