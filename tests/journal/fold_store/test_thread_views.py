"""Cached folds of threads: read on from their last entry, and dropped when that was interrupted."""

import pytest

from squid_dagster.journal.fold_store.fold_cache import ThreadFolds
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol import Entry
from tests.facts import signal
from tests.journal.access import THREAD


class CountingView:
    """A fold that records its entries, and is interrupted once."""

    interrupt_at = 0

    def __init__(self) -> None:
        """Create an empty view."""
        self.entries: list[int] = []

    def add(self, entry: Entry) -> None:
        """Record an entry."""
        if entry.seq == CountingView.interrupt_at:
            CountingView.interrupt_at = 0
            raise KeyboardInterrupt
        self.entries.append(entry.seq)


def test_a_view_that_was_interrupted_halfway_is_read_anew() -> None:
    storage = MemoryStorage()
    views = ThreadFolds(storage, CountingView, most=10)
    storage.append(THREAD, [signal(), signal(), signal()])
    assert views.read(THREAD)[0] == 3
    storage.append(THREAD, [signal(), signal(), signal()])
    CountingView.interrupt_at = 5
    with pytest.raises(KeyboardInterrupt):
        views.read(THREAD)
    revision, view = views.read(THREAD)
    assert (revision, view.entries) == (6, [1, 2, 3, 4, 5, 6])
