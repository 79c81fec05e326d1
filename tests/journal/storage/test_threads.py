"""Every storage: entries keep their order, by thread, by run and over the whole journal."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Append, Storage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import CATALOG_THREAD, Fact, run_index_thread, run_thread
from tests.facts import (
    RUN,
    T0,
    WORKFLOW,
    cataloged,
    indexed,
    planned,
    queue_paused,
    queued,
    scheduled,
    signal,
    started,
    terminal,
)
from tests.journal.access import OTHER, OTHER_THREAD, QUEUE_THREAD, THREAD, all_entries, facts_of, put


def test_every_adapter_is_a_storage(storage: Storage) -> None:
    assert isinstance(storage, Storage)


def test_sequences_are_contiguous_from_one_on_every_thread_and_positions_grow_over_all_of_them(
    storage: Storage,
) -> None:
    # given threads of several kinds, written to in turns
    for at in range(5):
        put(storage, signal(at=at), queued(OTHER, at=at), signal(OTHER, at=at), indexed(at=at), cataloged(at=at))
        storage.append(THREAD, [signal(at=at), signal(at=at)])
    # when they are read
    for thread, length in (
        (THREAD, 15),
        (OTHER_THREAD, 5),
        (QUEUE_THREAD, 5),
        (run_index_thread(WORKFLOW), 5),
        (CATALOG_THREAD, 5),
    ):
        found = storage.read(thread)
        # then each counts for itself, and its revision is its last number
        assert [entry.seq for entry in found] == list(range(1, length + 1))
        assert {entry.thread for entry in found} == {thread}
        assert storage.revision(thread) == length
        assert all(before.position < after.position for before, after in pairwise(found))
    positions = [entry.position for entry in all_entries(storage)]
    assert len(positions) == 35
    assert positions == sorted(set(positions))
    assert positions[0] > 0


def test_a_commit_over_several_threads_takes_positions_in_the_order_given(storage: Storage) -> None:
    # given threads in an order that is not that of their ids
    facts: list[Fact] = [signal("run-9"), signal("run-9", at=1), queued("run-5"), signal("run-1"), cataloged("run-3")]
    # when they are committed at once
    receipt = storage.commit(
        [
            Append(run_thread("run-9"), facts[:2]),
            Append(QUEUE_THREAD, facts[2:3]),
            Append(run_thread("run-1"), facts[3:4]),
            Append(CATALOG_THREAD, facts[4:]),
        ]
    )
    # then the journal has them in that order, and the answer names every new revision
    assert facts_of(all_entries(storage)) == facts
    assert receipt == {run_thread("run-9"): 2, QUEUE_THREAD: 1, run_thread("run-1"): 1, CATALOG_THREAD: 1}


def test_append_writes_to_one_thread_and_gives_its_new_revision(storage: Storage) -> None:
    assert storage.append(THREAD, [signal(), started()]) == 2
    assert storage.append(THREAD, (planned(),), expected_rev=2) == 3
    assert facts_of(storage.read(THREAD)) == [signal(), started(), planned()]


def test_a_thread_that_does_not_exist_is_empty(storage: Storage) -> None:
    assert storage.read(THREAD) == []
    assert storage.read(THREAD, after=7, limit=3) == []
    assert storage.revision(THREAD) == 0
    assert storage.read_run("nobody") == []
    assert storage.read_run("nobody", before=5) == []
    assert storage.cut() == 0
    assert all_entries(storage) == []


def test_a_read_begins_after_a_revision_and_ends_at_a_limit(storage: Storage) -> None:
    facts = [signal(at=at) for at in range(10)]
    storage.append(THREAD, facts)
    assert facts_of(storage.read(THREAD, after=4)) == facts[4:]
    assert facts_of(storage.read(THREAD, after=4, limit=3)) == facts[4:7]
    assert facts_of(storage.read(THREAD, limit=3)) == facts[:3]
    assert storage.read(THREAD, limit=0) == []
    assert storage.read(THREAD, after=10) == []
    assert storage.read(THREAD, after=99) == []


def test_a_run_is_read_from_all_of_its_threads_by_position(storage: Storage) -> None:
    # given facts of two runs on every kind of thread
    mine: list[Fact] = [signal(), started(), queued(), indexed(), cataloged(), planned(), scheduled(), terminal()]
    for fact in mine:
        put(storage, fact)
        put(storage, signal(OTHER), queued(OTHER), cataloged(OTHER))
    put(storage, queue_paused())
    # when one of them is read
    found = storage.read_run(RUN)
    # then it has its own facts only, in order, from wherever they are
    assert facts_of(found) == mine
    assert [entry.position for entry in found] == sorted(entry.position for entry in found)
    assert {entry.thread for entry in found} == {THREAD, QUEUE_THREAD, run_index_thread(WORKFLOW), CATALOG_THREAD}
    # and can be read as it stood before any of them
    assert facts_of(storage.read_run(RUN, before=found[3].position)) == mine[:3]
    assert storage.read_run(RUN, before=found[0].position) == []
    assert storage.read_run(RUN, before=0) == []


def test_the_storage_tells_the_time_of_its_clock(storage: Storage, clock: VirtualClock) -> None:
    assert storage.now() == T0
    clock.advance(timedelta(hours=1))
    assert storage.now() == T0 + timedelta(hours=1)
    assert storage.now().tzinfo is UTC


def test_the_database_tells_its_own_time_in_utc_when_no_clock_is_bound(postgres: PostgresStorage) -> None:
    first, second = postgres.now(), postgres.now()
    assert first.tzinfo is UTC
    assert first < second
    assert abs(second - datetime.now(UTC)) < timedelta(minutes=1)
