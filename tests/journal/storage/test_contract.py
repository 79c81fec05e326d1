"""Our adapters keep the storage contract; an adapter that breaks it fails the suite of the wheel."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.testing.storage_contract import StorageContract
from tests.journal.access import assert_views_agree_with_the_journal

pytest_plugins = ("pytester",)


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self, clock: VirtualClock) -> Storage:
        """A journal in memory."""
        return MemoryStorage(clock)


class TestMemoryStorageThreadByThread(StorageContract):
    @pytest.fixture
    def storage(self, clock: VirtualClock) -> Storage:
        """A journal in memory whose commits do not span threads."""
        return MemoryStorage(clock, atomic_across_threads=False)


class TestPostgresStorage(StorageContract):
    @pytest.fixture
    def storage(self, postgres_virtual: PostgresStorage) -> Storage:
        """A journal on Postgres."""
        return postgres_virtual

    @pytest.fixture
    def check_storage(self, postgres_virtual: PostgresStorage) -> Callable[[Storage], None]:
        """Compare the live views with a fold of the journal."""
        return lambda _: assert_views_agree_with_the_journal(postgres_virtual)


def test_the_database_tells_its_own_time_in_utc_when_no_clock_is_bound(postgres: PostgresStorage) -> None:
    first, second = postgres.now(), postgres.now()
    assert first.tzinfo is UTC
    assert first < second
    assert abs(second - datetime.now(UTC)) < timedelta(minutes=1)
