"""A thread that two sessions append to first: one of them creates it, the other one begins again and follows."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.facts import queue_paused, queue_resumed
from tests.journal.access import raw, wait_for_a_lock


def test_a_thread_that_another_commit_creates_meanwhile_is_appended_to(postgres_virtual: PostgresStorage) -> None:
    storage, thread, commit_id = postgres_virtual, queue_paused().thread, uuid4()
    with raw(storage, autocommit=False) as other, ThreadPoolExecutor(2) as pool:
        # given a commit that has created a thread, and waits at its last statement
        other.execute(
            "INSERT INTO journal_commits (id, receipt, committed_at) VALUES (%s, '{}', clock_timestamp())", (commit_id,)
        )
        first = pool.submit(storage.commit, [Append(thread, [queue_paused()])], commit_id)
        wait_for_a_lock(storage)
        # when another one appends to that thread, which it cannot see yet
        second = pool.submit(storage.append, thread, [queue_resumed()])
        wait_for_a_lock(storage, 2)
        other.rollback()
        # then it follows
        assert first.result(30) == {thread: 1}
        assert second.result(30) == 2
    assert [entry.fact.type for entry in storage.read(thread)] == ["queue_paused", "queue_resumed"]
