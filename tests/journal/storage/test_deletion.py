"""Every storage: a deleted thread takes with it what derives from it, and nothing else."""

import pytest

from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import CATALOG_THREAD
from tests.facts import (
    RUN,
    cataloged,
    child,
    claimed,
    completed,
    key,
    planned,
    queue_paused,
    queued,
    scheduled,
    signal,
    started,
)
from tests.journal.access import (
    OTHER,
    OTHER_THREAD,
    QUEUE_THREAD,
    THREAD,
    all_entries,
    assert_views_agree_with_the_journal,
    put,
    raw,
)


def test_deleting_a_thread_leaves_the_others_alone_and_starts_it_again_at_one(storage: Storage) -> None:
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
    if isinstance(storage, PostgresStorage):
        assert_views_agree_with_the_journal(storage)


def test_what_derives_from_a_deleted_thread_goes_with_it(postgres_virtual: PostgresStorage) -> None:
    storage = postgres_virtual
    # given a run with a plan, one that is in the queue alone, and a pause
    put(storage, signal(), started(), planned(), child(), queued(), scheduled(), claimed())
    put(storage, scheduled(OTHER), queue_paused(), claimed(OTHER, at=0.5), completed(OTHER, claim="nobody"))
    put(storage, queue_paused("slow"), scheduled("run-3", queue="slow"))
    # when the queue's thread is deleted
    storage.delete_thread(QUEUE_THREAD)
    # then the views say what is left
    assert_views_agree_with_the_journal(storage)
    with raw(storage) as connection:
        assert connection.execute("SELECT run_id FROM runs ORDER BY 1").fetchall() == [(RUN,), ("run-3",)]
        assert connection.execute("SELECT queue FROM queues").fetchall() == [("slow",)]
        assert connection.execute("SELECT run_id, runnable_key, status FROM attempts ORDER BY 1").fetchall() == [
            (RUN, key(), None),
            ("run-3", key("run-3"), "available"),
        ]
        assert connection.execute("SELECT count(*) FROM anomalies").fetchone() == (0,)
    # and the journal is as append-only as before
    with raw(storage) as connection, pytest.raises(Exception, match="append-only"):
        connection.execute("DELETE FROM journal_entries")


def test_deleting_a_thread_that_does_not_exist_is_no_error(storage: Storage) -> None:
    put(storage, signal())
    before = all_entries(storage)
    storage.delete_thread(OTHER_THREAD)
    assert all_entries(storage) == before
