"""The table of cards is rebuilt from the facts, which are what counts."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from squid_dagster.backlog import Backlog
from squid_dagster.journal import MemoryStorage, PostgresStorage, verify
from squid_dagster.journal.postgres.schema.names import lock_number
from squid_dagster.protocol import BACKLOG_THREAD, BacklogProjection, CardClaimed, CardCompleted, CardCreated
from squid_dagster.protocol.errors import InvalidArgument, StaleClaim, StorageUnavailable, ViewsMissing
from tests.backlog.contract import MINUTE, BacklogFixture, write_history
from tests.facts import T0, token_hash
from tests.journal.access import at_once, plant, raw


def test_the_table_is_rebuilt_equal_to_the_live_one(postgres_fixture: BacklogFixture) -> None:
    write_history(postgres_fixture)
    before = postgres_fixture.backlog.list()
    storage = postgres_fixture.storage
    assert isinstance(storage, PostgresStorage)
    with raw(storage) as connection:
        indexes = (
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'backlog' AND schemaname = %s ORDER BY 1"
        )
        made = connection.execute(indexes, (storage.schema,)).fetchall()
        # given cards that were changed by hand, one that no fact explains, and one that is missing
        connection.execute("UPDATE backlog SET priority = 7, open_dependencies = 0 WHERE id = 'C'")
        connection.execute("DELETE FROM backlog WHERE id = 'A'")
        connection.execute("UPDATE backlog SET id = 'X' WHERE id = 'B'")
    assert [difference.split(": ") for difference in postgres_fixture.backlog.differences()] == [
        ["card A", "a row is missing"],
        ["card B", "a row is missing"],
        ["card C", "other values in open_dependencies, priority"],
        ["card X", "a row that no fact explains"],
    ]
    # when the table is made anew, then all is well, indexes included
    rebuilt = postgres_fixture.backlog.rebuild()
    assert (rebuilt.cards, rebuilt.facts, rebuilt.anomalies) == (4, postgres_fixture.revision(), 0)
    assert postgres_fixture.backlog.list() == before
    with raw(storage) as connection:
        assert connection.execute(indexes, (storage.schema,)).fetchall() == made
    postgres_fixture.check()
    assert verify(storage) == []


def test_a_table_that_is_gone_stops_everything_until_it_is_rebuilt(postgres_fixture: BacklogFixture) -> None:
    write_history(postgres_fixture)
    before, revision = postgres_fixture.backlog.list(), postgres_fixture.revision()
    storage = postgres_fixture.storage
    assert isinstance(storage, PostgresStorage)
    with raw(storage) as connection:
        connection.execute("DROP TABLE backlog")
    commands: list[Callable[[], Any]] = [
        lambda: postgres_fixture.backlog.claim("w"),
        lambda: postgres_fixture.backlog.create("E", "e"),
        lambda: postgres_fixture.backlog.complete("C"),
        postgres_fixture.backlog.list,
        postgres_fixture.backlog.stats,
        postgres_fixture.backlog.differences,
        postgres_fixture.backlog.reclaim,
    ]
    for command in commands:
        with pytest.raises(ViewsMissing, match="squid backlog rebuild"):
            command()
    assert postgres_fixture.revision() == revision
    postgres_fixture.backlog.rebuild()
    assert postgres_fixture.backlog.list() == before


def test_rebuilding_while_others_work_loses_nothing(postgres_fixture: BacklogFixture) -> None:
    postgres_fixture.cards(*(f"c{number}" for number in range(40)))

    def work() -> int:
        backlog, done = Backlog(postgres_fixture.storage), 0
        while (card := backlog.claim("w")) is not None:
            backlog.complete(card.id, token=card.claim_token)
            done += 1
        return done

    def rebuild() -> int:
        for _ in range(3):
            Backlog(postgres_fixture.storage).rebuild()
        return 0

    assert sum(at_once([work, work, rebuild])) == 40
    assert postgres_fixture.backlog.stats().counts["done"] == 40
    postgres_fixture.check()


def test_only_one_rebuild_is_under_way_at_a_time(postgres_fixture: BacklogFixture) -> None:
    storage = postgres_fixture.storage
    assert isinstance(storage, PostgresStorage)
    from squid_dagster.journal.postgres.schema.names import lock_number

    with raw(storage) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (lock_number(storage.schema, "rebuild cards"),))
        with pytest.raises(StorageUnavailable, match="under way"):
            postgres_fixture.backlog.rebuild()


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


def test_a_rebuild_that_has_to_wait_for_a_reader_loses_nothing_that_came_meanwhile(
    postgres_fixture: BacklogFixture,
) -> None:
    storage, backlog = postgres_fixture.storage, postgres_fixture.backlog
    assert isinstance(storage, PostgresStorage)
    backlog.create("A", "a")
    with ThreadPoolExecutor(1) as pool, raw(storage, autocommit=False) as reader:
        # given a session that reads for so long that the table cannot be swapped in at the first tries
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
    postgres_fixture.check()


def test_facts_that_somebody_appends_past_the_backlog_are_refused(postgres_fixture: BacklogFixture) -> None:
    with pytest.raises(InvalidArgument, match="by a Backlog"):
        postgres_fixture.storage.append(BACKLOG_THREAD, [CardCreated(card_id="A", title="a", occurred_at=T0)])
    assert postgres_fixture.revision() == 0


def test_facts_that_got_in_past_the_backlog_are_taken_in_by_a_rebuild(postgres_fixture: BacklogFixture) -> None:
    assert isinstance(postgres_fixture.storage, PostgresStorage)
    plant(postgres_fixture.storage, [CardCreated(card_id="A", title="a", occurred_at=T0)])
    assert postgres_fixture.backlog.differences() == ["card A: a row is missing"]
    postgres_fixture.backlog.rebuild()
    assert postgres_fixture.claim().id == "A"


def test_facts_that_break_a_rule_are_noted_and_not_followed(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B")
    fixture.backlog.link("B", "A")
    claim: dict[str, Any] = {"claim_owner": "x", "claim_ttl_seconds": 9, "claim_token_hash": token_hash("x")}
    now = fixture.clock.now()
    storage = MemoryStorage(fixture.clock)
    storage.append(BACKLOG_THREAD, [entry.fact for entry in fixture.storage.read(BACKLOG_THREAD)])  # type: ignore[misc]
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
    projection = BacklogProjection.fold(storage.read(BACKLOG_THREAD))
    reasons = [anomaly.reason.value for anomaly in projection.anomalies]
    assert reasons == ["open_dependency", "wrong_attempt", "stale_claim", "unknown_card", "out_of_order"]
    assert projection.cards == {card.id: card for card in fixture.backlog.list()}


def test_an_entry_that_was_changed_is_surfaced(postgres_fixture: BacklogFixture) -> None:
    postgres_fixture.cards("A", "B")
    storage = postgres_fixture.storage
    assert isinstance(storage, PostgresStorage)
    with raw(storage) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER journal_entries_append_only")
        connection.execute(
            """UPDATE journal_entries SET data = '{"card_id":"B","title":"x"}' WHERE thread = %s AND seq = 2""",
            (BACKLOG_THREAD,),
        )
        connection.execute("ALTER TABLE journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only")
    assert postgres_fixture.backlog.differences() == ["card B: a row that no fact explains"]
    assert [finding.kind.value for finding in verify(storage)] == ["corrupt_entry"]


def test_removing_the_thread_removes_the_cards(postgres_fixture: BacklogFixture) -> None:
    postgres_fixture.cards("A")
    postgres_fixture.storage.delete_thread(BACKLOG_THREAD)
    assert postgres_fixture.backlog.list() == []
    assert postgres_fixture.backlog.create("A", "another").title == "another"


def test_a_token_outlives_a_rebuild(fixture: BacklogFixture) -> None:
    fixture.cards("A")
    held = fixture.claim(ttl=MINUTE)
    fixture.backlog.rebuild()
    with pytest.raises(StaleClaim):
        fixture.backlog.complete("A", token="another")
    assert fixture.backlog.complete("A", token=held.claim_token).status == "done"
