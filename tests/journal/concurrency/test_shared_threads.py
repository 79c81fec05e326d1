"""Threads that many runs share: their rows are locked and never updated, and their sequences have no gaps."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import DiscrepancyKind, PostgresDispatchStore, PostgresStorage, verify
from squid_dagster.protocol.errors import Conflict
from squid_dagster.workflow import Workflow
from tests.facts import QUEUE, queue_paused, queue_resumed
from tests.journal.access import all_entries, at_once, raw, wait_for_a_lock
from tests.journal.writers import start

THREAD = f"squid:dispatch:{QUEUE}"
_ROW = "SELECT ctid, xmin, rev FROM journal_threads WHERE id = %s"


def chain() -> Workflow:
    """Return a workflow of two steps."""
    workflow = Workflow("chain")

    @workflow.step
    def first() -> int:
        return 1

    @workflow.step
    def second(first: int) -> int:
        return first + 1

    return workflow


def assert_contiguous(storage: PostgresStorage, thread: str = THREAD) -> None:
    """Assert that a thread's sequence is 1..n, in the order of positions, and n its revision."""
    seqs = [entry.seq for entry in all_entries(storage) if entry.thread == thread]
    assert seqs == list(range(1, len(seqs) + 1))
    assert storage.revision(thread) == len(seqs) > 0


def test_no_commit_updates_the_row_of_a_shared_thread(postgres: PostgresStorage) -> None:
    squid = Squid(postgres, chain())
    squid.start("chain")
    with raw(postgres) as connection:
        before = connection.execute(_ROW, (THREAD,)).fetchone()
        squid.start("chain")
        squid.start_many("chain", [None] * 3)
        assert squid.worker(QUEUE, until_idle=True).completed == 10
        postgres.append(THREAD, [queue_paused(), queue_resumed()])
        assert connection.execute(_ROW, (THREAD,)).fetchone() == before
    assert_contiguous(postgres)


def test_the_revision_of_a_shared_thread_is_its_last_sequence_whoever_writes_at_once(postgres: PostgresStorage) -> None:
    squids = [Squid(postgres, chain()) for _ in range(4)]
    squids[0].start("chain")

    def write(number: int) -> None:
        for _ in range(5):
            squids[number].start("chain")
            squids[number].start("chain", comment="the general way")
            squids[number].worker(QUEUE, until_idle=True)
            postgres.append(THREAD, [queue_resumed()])

    at_once([partial(write, number) for number in range(4)])
    assert_contiguous(postgres)
    for thread in {entry.thread for entry in all_entries(postgres)}:
        assert_contiguous(postgres, thread)
    assert verify(postgres) == []


def test_writers_that_waited_for_the_row_see_what_its_holder_wrote(postgres: PostgresStorage) -> None:
    start(postgres, ["run-1", "run-2"])
    store, squid = PostgresDispatchStore(postgres), Squid(postgres, chain())
    squid.start("chain")
    with raw(postgres, autocommit=False) as holder:
        holder.execute("SELECT FROM journal_threads WHERE id = %s FOR UPDATE", (THREAD,))

        def release() -> None:
            wait_for_a_lock(postgres, least=3)
            holder.rollback()

        at_once(
            [
                release,
                lambda: store.claim(QUEUE, "worker", limit=2) and None,
                lambda: squid.start("chain") and None,
                lambda: postgres.append(THREAD, [queue_resumed()]) and None,
            ]
        )
    assert_contiguous(postgres)


def test_an_expected_revision_is_compared_with_the_last_entry(postgres: PostgresStorage) -> None:
    assert postgres.append(THREAD, [queue_paused(), queue_resumed()]) == 2
    assert postgres.append(THREAD, [queue_paused()], expected_rev=2) == 3
    assert postgres.append(THREAD, [queue_resumed()], expected_rev=3) == 4
    with pytest.raises(Conflict):
        postgres.append(THREAD, [queue_resumed()], expected_rev=2)


def test_a_checkpoint_of_a_shared_thread_is_valid_up_to_its_last_entry(postgres: PostgresStorage) -> None:
    postgres.append(THREAD, [queue_paused()])
    postgres.append(THREAD, [queue_resumed()])
    assert postgres.put_checkpoint(THREAD, 2, "{}")
    checkpoint = postgres.get_checkpoint(THREAD)
    assert checkpoint is not None
    assert checkpoint.revision == 2
    assert postgres.put_checkpoint(THREAD, 9, "[]")
    assert postgres.get_checkpoint(THREAD) is None


@contextmanager
def _unguarded(storage: PostgresStorage) -> Iterator[None]:
    with raw(storage) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER journal_entries_append_only")
        yield
        connection.execute("ALTER TABLE journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only")


@pytest.mark.parametrize("seqs", [(3, 4), (4,)])
def test_a_tail_removed_from_a_shared_thread_is_named(postgres: PostgresStorage, seqs: tuple[int, ...]) -> None:
    for fact in (queue_paused(), queue_resumed(), queue_paused(), queue_resumed()):
        postgres.append(THREAD, [fact])
    with _unguarded(postgres), raw(postgres) as connection:
        connection.execute("DELETE FROM journal_entries WHERE seq = ANY (%s)", (list(seqs),))
    findings = [finding for finding in verify(postgres) if finding.kind is DiscrepancyKind.WRONG_REVISION]
    assert [(finding.thread, finding.seq) for finding in findings] == [(THREAD, min(seqs) - 1)]
    assert "4" in findings[0].detail


def test_a_shared_thread_whose_row_says_more_than_there_is_is_named_and_never_counts_back(
    postgres: PostgresStorage,
) -> None:
    postgres.append(THREAD, [queue_paused()])
    with raw(postgres) as connection:
        connection.execute("UPDATE journal_threads SET rev = 9 WHERE id = %s", (THREAD,))
    (finding,) = verify(postgres)
    assert (finding.kind, finding.thread, finding.seq) == (DiscrepancyKind.WRONG_REVISION, THREAD, 1)
    assert postgres.append(THREAD, [queue_resumed()]) == 10
    assert DiscrepancyKind.GAP in {finding.kind for finding in verify(postgres)}
