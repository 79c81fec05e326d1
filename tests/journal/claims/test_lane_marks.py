"""Claims beside an old snapshot: they begin at marks, agree with claims that scan everything, and starve none."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from squid_dagster.journal import Completed, PostgresDispatchStore, PostgresStorage, Settlement
from squid_dagster.journal.postgres.dispatch import lane_marks
from squid_dagster.journal.postgres.schema.functions import sources
from squid_dagster.journal.postgres.schema.names import fill_in
from squid_dagster.protocol.folds.attempt import Attempt, claim_order, definition_key
from tests.facts import QUEUE
from tests.journal.access import assert_views_agree_with_the_journal, at_once, raw
from tests.journal.dispatch_fixture import DispatchFixture, claim, keys, work

MANY = 700
TOLERATED = "v_tolerated CONSTANT integer := 1000;"


@contextmanager
def old_snapshot(storage: PostgresStorage) -> Iterator[None]:
    """Keep a snapshot open, so that nothing that becomes dead from now on is cleaned up."""
    with raw(storage, autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM attempts")
        yield


class MarkClock:
    """The time by which marks are valid; it stands still unless moved."""

    now = 0.0


@pytest.fixture
def mark_clock(monkeypatch: pytest.MonkeyPatch) -> MarkClock:
    """Marks that stay valid as long as they may, and by a time that is moved by hand."""
    mark_clock = MarkClock()
    monkeypatch.setattr(lane_marks, "SHARE", 1e9)
    monkeypatch.setattr(lane_marks, "monotonic", lambda: mark_clock.now)
    return mark_clock


@pytest.fixture
def marking(postgres_dispatch: DispatchFixture, mark_clock: MarkClock) -> DispatchFixture:
    """A journal in which every claim makes marks, however few dead entries it has read."""
    storage = postgres_dispatch.storage
    assert isinstance(storage, PostgresStorage)
    source = sources()["claim_attempts"]
    assert TOLERATED in source
    with raw(storage) as connection:
        connection.execute(fill_in(source.replace(TOLERATED, TOLERATED.replace("1000", "-1")), storage.schema))
    return postgres_dispatch


Marks = dict[tuple[str, int], tuple[datetime, int]]


def marks_of(dispatch: DispatchFixture) -> Marks:
    """Return the marks of the lanes for the next claim; none if it will scan everything."""
    assert isinstance(dispatch.store, PostgresDispatchStore)
    lanes = dispatch.store._marks.of(QUEUE, None)
    if lanes.text() is None:
        return {}
    return {lane: (datetime.fromisoformat(mark["due_at"]), mark["position"]) for lane, mark in lanes._lanes.items()}


def finish(dispatch: DispatchFixture, name: str, count: int) -> None:
    """Complete so many attempts."""
    dispatch.put(*(work(f"{name}-{n}", visible_at=dispatch.clock.now()) for n in range(count)))
    claims = claim(dispatch, count)
    assert len(claims) == count
    dispatch.store.settle([Settlement(one.ref, Completed(None)) for one in claims])


def test_without_dead_entries_there_are_no_marks(postgres_dispatch: DispatchFixture) -> None:
    finish(postgres_dispatch, "done", 20)
    postgres_dispatch.put(work("a"))
    assert keys(claim(postgres_dispatch)) == ["a"]
    assert marks_of(postgres_dispatch) == {}


@pytest.mark.usefixtures("mark_clock")
def test_behind_many_dead_entries_claims_begin_where_the_lanes_do(postgres_dispatch: DispatchFixture) -> None:
    dispatch = postgres_dispatch
    assert isinstance(dispatch.storage, PostgresStorage)
    with old_snapshot(dispatch.storage):
        finish(dispatch, "a", MANY)
        finish(dispatch, "b", MANY)
        dispatch.wait(10)
        dispatch.put(*(work(f"run-{n}", visible_at=dispatch.clock.now()) for n in range(20)))
        assert len(claim(dispatch)) == 1
        assert len(marks_of(dispatch)) == 1
        dead = _dead_read(dispatch.storage, dispatch, 10)
    assert dead < 200, "of ten times 1,400"


def _dead_read(storage: PostgresStorage, dispatch: DispatchFixture, claims: int) -> int:
    """Claim so often; return how many index entries without a row all sessions read for it."""
    query = """SELECT pg_stat_force_next_flush(), idx_tup_read - idx_tup_fetch FROM pg_stat_user_indexes
        WHERE indexrelname = 'attempts_due' AND schemaname = %s"""

    def read() -> int:
        storage.rows("SELECT pg_stat_force_next_flush()")
        return int(storage.rows(query, storage.schema)[0][1])

    before = read()
    for _ in range(claims):
        assert len(claim(dispatch)) == 1
    return read() - before


def test_what_becomes_due_behind_a_mark_waits_for_a_bounded_time(
    marking: DispatchFixture, mark_clock: MarkClock
) -> None:
    # given marks that have moved on
    marking.wait(100)
    marking.put(*(work(f"run-{n}", visible_at=marking.clock.now()) for n in range(3)))
    marking.wait(10)
    assert keys(claim(marking)) == ["run-0"]
    # when one becomes due in the past, and one in a lane that was empty until now
    marking.put(work("late"), work("urgent", priority=9))
    # then they wait for a claim that looks at everything
    assert keys(claim(marking, 5)) == ["run-1", "run-2"]
    assert claim(marking, 5) == []
    mark_clock.now += lane_marks.MOST_SECONDS
    assert keys(claim(marking, 5)) == ["urgent", "late"]
    assert claim(marking) == []


def test_what_became_due_behind_a_mark_is_claimed_in_its_order_once_the_time_is_up(
    marking: DispatchFixture, mark_clock: MarkClock
) -> None:
    marking.wait(100)
    marking.put(*(work(f"run-{n}", visible_at=marking.clock.now()) for n in range(3)))
    marking.wait(10)
    assert keys(claim(marking)) == ["run-0"]
    marking.put(work("late"), work("urgent", priority=9))
    mark_clock.now += lane_marks.MOST_SECONDS
    assert keys(claim(marking, 3)) == ["urgent", "late", "run-1"]


def test_a_lane_of_a_definition_that_is_asked_for_is_looked_at_although_it_was_empty(marking: DispatchFixture) -> None:
    marking.wait(100)
    both: dict[str, Any] = {"definitions": [definition_key("a", None), definition_key("b", None)]}
    marking.put(work("run-1", workflow="a", priority=5))
    assert keys(claim(marking, **both)) == ["run-1"]
    for number, (workflow, priority) in enumerate([("b", 0), ("b", 5), ("a", 0), ("a", 5)]):
        now = marking.clock.now()
        marking.put(work(f"more-{number}", workflow=workflow, priority=priority, visible_at=now))
        assert keys(claim(marking, **both)) == [f"more-{number}"]


def test_a_commit_that_comes_a_moment_late_is_not_behind_a_mark(marking: DispatchFixture) -> None:
    marking.wait(100)
    marking.put(work("first", visible_at=marking.clock.now() - timedelta(milliseconds=100)))
    assert keys(claim(marking)) == ["first"]
    marking.put(work("later", visible_at=marking.clock.now()))
    marking.put(work("late", visible_at=marking.clock.now() - timedelta(milliseconds=200)))
    assert marks_of(marking)
    assert keys(claim(marking, 2)) == ["late", "later"]


def test_an_attempt_that_another_claim_holds_locked_moves_no_mark(marking: DispatchFixture) -> None:
    assert isinstance(marking.storage, PostgresStorage)
    marking.put(*(work(f"run-{n}") for n in range(4)))
    marking.wait(10)  # or marks stay behind all of them, for commits under way
    assert keys(claim(marking)) == ["run-0"]
    with raw(marking.storage, autocommit=False) as other:
        other.execute("SELECT FROM attempts WHERE run_id = 'run-1' FOR UPDATE")
        assert keys(claim(marking)) == ["run-2"]
    assert marks_of(marking)
    assert keys(claim(marking, 2)) == ["run-1", "run-3"]


def test_marks_count_for_one_queue_and_one_set_of_definitions(marking: DispatchFixture) -> None:
    first = work("a-1", workflow="a")
    marking.put(first, work("a-2", workflow="a"), work("b", workflow="b"), work("other", workflow="c", queue="other"))
    # given marks of both lanes of a queue
    assert keys(claim(marking)) == ["a-1"]
    assert len(marks_of(marking)) == 2
    # then they are none of a worker that can execute one of them, nor of another queue
    known = [definition_key("a", first.definition_fingerprint)]
    assert keys(claim(marking, 5, definitions=known)) == ["a-2"]
    assert keys(marking.store.claim("other", "worker", limit=5)) == ["other"]


def test_many_claimers_with_marks_of_their_own_take_everything_once(marking: DispatchFixture) -> None:
    storage = marking.storage
    assert isinstance(storage, PostgresStorage)
    marking.put(*(work(f"run-{n:03}", priority=n % 3) for n in range(120)))

    def take() -> list[str]:
        store, taken = PostgresDispatchStore(storage), list[str]()
        while claims := store.claim(QUEUE, "worker", limit=3):
            taken += keys(claims)
        return taken + keys(PostgresDispatchStore(storage).claim(QUEUE, "worker", limit=100))

    assert sorted(run for taken in at_once([take] * 4) for run in taken) == [f"run-{n:03}" for n in range(120)]


@pytest.mark.parametrize("seed", range(12))
def test_claims_by_marks_agree_with_claims_that_look_at_everything_but_for_what_lies_behind(
    marking: DispatchFixture, mark_clock: MarkClock, seed: int
) -> None:
    chance = random.Random(seed)
    store, storage = marking.store, marking.storage
    assert isinstance(store, PostgresDispatchStore)
    assert isinstance(storage, PostgresStorage)
    held, number, marked = [], 0, 0
    for _ in range(60):
        marking.wait(chance.choice([0, 0.1, 5, 40]))
        mark_clock.now += chance.choice([0, 0, 0, 0, 1, lane_marks.MOST_SECONDS])
        match chance.choice(["start", "start", "claim", "claim", "claim", "release", "complete"]):
            case "start":
                for _ in range(chance.randrange(1, 6)):
                    number += 1
                    due = marking.clock.now() + timedelta(seconds=chance.choice([-50, -0.2, 0, 0, 0, 30]))
                    workflow, priority = chance.choice(["a", "b"]), chance.choice([0, 0, 5])
                    marking.put(work(f"run-{number:03}", visible_at=due, workflow=workflow, priority=priority))
            case "claim":
                limit, marks = chance.randrange(1, 6), marks_of(marking)
                marked += bool(marks)
                due_now = _claimable(store)
                ahead = [one for one in due_now if not marks or _is_ahead(one, marks)]
                claims = store.claim(QUEUE, "worker", limit=limit, lease=timedelta(seconds=30))
                assert keys(claims) == [one.run_id for one in ahead[:limit]]
                held += claims
            case "release" if held:
                store.release([held.pop(chance.randrange(len(held))).ref])
            case "complete" if held:
                store.settle([Settlement(held.pop(chance.randrange(len(held))).ref, Completed(None))])
    assert marked > 5
    assert_views_agree_with_the_journal(storage)


def _claimable(store: PostgresDispatchStore) -> list[Attempt]:
    attempts = [*store.visible(QUEUE), *store.expired(QUEUE)]
    return sorted((one for one in attempts if one.deliveries < one.max_deliveries), key=claim_order)


def _is_ahead(one: Attempt, marks: Marks) -> bool:
    mark = marks.get((definition_key(one.workflow, one.definition_fingerprint), -one.priority))
    assert one.due_at is not None
    return mark is not None and (one.due_at, one.position) >= mark
