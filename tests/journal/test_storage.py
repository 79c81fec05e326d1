"""The storage contract: one suite for every adapter, then what only a database can be asked."""

import random
import signal as os_signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count, pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from squid_dagster.journal.clock import VirtualClock
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage, Transaction
from squid_dagster.journal.storage import Append, Checkpoint, Storage
from squid_dagster.protocol import (
    CATALOG_THREAD,
    Entry,
    Fact,
    RunProjection,
    dispatch_thread,
    run_index_thread,
    run_thread,
    to_json,
)
from squid_dagster.protocol.errors import Conflict, StorageUnavailable
from tests.histories import (
    EXAMPLES,
    QUEUE,
    RUN,
    T0,
    WORKFLOW,
    applied,
    cataloged,
    child,
    claimed,
    completed,
    histories,
    indexed,
    json_objects,
    json_values,
    key,
    planned,
    queue_paused,
    queue_resumed,
    queued,
    scheduled,
    signal,
    started,
    terminal,
    with_fields,
)
from tests.journal.contract import (
    EVERYTHING,
    Opener,
    Wire,
    all_entries,
    as_json,
    assert_views_agree_with_the_journal,
    at_once,
    facts_of,
    put,
    raw,
    terminate_backends,
    wait_for_a_lock,
)

THREAD, QUEUE_THREAD = run_thread(RUN), dispatch_thread(QUEUE)
OTHER, OTHER_THREAD = "run-2", run_thread("run-2")

# A failing example on a shared journal is told as it was found: another try would meet what the first one left.
_WITHOUT_SHRINKING = (Phase.explicit, Phase.generate)
_numbers = count(1)


# --- order ----------------------------------------------------------------------------------------------------------


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


# --- cuts -----------------------------------------------------------------------------------------------------------


def test_consecutive_cuts_give_each_entry_once(storage: Storage) -> None:
    # given commits of any size on any thread, with cuts taken at any time
    chance = random.Random(7)
    cuts = [0, storage.cut()]
    for at in range(40):
        runs = chance.sample(["run-1", "run-2", "run-3"], chance.randint(1, 3))
        put(storage, *[signal(run, at=at) for run in runs for _ in range(chance.randint(1, 3))])
        if chance.random() < 0.5:
            cuts.append(storage.cut())
    cuts.append(storage.cut())
    # when everything between consecutive cuts is read
    slices = [storage.read_between(after, upto) for after, upto in pairwise(cuts)]
    # then that is every entry, once, in order
    assert [entry for part in slices for entry in part] == all_entries(storage)
    assert cuts == sorted(cuts)
    assert cuts[-1] == all_entries(storage)[-1].position


def test_a_slice_can_be_read_in_pages(storage: Storage) -> None:
    facts = [signal(at=at) for at in range(7)]
    storage.append(THREAD, facts)
    cut, after, pages = storage.cut(), 0, []
    while page := storage.read_between(after, cut, limit=3):
        pages.append(facts_of(page))
        after = page[-1].position
    assert pages == [facts[:3], facts[3:6], facts[6:]]
    assert storage.read_between(cut, cut) == []
    assert storage.read_between(cut, 0) == []


def test_a_reader_between_cuts_misses_nothing_while_many_write(storage: Storage) -> None:
    # given four writers at work
    writers, commits = 4, 25
    done = threading.Event()

    def write(run: str) -> None:
        for at in range(commits):
            put(storage, signal(run, at=at), queued(run, at=at), signal("shared", at=at))

    def read() -> list[Entry]:
        seen: list[Entry] = []
        after = 0
        while True:
            last_time = done.is_set()
            upto = storage.cut()
            assert upto >= after
            seen += storage.read_between(after, upto)
            after = upto
            if last_time:
                return seen

    with ThreadPoolExecutor(writers + 1) as pool:
        reader = pool.submit(read)
        # when a reader follows them from cut to cut
        for writer in [pool.submit(write, f"run-{n}") for n in range(writers)]:
            writer.result(60)
        done.set()
        seen = reader.result(60)
    # then it saw every entry once, in order
    assert seen == all_entries(storage)
    assert len(seen) == writers * commits * 3


# --- expected revisions ---------------------------------------------------------------------------------------------


def test_a_thread_that_moved_on_is_a_conflict_and_nothing_is_written(storage: Storage) -> None:
    # given a thread at revision 2
    storage.append(THREAD, [signal(), started()])
    before = all_entries(storage)
    # when somebody expects another one
    for expected in (0, 1, 3):
        with pytest.raises(Conflict) as refused:
            storage.append(THREAD, [planned()], expected_rev=expected)
        # then the conflict names all three
        assert (refused.value.thread, refused.value.expected, refused.value.actual) == (THREAD, expected, 2)
        assert THREAD in str(refused.value)
    assert all_entries(storage) == before
    # and the right one goes through
    assert storage.append(THREAD, [planned()], expected_rev=2) == 3


def test_revision_zero_expects_an_empty_thread(storage: Storage) -> None:
    assert storage.append(THREAD, [signal()], expected_rev=0) == 1
    with pytest.raises(Conflict):
        storage.append(THREAD, [signal()], expected_rev=0)
    with pytest.raises(Conflict) as refused:
        storage.append(OTHER_THREAD, [signal(OTHER)], expected_rev=1)
    assert (refused.value.expected, refused.value.actual) == (1, 0)
    assert storage.revision(OTHER_THREAD) == 0
    assert storage.append(OTHER_THREAD, [signal(OTHER)], expected_rev=0) == 1


def test_one_conflict_among_several_threads_leaves_all_of_them_alone(storage: Storage) -> None:
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
    if isinstance(storage, PostgresStorage):
        assert_views_agree_with_the_journal(storage)


def test_of_many_who_expect_the_same_revision_one_wins(storage: Storage) -> None:
    def attempt(number: int) -> str:
        try:
            storage.commit([Append(THREAD, [signal(at=number)], 0), Append(QUEUE_THREAD, [queued(at=number)])])
        except Conflict as conflict:
            return f"conflict at {conflict.actual}"
        return "won"

    answers = at_once([partial(attempt, n) for n in range(8)])
    assert sorted(answers) == ["conflict at 1"] * 7 + ["won"]
    assert len(all_entries(storage)) == 2


def test_writers_that_name_threads_in_opposite_orders_do_not_block_each_other(storage: Storage) -> None:
    def write(number: int) -> None:
        for at in range(10):
            facts: list[Fact] = [signal(run, at=at) for run in ("run-1", "run-2", "run-3")]
            facts += [queued("run-1", at=at), queued("run-2", at=at, queue="slow"), cataloged("run-3", at=at)]
            put(storage, *(facts if number % 2 else reversed(facts)))

    at_once([partial(write, n) for n in range(6)])
    assert len(all_entries(storage)) == 360
    for thread in {entry.thread for entry in all_entries(storage)}:
        assert [entry.seq for entry in storage.read(thread)] == list(range(1, storage.revision(thread) + 1))


# --- commit ids -----------------------------------------------------------------------------------------------------


def test_a_repeated_commit_writes_nothing_and_gives_the_first_answer(storage: Storage) -> None:
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


def test_a_repeated_commit_id_gives_the_first_answer_whatever_it_comes_with(storage: Storage) -> None:
    commit_id = uuid4()
    first = storage.commit([Append(THREAD, [signal()])], commit_id)
    assert storage.commit([Append(OTHER_THREAD, [signal(OTHER)])], commit_id) == first
    assert storage.commit([Append(THREAD, [signal()]), Append(QUEUE_THREAD, [queued()])], commit_id) == first
    assert len(all_entries(storage)) == 1


def test_a_changed_answer_does_not_change_what_is_on_record(storage: Storage) -> None:
    commit_id = uuid4()
    storage.commit([Append(THREAD, [signal()])], commit_id)[THREAD] = 99
    found = storage.find_commit(commit_id)
    assert found is not None
    found[THREAD] = 99
    assert storage.find_commit(commit_id) == {THREAD: 1}


@pytest.mark.parametrize(
    ("facts", "expected_rev"),
    [([signal(), started()], None), ([signal(), started()], 0), ([queue_paused()], None), ([queue_paused()], 0)],
    ids=["run facts", "run facts on an empty thread", "queue facts", "queue facts on an empty thread"],
)
def test_a_commit_id_that_many_use_at_once_is_written_once(
    storage: Storage, facts: list[Fact], expected_rev: int | None
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


# --- what is read is what was written -------------------------------------------------------------------------------

_AWKWARD: dict[str, JsonValue] = {
    "big": 10**30,
    "negative": -(2**63) - 1,
    "huge": 1e300,
    "tiny": 5e-324,
    "whole": 1.0,
    "minus zero": -0.0,
    "text": "ü 🦑 \u2028 \\u0000 \\ \" ' \t\n %s {schema} $1",
    "nothing": None,
    "nested": [{"": [[], {}, [None, True, False]]}],
    "Schlüssel 🦑": "ключ",
}


@pytest.mark.parametrize("fact", EXAMPLES, ids=lambda fact: fact.type)
def test_every_type_of_fact_comes_back_as_it_was_written(
    fact: Fact, clock: VirtualClock, postgres_shared: PostgresStorage
) -> None:
    # given a fact with fields that this version does not know
    written = with_fields(fact, strange=_AWKWARD, another=[1.5, "x"])
    for storage in (MemoryStorage(clock), MemoryStorage(clock, atomic_across_threads=False), postgres_shared):
        # when it is written and read again
        revision = storage.append(written.thread, [written])
        (found,) = storage.read(written.thread, after=revision - 1)
        # then it is the same, to the last sign
        assert found.fact == written
        assert as_json(found) == to_json(written)
        assert type(found.fact) is type(written)


@given(payload=json_objects(), value=json_values(), strange=json_values())
@settings(max_examples=60, phases=_WITHOUT_SHRINKING)
def test_any_json_value_comes_back_as_it_was_written(
    postgres_shared: PostgresStorage, payload: dict[str, JsonValue], value: JsonValue, strange: JsonValue
) -> None:
    facts: list[Fact] = [
        signal("any", payload=payload, note=strange),
        started("any", input=payload, context={"value": value}),
        completed("any", result=value, note=strange),
        applied("any", result=value, transition=payload),
        scheduled("any", input=payload, note=value),
    ]
    for storage in (MemoryStorage(), postgres_shared):
        after = storage.cut()
        put(storage, *facts)
        found = facts_of(storage.read_between(after, EVERYTHING))
        assert sorted(map(to_json, found)) == sorted(map(to_json, facts))


_MISLEADING: tuple[dict[str, Any], ...] = (
    {"runnable_key": 7},
    {"runnable_key": ["x"]},
    {"runnable_key": "run-1:charge:1:1"},
    {"retry_runnable_key": {"a": 1}},
    {"step": {"a": 1}},
    {"child_run_id": ["x"]},
    {"queue": 5},
    {"runnables": "none"},
    {"workflow": None},
    {"thread": "squid:run:elsewhere"},
)


@pytest.mark.parametrize("fields", _MISLEADING, ids=str)
def test_an_unknown_field_with_the_name_of_another_fact_s_field_is_kept_and_means_nothing(
    fields: dict[str, Any], postgres_shared: PostgresStorage
) -> None:
    wrong: list[str] = []
    # given facts whose unknown field is called like another fact's own
    for fact in (fact for fact in EXAMPLES if not fields.keys() & type(fact).model_fields.keys()):
        strange = with_fields(fact, **fields)
        for storage in (MemoryStorage(), postgres_shared):
            # when they are written
            try:
                revision = storage.append(strange.thread, [strange])
            except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
                wrong.append(f"{fact.type} in {type(storage).__name__}: {type(error).__name__}: {error}")
                continue
            # then they come back whole
            (found,) = storage.read(strange.thread, after=revision - 1)
            if as_json(found) != to_json(strange):
                wrong.append(f"{fact.type} in {type(storage).__name__}: came back as {found}")
    assert wrong == []


@given(histories())
@settings(max_examples=25, phases=_WITHOUT_SHRINKING)
def test_any_history_is_kept_whole_and_in_order(postgres_shared: PostgresStorage, history: list[Fact]) -> None:
    for storage in (MemoryStorage(), postgres_shared):
        after = storage.cut()
        for fact in history:
            storage.append(fact.thread, [fact])
        assert facts_of(storage.read_between(after, storage.cut())) == history


def test_neither_writers_nor_readers_change_a_fact_by_changing_what_they_hold(storage: Storage) -> None:
    # given a fact whose payload its writer goes on using
    payload: dict[str, JsonValue] = {"items": [1]}
    fact = signal(payload=payload)
    storage.append(THREAD, [fact])
    fact.payload["items"] = "changed by the writer"
    # when a reader changes what it was given
    for read in (partial(storage.read, THREAD), partial(storage.read_run, RUN), partial(all_entries, storage)):
        (found,) = facts_of(read())
        found.payload["items"].append("changed by a reader")
    # then the journal still says what was written
    assert facts_of(storage.read(THREAD)) == [signal(payload={"items": [1]})]


# --- large things ---------------------------------------------------------------------------------------------------


def test_five_thousand_facts_fit_into_one_commit(storage: Storage) -> None:
    # given a commit of 5,000 facts over 501 threads
    facts: list[Fact] = [signal(f"run-{n % 500}", at=n) for n in range(4500)]
    facts += [scheduled(f"run-{n}") for n in range(500)]
    # when it is written
    put(storage, *facts)
    # then every one is there
    assert len(all_entries(storage)) == 5000
    assert storage.revision(run_thread("run-7")) == 9
    assert storage.revision(QUEUE_THREAD) == 500
    assert storage.cut() == all_entries(storage)[-1].position


def test_a_fact_of_almost_a_mebibyte_is_kept(storage: Storage) -> None:
    large = signal(payload={"text": "🦑" * 260_000})
    storage.append(THREAD, [large])
    assert facts_of(storage.read(THREAD)) == [large]
    put(storage, scheduled(input={"text": "x" * 1_040_000}), planned())
    (_, found) = facts_of(storage.read_run(RUN))[:2]
    assert len(found.input["text"]) == 1_040_000


# --- checkpoints ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_as_it_was_put_with_the_revision_that_it_covers(storage: Storage) -> None:
    # given a thread and a projection of it
    storage.append(THREAD, [signal(payload=_AWKWARD), started(), planned()])
    data = RunProjection.fold(storage.read(THREAD)).dump()
    # when it is kept
    assert storage.get_checkpoint(THREAD) is None
    assert storage.put_checkpoint(THREAD, 3, data) is True
    # then it is there, to the last sign, for this thread only
    assert storage.get_checkpoint(THREAD) == Checkpoint(THREAD, 3, data)
    assert storage.get_checkpoint(OTHER_THREAD) is None
    assert RunProjection.load(data) == RunProjection.fold(storage.read(THREAD))


def test_an_older_checkpoint_does_not_replace_a_newer_one(storage: Storage) -> None:
    storage.append(THREAD, [signal(), started(), planned()])
    assert storage.put_checkpoint(THREAD, 2, "[2]")
    assert not storage.put_checkpoint(THREAD, 1, "[1]")
    assert storage.get_checkpoint(THREAD) == Checkpoint(THREAD, 2, "[2]")
    assert storage.put_checkpoint(THREAD, 2, "[2, 2]")
    assert storage.get_checkpoint(THREAD) == Checkpoint(THREAD, 2, "[2, 2]")
    assert storage.put_checkpoint(THREAD, 3, "[3]")
    assert storage.get_checkpoint(THREAD) == Checkpoint(THREAD, 3, "[3]")


def test_a_checkpoint_beyond_its_thread_is_ignored_and_may_be_replaced(storage: Storage) -> None:
    # given a checkpoint that claims more than the thread holds
    storage.append(THREAD, [signal(), started()])
    storage.put_checkpoint(THREAD, 5, "[5]")
    assert storage.get_checkpoint(THREAD) is None
    # when one comes that is true, although it covers less
    assert storage.put_checkpoint(THREAD, 1, "[1]")
    # then that one stands
    assert storage.get_checkpoint(THREAD) == Checkpoint(THREAD, 1, "[1]")


def test_a_checkpoint_of_an_empty_thread_covers_revision_zero(storage: Storage) -> None:
    storage.put_checkpoint(THREAD, 1, "[1]")
    assert storage.get_checkpoint(THREAD) is None
    assert storage.put_checkpoint(THREAD, 0, "[0]")
    assert storage.get_checkpoint(THREAD) == Checkpoint(THREAD, 0, "[0]")


def test_a_deleted_checkpoint_is_gone_and_deleting_none_is_no_error(storage: Storage) -> None:
    storage.append(THREAD, [signal()])
    storage.append(OTHER_THREAD, [signal(OTHER)])
    storage.put_checkpoint(THREAD, 1, "[1]")
    storage.put_checkpoint(OTHER_THREAD, 1, "[1]")
    storage.delete_checkpoint(THREAD)
    storage.delete_checkpoint(THREAD)
    assert storage.get_checkpoint(THREAD) is None
    assert storage.get_checkpoint(OTHER_THREAD) is not None
    assert storage.put_checkpoint(THREAD, 0, "[0]")
    assert storage.read(THREAD) != []


# --- scoped deletion ------------------------------------------------------------------------------------------------


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


# --- Postgres: cuts under open transactions -------------------------------------------------------------------------


def test_an_open_transaction_that_has_taken_positions_holds_the_cut_back(postgres: PostgresStorage) -> None:
    # given a writer that has announced itself, taken a position, and stands still
    postgres.append(THREAD, [signal()])
    first = postgres.cut()
    with raw(postgres, autocommit=False) as writer:
        writer.execute("SELECT announce_positions()")
        (taken,) = writer.execute("SELECT nextval('journal_positions')").fetchone() or (0,)
        assert taken > first
        # when others go on
        postgres.append(OTHER_THREAD, [signal(OTHER)])
        # then the cut stays below, and waits for nobody
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(postgres.cut).result(10) == first
        assert len(postgres.read_between(first, EVERYTHING)) == 1
        writer.rollback()
    # and moves on when the writer has gone
    assert postgres.cut() == all_entries(postgres)[-1].position


def test_an_append_that_has_taken_its_positions_and_not_committed_is_read_once_when_it_does(
    postgres: PostgresStorage,
) -> None:
    # given an append that comes to its very last step and has to wait there
    postgres.append(THREAD, [signal()])
    a, commit_id = postgres.cut(), uuid4()
    with raw(postgres, autocommit=False) as other, ThreadPoolExecutor(1) as pool:
        other.execute(
            "INSERT INTO journal_commits (id, receipt, committed_at) VALUES (%s, '{}', clock_timestamp())", (commit_id,)
        )
        waiting = pool.submit(postgres.commit, [Append(QUEUE_THREAD, [queued("run-3")])], commit_id)
        wait_for_a_lock(postgres)
        # when others commit behind it
        postgres.append(OTHER_THREAD, [signal(OTHER)])
        b = postgres.cut()
        # then no cut comes past it
        assert a == b
        assert postgres.read_between(a, b) == []
        other.rollback()
        assert waiting.result(30) == {QUEUE_THREAD: 1}
    # and once it is done, everything is found between the next two
    c = postgres.cut()
    assert [entry.thread for entry in postgres.read_between(b, c)] == [QUEUE_THREAD, OTHER_THREAD]


def test_a_cut_of_one_schema_does_not_wait_for_writers_of_another(
    postgres: PostgresStorage, open_storage: Opener
) -> None:
    other = open_storage(name=f"{postgres.schema}_other")
    other.upgrade()
    postgres.append(THREAD, [signal()])
    with raw(other, autocommit=False) as writer:
        writer.execute("SELECT announce_positions()")
        writer.execute("SELECT nextval('journal_positions')")
        postgres.append(THREAD, [signal()])
        assert postgres.cut() == all_entries(postgres)[-1].position
        assert other.cut() == 0


# --- Postgres: lost answers and lost servers ------------------------------------------------------------------------


def test_a_commit_whose_answer_was_lost_is_found_again_and_not_written_twice(
    wire: Wire, behind_wire: PostgresStorage, postgres_virtual: PostgresStorage
) -> None:
    # given a connection that breaks after the database has committed, before it says so
    behind_wire.append(THREAD, [signal()])
    wire.lose_answer_to("COMMIT")
    commit_id = uuid4()
    # when something is committed
    receipt = behind_wire.commit([Append(THREAD, [started()], 1), Append(QUEUE_THREAD, [queued()])], commit_id)
    # then the answer is the right one, and everything is there once
    assert wire.lost == 1
    assert receipt == {THREAD: 2, QUEUE_THREAD: 1} == postgres_virtual.find_commit(commit_id)
    assert facts_of(all_entries(postgres_virtual)) == [signal(), started(), queued()]
    assert_views_agree_with_the_journal(postgres_virtual)


def test_an_append_whose_answer_was_lost_is_not_written_twice_even_without_a_commit_id(
    wire: Wire, behind_wire: PostgresStorage, postgres_virtual: PostgresStorage
) -> None:
    behind_wire.append(THREAD, [signal()])
    wire.lose_answer_to("COMMIT")
    assert behind_wire.append(THREAD, [started()]) == 2
    assert wire.lost == 1
    assert facts_of(all_entries(postgres_virtual)) == [signal(), started()]


class _Forgetful(PostgresStorage):
    """A storage whose database answers no commit: the connection is cut behind each of them."""

    def _commit(self, verified: Any, commit_id: UUID) -> dict[str, int]:
        super()._commit(verified, commit_id)
        raise StorageUnavailable("the answer was lost")


def test_a_client_that_never_hears_back_repeats_its_commit_id_later(
    postgres_virtual: PostgresStorage, postgres_url: str
) -> None:
    # given a database that loses both answers
    forgetful = _Forgetful(postgres_url, postgres_virtual.schema)
    commit_id, appends = uuid4(), [Append(THREAD, [signal()], 0)]
    with pytest.raises(StorageUnavailable):
        forgetful.commit(appends, commit_id)
    forgetful.close()
    # when the client asks again, elsewhere and later
    assert postgres_virtual.find_commit(commit_id) == {THREAD: 1}
    assert postgres_virtual.commit(appends, commit_id) == {THREAD: 1}
    # then there is one fact
    assert facts_of(all_entries(postgres_virtual)) == [signal()]


def test_an_append_whose_connection_breaks_in_the_middle_leaves_nothing_and_is_done_again(
    postgres: PostgresStorage,
) -> None:
    # given an append that waits for another one's lock
    postgres.append(THREAD, [signal()])
    with raw(postgres, autocommit=False) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT FROM journal_threads WHERE id = %s FOR UPDATE", (THREAD,))
        waiting = pool.submit(postgres.append, THREAD, [started()])
        wait_for_a_lock(postgres)
        # when the server ends its session
        terminate_backends(postgres)
        wait_for_a_lock(postgres)
        other.rollback()
        # then it is done again, once
        assert waiting.result(30) == 2
    assert facts_of(all_entries(postgres)) == [signal(), started()]
    assert_views_agree_with_the_journal(postgres)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_an_append_that_is_interrupted_tells_so_writes_nothing_and_leaves_the_storage_usable(
    postgres: PostgresStorage, interrupt: type[BaseException]
) -> None:
    # given an append that waits for another one's lock
    postgres.append(THREAD, [signal()])

    def stop(*_: object) -> None:
        raise interrupt

    told: set[str] = set()
    usual = os_signal.signal(os_signal.SIGUSR1, stop)
    try:
        for _ in range(11):  # more often than the pool has connections
            with raw(postgres, autocommit=False) as other, ThreadPoolExecutor(1) as pool:
                other.execute("SELECT FROM journal_threads WHERE id = %s FOR UPDATE", (THREAD,))
                pool.submit(_interrupt_once_it_waits, postgres)
                # when its thread is interrupted, as Ctrl-C, an order to end or a timeout by signal does
                try:
                    postgres.append(THREAD, [started()])
                except BaseException as error:  # noqa: BLE001  whatever it is, it is the finding
                    told.add(type(error).__name__)
    finally:
        os_signal.signal(os_signal.SIGUSR1, usual)
    # then that is what its caller hears, nothing was written, and the storage has all of its connections
    assert told == {interrupt.__name__}
    assert facts_of(all_entries(postgres)) == [signal()]
    assert postgres.append(THREAD, [started()], expected_rev=1) == 2


def _interrupt_once_it_waits(storage: PostgresStorage) -> None:
    wait_for_a_lock(storage)
    os_signal.pthread_kill(threading.main_thread().ident or 0, os_signal.SIGUSR1)


_FIRST_CALLS: dict[str, Callable[[PostgresStorage], object]] = {
    "now": lambda s: s.now(),
    "commit": lambda s: s.commit([Append(OTHER_THREAD, [signal(OTHER)])]),
    "find_commit": lambda s: s.find_commit(uuid4()),
    "read": lambda s: s.read(THREAD),
    "revision": lambda s: s.revision(THREAD),
    "cut": lambda s: s.cut(),
    "read_between": lambda s: s.read_between(0, 9),
    "read_run": lambda s: s.read_run(RUN),
    "put_checkpoint": lambda s: s.put_checkpoint(THREAD, 1, "[1]"),
    "get_checkpoint": lambda s: s.get_checkpoint(THREAD),
    "delete_checkpoint": lambda s: s.delete_checkpoint(THREAD),
    "delete_thread": lambda s: s.delete_thread(OTHER_THREAD),
    "check": lambda s: s.check(),
    "upgrade": lambda s: s.upgrade(),
}


def test_whatever_is_called_first_after_the_server_cut_all_connections_works(postgres: PostgresStorage) -> None:
    postgres.append(THREAD, [signal()])
    failed: dict[str, str] = {}
    for name, call in _FIRST_CALLS.items():
        # given several pooled connections that the server has cut
        at_once([lambda: postgres.rows("SELECT pg_sleep(0.02)")] * 3)
        assert terminate_backends(postgres) >= 2
        # when anything is asked
        try:
            call(postgres)
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            failed[name] = f"{type(error).__name__}: {error}"
    # then it works as if nothing had been
    assert failed == {}


def test_a_new_storage_on_the_same_schema_sees_everything(postgres: PostgresStorage, open_storage: Opener) -> None:
    # given a journal with something of everything
    commit_id = uuid4()
    postgres.commit([Append(THREAD, [signal(), started(), planned()]), Append(QUEUE_THREAD, [scheduled()])], commit_id)
    postgres.put_checkpoint(THREAD, 2, "[2]")
    before, cut = all_entries(postgres), postgres.cut()
    postgres.close()
    # when somebody else opens it
    other = open_storage()
    # then all of it is there
    assert all_entries(other) == before
    assert other.cut() == cut
    assert other.find_commit(commit_id) == {THREAD: 3, QUEUE_THREAD: 1}
    assert other.get_checkpoint(THREAD) == Checkpoint(THREAD, 2, "[2]")
    assert other.append(THREAD, [terminal()], expected_rev=3) == 4
    assert postgres.revision(THREAD) == 4


def test_a_journal_survives_its_server_and_so_does_the_storage_that_was_open_on_it(
    own_server: EmbeddedPostgres, open_storage: Opener
) -> None:
    # given a storage that has written to a server
    storage = open_storage(own_server.ensure_running())
    storage.upgrade()
    storage.append(THREAD, [signal(), started()])
    before, cut = all_entries(storage), storage.cut()
    # when the server stops
    own_server.stop()
    with pytest.raises(StorageUnavailable):
        storage.append(THREAD, [planned()])
    with pytest.raises(StorageUnavailable):
        storage.read(THREAD)
    with pytest.raises(StorageUnavailable):
        storage.check()
    # and starts again
    own_server.ensure_running()
    # then the same storage goes on by itself, and nothing is lost or doubled
    assert all_entries(storage) == before
    assert storage.cut() == cut
    assert storage.append(THREAD, [planned()], expected_rev=2) == 3
    assert all_entries(storage)[-1].position > cut
    assert_views_agree_with_the_journal(storage)


def test_a_failed_transaction_gives_its_connection_back_clean(postgres: PostgresStorage) -> None:
    for _ in range(20):
        with pytest.raises(Conflict):
            postgres.append(THREAD, [signal()], expected_rev=9)
    with raw(postgres) as connection:
        held = connection.execute(
            "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
            "WHERE application_name = 'squid_dagster' AND l.locktype = 'advisory'"
        ).fetchone()
        open_ = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'squid_dagster' AND state <> 'idle'"
        ).fetchone()
    assert held == open_ == (0,)
    assert postgres.append(THREAD, [signal()]) == 1


def test_an_entry_that_was_changed_behind_our_back_is_surfaced_and_not_believed(postgres: PostgresStorage) -> None:
    # given an entry that somebody with a superuser's means has altered
    postgres.append(THREAD, [signal(payload={"amount": 5}), started()])
    with raw(postgres) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER ALL")
        connection.execute("UPDATE journal_entries SET data = replace(data::text, '5', '6')::json WHERE seq = 1")
        connection.execute("ALTER TABLE journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only")
    # when it is read
    changed, untouched = postgres.read(THREAD)
    # then it says so, and the others are as they were
    assert "digest" in getattr(changed.fact, "reason", "")
    assert untouched.fact == started()


@given(history=histories(), size=st.integers(1, 6))
@settings(max_examples=50, phases=_WITHOUT_SHRINKING)
def test_views_equal_the_fold_of_the_journal_after_any_history(
    postgres_shared: PostgresStorage, history: list[Fact], size: int
) -> None:
    # given any history, about runs and queues of its own
    prefix = f"history{next(_numbers)}"
    mine = [_renamed(fact, prefix) for fact in history]
    # when it is committed in pieces of any size
    for start in range(0, len(mine), size):
        put(postgres_shared, *mine[start : start + size])
    # then the rows are what a fold of the journal gives
    runs = {run for fact in mine if (run := getattr(fact, "run_id", None)) is not None}
    assert_views_agree_with_the_journal(postgres_shared, sorted(runs))


def _renamed(fact: Fact, prefix: str) -> Fact:
    """The same fact about another run and another queue."""
    text = to_json(fact)
    for name in ("run-1", "run-2", "run-3"):
        text = text.replace(name, f"{prefix}-{name[-1]}")
    for queue in ("default", "slow"):
        text = text.replace(f'"queue":"{queue}"', f'"queue":"{prefix}-{queue}"')
    renamed: Fact = type(fact).model_validate_json(text)
    return renamed


def test_a_transaction_that_is_left_without_writing_leaves_nothing(postgres: PostgresStorage) -> None:
    from squid_dagster.journal.postgres.units import Touched

    with postgres.transaction() as transaction:
        assert isinstance(transaction, Transaction)
        transaction.lock(Touched({RUN}))
    assert all_entries(postgres) == []
    assert postgres.append(THREAD, [signal()], expected_rev=0) == 1


def test_a_resumed_queue_is_no_longer_paused_in_the_views(postgres: PostgresStorage) -> None:
    put(postgres, queue_paused())
    put(postgres, queue_resumed())
    put(postgres, queue_resumed("slow"), queue_paused("slow"))
    with raw(postgres) as connection:
        found = connection.execute("SELECT queue, paused FROM queues ORDER BY queue").fetchall()
    assert found == [("default", False), ("slow", True)]
