"""Postgres: the live views say what is left when a thread was deleted."""

import pytest

from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.facts import (
    RUN,
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
    QUEUE_THREAD,
    assert_views_agree_with_the_journal,
    put,
    raw,
)


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
