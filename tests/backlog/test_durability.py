"""Crashes, lost answers and lost tables: a change is whole or it never was, and facts bring cards back."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from squid_dagster.backlog import Backlog, Card
from squid_dagster.journal import MemoryStorage, PostgresStorage, verify
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.postgres.schema.names import lock_number
from squid_dagster.protocol import BACKLOG_THREAD, BacklogProjection, CardClaimed, CardCompleted, CardCreated
from squid_dagster.protocol.errors import InvalidArgument, StaleClaim, StorageUnavailable, ViewsMissing
from squid_dagster.testing.fault_injection import Crashed, InjectedStorage, Plan
from tests.backlog.contract import MINUTE, Board
from tests.facts import T0, token_hash
from tests.journal.access import Wire, all_entries, at_once, plant, raw, wait_for_a_lock

Step = Callable[[Backlog, dict[str, Card]], object]


def _claim(backlog: Backlog, held: dict[str, Card]) -> None:
    card = backlog.claim("w", ttl=MINUTE)
    assert card is not None
    held[card.id] = card


STEPS: dict[str, Step] = {
    "create": lambda backlog, _: backlog.create("C", "c", depends_on=["A"]),
    "link": lambda backlog, _: backlog.link("B", "A"),
    "claim": _claim,
    "renew": lambda backlog, held: backlog.renew("A", token=held["A"].claim_token),
    "fail": lambda backlog, held: backlog.fail("A", token=held["A"].claim_token),
    "block": lambda backlog, held: backlog.block("A", token=held["A"].claim_token),
    "complete": lambda backlog, held: backlog.complete("A", token=held["A"].claim_token),
    "reclaim": lambda backlog, _: backlog.reclaim("A"),
}
HOLDING = {"renew", "fail", "block", "complete", "reclaim"}


def _prepare(backlog: Backlog, name: str) -> dict[str, Card]:
    held: dict[str, Card] = {}
    backlog.create("A", "a", priority=1)
    backlog.create("B", "b")
    if name in HOLDING:
        _claim(backlog, held)
    return held


@pytest.mark.parametrize("name", STEPS)
def test_a_crash_beside_an_append_leaves_a_whole_change_or_none(name: str) -> None:
    for crash in ("crash_before", "crash_after"):
        # given a storage that crashes right before or right after the change
        inner = MemoryStorage(VirtualClock(T0))
        held = _prepare(Backlog(inner), name)
        before = Backlog(inner).list()
        storage = InjectedStorage(inner, Plan(**{crash: 1}))  # type: ignore[arg-type]
        with pytest.raises(Crashed):
            STEPS[name](Backlog(storage), held)
        # when another process looks, then cards and facts agree: all of it, or nothing
        after = Backlog(inner)
        assert (after.list() == before) is (crash == "crash_before")
        assert after.differences() == []


@pytest.fixture
def wire(postgres_url: str) -> Iterator[Wire]:
    """A wire to the server that can lose an answer."""
    made = Wire(postgres_url)
    yield made
    made.close()


@pytest.mark.parametrize("name", [*STEPS, "create by key"])
def test_a_lost_answer_is_asked_for_again_and_nothing_happens_twice(
    name: str, wire: Wire, postgres_board: Board
) -> None:
    # given a change whose answer gets lost after the server has committed it
    steps: dict[str, Step] = {**STEPS}
    steps["create by key"] = lambda backlog, _: backlog.create("C", "c", idempotency_key="k")
    held = _prepare(postgres_board.backlog, name)
    before = postgres_board.revision()
    storage = PostgresStorage(wire.url, _schema(postgres_board), clock=postgres_board.clock)
    storage.now()
    wire.lose_answer_to("claim_card" if name == "claim" else "append_entries")
    # when it is made, then it is made once
    steps[name](Backlog(storage), held)
    storage.close()
    assert wire.lost == 1
    assert postgres_board.revision() == before + 1
    postgres_board.check()


def test_a_lost_answer_to_reclaim_leaves_no_row_without_its_fact(wire: Wire, postgres_board: Board) -> None:
    _prepare(postgres_board.backlog, "renew")
    postgres_board.later(seconds=60)
    storage = PostgresStorage(wire.url, _schema(postgres_board), clock=postgres_board.clock)
    storage.now()
    wire.lose_answer_to("release_cards")
    Backlog(storage).reclaim()
    storage.close()
    assert wire.lost == 1
    postgres_board.check()


def _schema(board: Board) -> str:
    assert isinstance(board.storage, PostgresStorage)
    return board.storage.schema


def _play(board: Board) -> None:
    board.cards("A", "B", idempotency_key=None)
    board.cards("C", depends_on=["A", "B"], acceptance={"n": 1e300}, body="ü 🦑")
    board.backlog.complete("A", token=board.claim(ttl=MINUTE).claim_token)
    board.backlog.fail("B", token=board.claim().claim_token, retry_after=MINUTE, error="no")
    board.backlog.create("D", "d", max_attempts=1)
    board.claim(ttl=timedelta(seconds=5))
    board.later(seconds=5)
    board.backlog.reclaim()


def test_the_table_is_rebuilt_equal_to_the_live_one(postgres_board: Board) -> None:
    _play(postgres_board)
    before = postgres_board.backlog.list()
    storage = postgres_board.storage
    assert isinstance(storage, PostgresStorage)
    with raw(storage) as connection:
        indexes = (
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'backlog' AND schemaname = %s ORDER BY 1"
        )
        made = connection.execute(indexes, (storage.schema,)).fetchall()
        # given cards that somebody changed by hand, one that no fact explains, and one that is missing
        connection.execute("UPDATE backlog SET priority = 7, open_dependencies = 0 WHERE id = 'C'")
        connection.execute("DELETE FROM backlog WHERE id = 'A'")
        connection.execute("UPDATE backlog SET id = 'X' WHERE id = 'B'")
    assert [each.split(": ") for each in postgres_board.backlog.differences()] == [
        ["card A", "a row is missing"],
        ["card B", "a row is missing"],
        ["card C", "other values in open_dependencies, priority"],
        ["card X", "a row that no fact explains"],
    ]
    # when the table is made anew, then all is well, indexes included
    rebuilt = postgres_board.backlog.rebuild()
    assert (rebuilt.cards, rebuilt.facts, rebuilt.anomalies) == (4, postgres_board.revision(), 0)
    assert postgres_board.backlog.list() == before
    with raw(storage) as connection:
        assert connection.execute(indexes, (storage.schema,)).fetchall() == made
    postgres_board.check()
    assert verify(storage) == []


def test_a_table_that_is_gone_stops_everything_until_it_is_rebuilt(postgres_board: Board) -> None:
    _play(postgres_board)
    before, revision = postgres_board.backlog.list(), postgres_board.revision()
    storage = postgres_board.storage
    assert isinstance(storage, PostgresStorage)
    with raw(storage) as connection:
        connection.execute("DROP TABLE backlog")
    commands: list[Callable[[], Any]] = [
        lambda: postgres_board.backlog.claim("w"),
        lambda: postgres_board.backlog.create("E", "e"),
        lambda: postgres_board.backlog.complete("C"),
        postgres_board.backlog.list,
        postgres_board.backlog.stats,
        postgres_board.backlog.differences,
        postgres_board.backlog.reclaim,
    ]
    for command in commands:
        with pytest.raises(ViewsMissing, match="squid backlog rebuild"):
            command()
    assert postgres_board.revision() == revision
    postgres_board.backlog.rebuild()
    assert postgres_board.backlog.list() == before


def test_rebuilding_while_others_work_loses_nothing(postgres_board: Board) -> None:
    postgres_board.cards(*(f"c{number}" for number in range(40)))

    def work() -> int:
        backlog, done = Backlog(postgres_board.storage), 0
        while (card := backlog.claim("w")) is not None:
            backlog.complete(card.id, token=card.claim_token)
            done += 1
        return done

    def rebuild() -> int:
        for _ in range(3):
            Backlog(postgres_board.storage).rebuild()
        return 0

    assert sum(at_once([work, work, rebuild])) == 40
    assert postgres_board.backlog.stats().counts["done"] == 40
    postgres_board.check()


def test_only_one_rebuild_is_under_way_at_a_time(postgres_board: Board) -> None:
    storage = postgres_board.storage
    assert isinstance(storage, PostgresStorage)
    from squid_dagster.journal.postgres.schema.names import lock_number

    with raw(storage) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (lock_number(storage.schema, "rebuild cards"),))
        with pytest.raises(StorageUnavailable, match="under way"):
            postgres_board.backlog.rebuild()


def _wait_for_a_closed_gate(storage: PostgresStorage) -> None:
    """Return while a rebuild of the cards lets writers wait."""
    number = lock_number(storage.schema, "cards")
    deadline = time.monotonic() + 30
    with raw(storage) as connection:
        while not connection.execute(
            """SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock' AND granted
                AND (classid::bigint << 32 | objid::bigint) = %s""",
            (number,),
        ).rowcount:
            assert time.monotonic() < deadline, "no rebuild closes the gate"


def test_a_rebuild_that_has_to_wait_for_a_reader_loses_nothing_that_came_meanwhile(postgres_board: Board) -> None:
    storage, backlog = postgres_board.storage, postgres_board.backlog
    assert isinstance(storage, PostgresStorage)
    backlog.create("A", "a")
    with ThreadPoolExecutor(1) as pool, raw(storage, autocommit=False) as reader:
        # given somebody who reads for so long that the table cannot be swapped in at the first tries
        reader.execute("SELECT FROM backlog")
        rebuilt = pool.submit(Backlog(storage).rebuild)
        for card_id in ("B", "C"):
            _wait_for_a_closed_gate(storage)
            # when cards come between two tries
            backlog.create(card_id, card_id.lower())
        _wait_for_a_closed_gate(storage)
        reader.rollback()
        # then the new table has them all
        assert rebuilt.result(60).cards == 3
    assert {card.id for card in backlog.list()} == {"A", "B", "C"}
    postgres_board.check()


def test_facts_that_somebody_appends_past_the_backlog_are_refused(postgres_board: Board) -> None:
    with pytest.raises(InvalidArgument, match="by a Backlog"):
        postgres_board.storage.append(BACKLOG_THREAD, [CardCreated(card_id="A", title="a", occurred_at=T0)])
    assert postgres_board.revision() == 0


def test_facts_that_got_in_past_the_backlog_are_taken_in_by_a_rebuild(postgres_board: Board) -> None:
    assert isinstance(postgres_board.storage, PostgresStorage)
    plant(postgres_board.storage, [CardCreated(card_id="A", title="a", occurred_at=T0)])
    assert postgres_board.backlog.differences() == ["card A: a row is missing"]
    postgres_board.backlog.rebuild()
    assert postgres_board.claim().id == "A"


def test_a_claim_that_is_repeated_while_the_first_still_waits_gives_the_card(
    postgres_board: Board, postgres_url: str
) -> None:
    # given a claim that waits in the server for somebody else
    storage, wire = postgres_board.storage, Wire(postgres_url)
    assert isinstance(storage, PostgresStorage)
    postgres_board.cards("A")
    far = PostgresStorage(wire.url, storage.schema, clock=postgres_board.clock)
    try:
        with ThreadPoolExecutor(1) as pool, raw(storage, autocommit=False) as other:
            other.execute("SELECT FROM journal_threads WHERE id = %s FOR UPDATE", (BACKLOG_THREAD,))
            claimed = pool.submit(Backlog(far).claim, "w")
            wait_for_a_lock(storage)
            # when the connection breaks, and the claim is made again before the first is through
            wire.cut()
            wait_for_a_lock(storage, 2)
            other.rollback()
            found = claimed.result(60)
        # then the caller has the card of the first one, and its token is good
        assert found is not None
        assert (found.id, found.attempts) == ("A", 1)
        postgres_board.backlog.complete("A", token=found.claim_token)
        postgres_board.check()
    finally:
        far.close()
        wire.close()


def test_a_card_that_is_created_again_while_the_first_try_still_waits_is_the_card_of_that_try(
    postgres_board: Board, postgres_url: str
) -> None:
    # given a card in the making, whose facts wait in the server for somebody else
    storage, wire = postgres_board.storage, Wire(postgres_url)
    assert isinstance(storage, PostgresStorage)
    postgres_board.cards("A")
    far = PostgresStorage(wire.url, storage.schema, clock=postgres_board.clock)
    try:
        with ThreadPoolExecutor(1) as pool, raw(storage, autocommit=False) as other:
            other.execute("SELECT FROM journal_threads WHERE id = %s FOR UPDATE", (BACKLOG_THREAD,))
            created = pool.submit(Backlog(far).create, "B", "b")
            wait_for_a_lock(storage)
            # when the connection breaks, and it is made again, later, before the first try is through
            postgres_board.later(seconds=1)
            wire.cut()
            wait_for_a_lock(storage, 2)
            other.rollback()
            # then the answer is what was written
            assert created.result(60) == postgres_board.backlog.get("B")
        postgres_board.check()
    finally:
        far.close()
        wire.close()


def test_a_claim_that_is_repeated_gives_its_card_as_long_as_it_is_held(postgres_board: Board) -> None:
    storage = postgres_board.storage
    assert isinstance(storage, PostgresStorage)
    postgres_board.cards("A", "B")
    commit_id, hashed = uuid4(), token_hash("mine")

    def repeat() -> Any:
        values = commit_id, hashed, postgres_board.clock.now()
        text = "SELECT {schema}.claim_card(%s, 'w', 60, %s, NULL, NULL, %s)"
        ((answer,),) = storage.rows(text, *values)
        return answer["card"] and answer["card"]["id"]

    assert [repeat(), repeat()] == ["A", "A"]
    postgres_board.later(seconds=60)
    assert postgres_board.claim().id == "A"
    # now it is another's
    assert repeat() is None
    postgres_board.check()


def test_a_commit_of_cards_that_is_there_is_not_written_again(postgres_board: Board) -> None:
    storage, commit_id = postgres_board.storage, uuid4()
    assert isinstance(storage, PostgresStorage)
    fact = {"type": "card_unblocked", "at": "2026-01-01T00:00:00Z", "data": {"card_id": "A"}}
    with raw(storage, autocommit=False) as connection:
        append = "SELECT append_cards(%s, %s::json)", (commit_id, json.dumps([fact]))
        connection.execute(*append)
        with pytest.raises(psycopg.Error) as refused:
            connection.execute(*append)
    assert refused.value.sqlstate == "SQ002"


def test_facts_that_break_a_rule_are_noted_and_not_followed(board: Board) -> None:
    board.cards("A", "B")
    board.backlog.link("B", "A")
    claim: dict[str, Any] = {"claim_owner": "x", "claim_ttl_seconds": 9, "claim_token_hash": token_hash("x")}
    now = board.clock.now()
    storage = MemoryStorage(board.clock)
    storage.append(BACKLOG_THREAD, [entry.fact for entry in board.storage.read(BACKLOG_THREAD)])  # type: ignore[misc]
    storage.append(
        BACKLOG_THREAD,
        [
            CardClaimed(card_id="B", attempt=1, occurred_at=now, **claim),
            CardClaimed(card_id="A", attempt=7, occurred_at=now, **claim),
            CardCompleted(card_id="A", fence="token", claim_token_hash=token_hash("x"), occurred_at=now),
            CardCompleted(card_id="X", fence="unfenced", occurred_at=now),
            CardCompleted(card_id="A", fence="unfenced", occurred_at=T0 - MINUTE),
        ],
    )
    told = BacklogProjection.fold(storage.read(BACKLOG_THREAD))
    reasons = [anomaly.reason.value for anomaly in told.anomalies]
    assert reasons == ["open_dependency", "wrong_attempt", "stale_claim", "unknown_card", "out_of_order"]
    assert told.cards == {card.id: card for card in board.backlog.list()}


def test_an_entry_that_was_changed_is_surfaced(postgres_board: Board) -> None:
    postgres_board.cards("A", "B")
    storage = postgres_board.storage
    assert isinstance(storage, PostgresStorage)
    with raw(storage) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER journal_entries_append_only")
        connection.execute(
            """UPDATE journal_entries SET data = '{"card_id":"B","title":"x"}' WHERE thread = %s AND seq = 2""",
            (BACKLOG_THREAD,),
        )
        connection.execute("ALTER TABLE journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only")
    assert postgres_board.backlog.differences() == ["card B: a row that no fact explains"]
    assert [finding.kind.value for finding in verify(storage)] == ["corrupt_entry"]


def test_removing_the_thread_removes_the_cards(postgres_board: Board) -> None:
    postgres_board.cards("A")
    postgres_board.storage.delete_thread(BACKLOG_THREAD)
    assert postgres_board.backlog.list() == []
    assert postgres_board.backlog.create("A", "another").title == "another"


def test_every_change_is_a_fact_among_all_others(board: Board) -> None:
    _play(board)
    entries = all_entries(board.storage)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert {entry.thread for entry in entries} == {BACKLOG_THREAD}
    assert board.storage.cut() >= entries[-1].position


def test_a_token_outlives_a_rebuild(board: Board) -> None:
    board.cards("A")
    held = board.claim(ttl=MINUTE)
    board.backlog.rebuild()
    with pytest.raises(StaleClaim):
        board.backlog.complete("A", token="another")
    assert board.backlog.complete("A", token=held.claim_token).status == "done"
