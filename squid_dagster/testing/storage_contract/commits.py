"""The part of the storage contract about commits: written whole, at the revisions they expect, and once."""

from collections.abc import Callable
from functools import partial
from uuid import uuid4

import pytest

from squid_dagster.journal.contract.storage import Append, Storage
from squid_dagster.protocol.errors import Conflict
from squid_dagster.protocol.facts import Fact
from squid_dagster.testing.example_facts import (
    OTHER,
    OTHER_THREAD,
    QUEUE_THREAD,
    THREAD,
    all_entries,
    at_once,
    cataloged,
    facts_of,
    planned,
    put,
    queue_paused,
    queued,
    signal,
    started,
)


class CommitContract:
    """Tests of expected revisions, conflicts, commit ids, and commits made at the same time."""

    def test_a_thread_that_moved_on_is_a_conflict_and_nothing_is_written(self, storage: Storage) -> None:
        # given a thread at revision 2
        storage.append(THREAD, [signal(), started()])
        before = all_entries(storage)
        # when a writer expects another one
        for expected in (0, 1, 3):
            with pytest.raises(Conflict) as refused:
                storage.append(THREAD, [planned()], expected_rev=expected)
            # then the conflict names all three
            assert (refused.value.thread, refused.value.expected, refused.value.actual) == (THREAD, expected, 2)
            assert THREAD in str(refused.value)
        assert all_entries(storage) == before
        # and the right one goes through
        assert storage.append(THREAD, [planned()], expected_rev=2) == 3

    def test_revision_zero_expects_an_empty_thread(self, storage: Storage) -> None:
        assert storage.append(THREAD, [signal()], expected_rev=0) == 1
        with pytest.raises(Conflict):
            storage.append(THREAD, [signal()], expected_rev=0)
        with pytest.raises(Conflict) as refused:
            storage.append(OTHER_THREAD, [signal(OTHER)], expected_rev=1)
        assert (refused.value.expected, refused.value.actual) == (1, 0)
        assert storage.revision(OTHER_THREAD) == 0
        assert storage.append(OTHER_THREAD, [signal(OTHER)], expected_rev=0) == 1

    def test_one_conflict_among_several_threads_leaves_all_of_them_alone(
        self, storage: Storage, check_storage: Callable[[Storage], None]
    ) -> None:
        # given one thread that moved on
        storage.append(OTHER_THREAD, [signal(OTHER)])
        before, commit_id = all_entries(storage), uuid4()
        appends = [
            Append(THREAD, [signal()], 0),
            Append(OTHER_THREAD, [signal(OTHER)], 5),
            Append(QUEUE_THREAD, [queued()]),
        ]
        # when it is the second of three in a commit
        with pytest.raises(Conflict) as refused:
            storage.commit(appends, commit_id)
        # then it is named
        assert (refused.value.thread, refused.value.expected, refused.value.actual) == (OTHER_THREAD, 5, 1)
        # and where commits span threads nothing is written; else what came before it is
        written = all_entries(storage)[len(before) :]
        assert facts_of(written) == ([] if storage.atomic_across_threads else [signal()])
        assert storage.find_commit(commit_id) is None
        check_storage(storage)

    def test_of_many_who_expect_the_same_revision_one_wins(self, storage: Storage) -> None:
        def attempt(number: int) -> str:
            try:
                storage.commit([Append(THREAD, [signal(at=number)], 0), Append(QUEUE_THREAD, [queued(at=number)])])
            except Conflict as conflict:
                return f"conflict at {conflict.actual}"
            return "won"

        answers = at_once([partial(attempt, n) for n in range(8)])
        assert sorted(answers) == ["conflict at 1"] * 7 + ["won"]
        assert len(all_entries(storage)) == 2

    def test_writers_that_name_threads_in_opposite_orders_do_not_block_each_other(self, storage: Storage) -> None:
        def write(number: int) -> None:
            for at in range(10):
                facts: list[Fact] = [signal(run, at=at) for run in ("run-1", "run-2", "run-3")]
                facts += [queued("run-1", at=at), queued("run-2", at=at, queue="slow"), cataloged("run-3", at=at)]
                put(storage, *(facts if number % 2 else reversed(facts)))

        at_once([partial(write, n) for n in range(6)])
        assert len(all_entries(storage)) == 360
        for thread in {entry.thread for entry in all_entries(storage)}:
            assert [entry.seq for entry in storage.read(thread)] == list(range(1, storage.revision(thread) + 1))

    def test_a_repeated_commit_writes_nothing_and_gives_the_first_answer(self, storage: Storage) -> None:
        # given a commit with an id of its client's
        commit_id = uuid4()
        appends = [Append(THREAD, [signal(), started()], 0), Append(QUEUE_THREAD, [queued()], 0)]
        first = storage.commit(appends, commit_id)
        storage.append(THREAD, [planned()])
        before = all_entries(storage)
        # when it is repeated, although its threads moved on
        again = storage.commit(appends, commit_id)
        # then the first answer comes back and nothing is written
        assert first == again == {THREAD: 2, QUEUE_THREAD: 1}
        assert all_entries(storage) == before
        assert storage.find_commit(commit_id) == first
        assert storage.find_commit(uuid4()) is None

    def test_a_repeated_commit_id_gives_the_first_answer_whatever_it_comes_with(self, storage: Storage) -> None:
        commit_id = uuid4()
        first = storage.commit([Append(THREAD, [signal()])], commit_id)
        assert storage.commit([Append(OTHER_THREAD, [signal(OTHER)])], commit_id) == first
        assert storage.commit([Append(THREAD, [signal()]), Append(QUEUE_THREAD, [queued()])], commit_id) == first
        assert len(all_entries(storage)) == 1

    def test_a_changed_answer_does_not_change_what_is_on_record(self, storage: Storage) -> None:
        commit_id = uuid4()
        storage.commit([Append(THREAD, [signal()])], commit_id)[THREAD] = 99
        receipt = storage.find_commit(commit_id)
        assert receipt is not None
        receipt[THREAD] = 99
        assert storage.find_commit(commit_id) == {THREAD: 1}

    @pytest.mark.parametrize(
        ("facts", "expected_rev"),
        [([signal(), started()], None), ([signal(), started()], 0), ([queue_paused()], None), ([queue_paused()], 0)],
        ids=["run facts", "run facts on an empty thread", "queue facts", "queue facts on an empty thread"],
    )
    def test_a_commit_id_that_many_use_at_once_is_written_once(
        self, storage: Storage, facts: list[Fact], expected_rev: int | None
    ) -> None:
        for _ in range(5):
            # given eight who send the same commit
            commit_id, before = uuid4(), len(all_entries(storage))
            revision = None if expected_rev is None else storage.revision(facts[0].thread)
            append = Append(facts[0].thread, facts, revision)
            # when they do so at the same time
            answers = at_once([partial(storage.commit, [append], commit_id)] * 8)
            # then all get the one answer, and the facts are there once
            assert answers == [storage.find_commit(commit_id)] * 8
            assert len(all_entries(storage)) == before + len(facts)
