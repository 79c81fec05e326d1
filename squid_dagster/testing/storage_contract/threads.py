"""The part of the storage contract about threads: entries keep their order, by thread, by run and by position."""

from datetime import UTC, timedelta
from itertools import pairwise

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Append, Storage
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.threads import CATALOG_THREAD, run_index_thread, run_thread
from squid_dagster.testing.example_facts import (
    OTHER,
    OTHER_THREAD,
    QUEUE_THREAD,
    RUN,
    T0,
    THREAD,
    WORKFLOW,
    all_entries,
    cataloged,
    facts_of,
    indexed,
    planned,
    put,
    queue_paused,
    queued,
    scheduled,
    signal,
    started,
    terminal,
)


class ThreadContract:
    """Tests of order: sequence numbers, positions, and what is read by thread and by run."""

    def test_every_adapter_is_a_storage(self, storage: Storage) -> None:
        assert isinstance(storage, Storage)

    def test_sequences_are_contiguous_from_one_on_every_thread_and_positions_grow_over_all_of_them(
        self,
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
            entries = storage.read(thread)
            # then each counts for itself, and its revision is its last number
            assert [entry.seq for entry in entries] == list(range(1, length + 1))
            assert {entry.thread for entry in entries} == {thread}
            assert storage.revision(thread) == length
            assert all(before.position < after.position for before, after in pairwise(entries))
        positions = [entry.position for entry in all_entries(storage)]
        assert len(positions) == 35
        assert positions == sorted(set(positions))
        assert positions[0] > 0

    def test_a_commit_over_several_threads_takes_positions_in_the_order_given(self, storage: Storage) -> None:
        # given threads in an order that is not that of their ids
        facts: list[Fact] = [
            signal("run-9"),
            signal("run-9", at=1),
            queued("run-5"),
            signal("run-1"),
            cataloged("run-3"),
        ]
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

    def test_append_writes_to_one_thread_and_gives_its_new_revision(self, storage: Storage) -> None:
        assert storage.append(THREAD, [signal(), started()]) == 2
        assert storage.append(THREAD, (planned(),), expected_rev=2) == 3
        assert facts_of(storage.read(THREAD)) == [signal(), started(), planned()]

    def test_a_thread_that_does_not_exist_is_empty(self, storage: Storage) -> None:
        assert storage.read(THREAD) == []
        assert storage.read(THREAD, after=7, limit=3) == []
        assert storage.revision(THREAD) == 0
        assert storage.read_run("run-of-no-facts") == []
        assert storage.read_run("run-of-no-facts", before=5) == []
        assert storage.cut() == 0
        assert all_entries(storage) == []

    def test_a_read_begins_after_a_revision_and_ends_at_a_limit(self, storage: Storage) -> None:
        facts = [signal(at=at) for at in range(10)]
        storage.append(THREAD, facts)
        assert facts_of(storage.read(THREAD, after=4)) == facts[4:]
        assert facts_of(storage.read(THREAD, after=4, limit=3)) == facts[4:7]
        assert facts_of(storage.read(THREAD, limit=3)) == facts[:3]
        assert storage.read(THREAD, limit=0) == []
        assert storage.read(THREAD, after=10) == []
        assert storage.read(THREAD, after=99) == []

    def test_a_run_is_read_from_all_of_its_threads_by_position(self, storage: Storage) -> None:
        # given facts of two runs on every kind of thread
        mine: list[Fact] = [signal(), started(), queued(), indexed(), cataloged(), planned(), scheduled(), terminal()]
        for fact in mine:
            put(storage, fact)
            put(storage, signal(OTHER), queued(OTHER), cataloged(OTHER))
        put(storage, queue_paused())
        # when one of them is read
        entries = storage.read_run(RUN)
        # then it has its own facts only, in order, from wherever they are
        assert facts_of(entries) == mine
        assert [entry.position for entry in entries] == sorted(entry.position for entry in entries)
        assert {entry.thread for entry in entries} == {THREAD, QUEUE_THREAD, run_index_thread(WORKFLOW), CATALOG_THREAD}
        # and can be read as it stood before any of them
        assert facts_of(storage.read_run(RUN, before=entries[3].position)) == mine[:3]
        assert storage.read_run(RUN, before=entries[0].position) == []
        assert storage.read_run(RUN, before=0) == []

    def test_its_time_is_in_utc_and_does_not_run_backwards(self, storage: Storage) -> None:
        first, second = storage.now(), storage.now()
        assert first.utcoffset() == timedelta(0)
        assert first <= second

    def test_the_storage_tells_the_time_of_its_clock(self, storage: Storage, clock: VirtualClock | None) -> None:
        if clock is None:
            pytest.skip("it goes by a clock of its own")
        assert storage.now() == T0
        clock.advance(timedelta(hours=1))
        assert storage.now() == T0 + timedelta(hours=1)
        assert storage.now().tzinfo is UTC
