"""The part of the storage contract about deletion: a thread goes with what derives from it, and nothing else."""

from collections.abc import Callable

from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.threads import CATALOG_THREAD
from squid_dagster.testing.example_facts import (
    OTHER,
    OTHER_THREAD,
    QUEUE_THREAD,
    RUN,
    THREAD,
    all_entries,
    cataloged,
    child,
    planned,
    put,
    queued,
    scheduled,
    signal,
    started,
)


class DeletionContract:
    """Tests of `delete_thread`."""

    def test_deleting_a_thread_leaves_the_others_alone_and_starts_it_again_at_one(
        self, storage: Storage, check_storage: Callable[[Storage], None]
    ) -> None:
        # given two runs on one queue, and a checkpoint
        for run in (RUN, OTHER):
            put(
                storage,
                signal(run),
                started(run),
                planned(run=run),
                child(run),
                queued(run),
                scheduled(run),
                cataloged(run),
            )
        storage.put_checkpoint(THREAD, 2, "[2]")
        others = [entry for entry in all_entries(storage) if entry.thread != THREAD]
        cut = storage.cut()
        # when the thread of one run is deleted
        storage.delete_thread(THREAD)
        # then all else is there as it was
        assert storage.read(THREAD) == []
        assert storage.revision(THREAD) == 0
        assert storage.get_checkpoint(THREAD) is None
        assert all_entries(storage) == others
        assert {entry.thread for entry in storage.read_run(RUN)} == {QUEUE_THREAD, CATALOG_THREAD}
        # and the thread begins anew, at a position of its own
        assert storage.append(THREAD, [signal(at=9)], expected_rev=0) == 1
        (again,) = storage.read(THREAD)
        assert (again.seq, again.fact) == (1, signal(at=9))
        assert again.position > cut
        check_storage(storage)

    def test_deleting_a_thread_that_does_not_exist_is_no_error(self, storage: Storage) -> None:
        put(storage, signal())
        before = all_entries(storage)
        storage.delete_thread(OTHER_THREAD)
        assert all_entries(storage) == before
