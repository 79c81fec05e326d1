"""Many at once on Postgres: rivals get the next card, no two links close a cycle, one creation counts."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, LiteralString

import psycopg
import pytest

from squid_dagster.backlog import Backlog, Card
from squid_dagster.journal.postgres.schema.names import lock_number
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import InvalidTransition
from tests.backlog.contract import BacklogFixture
from tests.journal.access import at_once, eventually, raw, wait_for_a_lock


@contextmanager
def holding(storage: PostgresStorage, statement: LiteralString) -> Iterator[psycopg.Connection[Any]]:
    """Keep the locks of a statement in an open transaction, as a session in the middle of a command does."""
    with raw(storage, autocommit=False) as connection:
        connection.execute(statement)
        yield connection


def postgres(fixture: BacklogFixture) -> PostgresStorage:
    """Return the storage of a backlog on Postgres."""
    assert isinstance(fixture.storage, PostgresStorage)
    return fixture.storage


def waits(storage: PostgresStorage, call: Future[Any]) -> bool:
    """Return whether a call waits for a lock, once it does or has ended."""
    with raw(storage) as connection:

        def is_waiting() -> bool:
            row = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
            return row is not None and row[0] > 0

        eventually(lambda: call.done() or is_waiting())
    return not call.done()


_COMMANDS: dict[str, Callable[[Backlog], object]] = {
    "claim": lambda backlog: backlog.claim("w"),
    "claim by id": lambda backlog: backlog.claim("w", card_id="A"),
    "complete": lambda backlog: backlog.complete("A"),
    "reclaim": lambda backlog: backlog.reclaim(),
    "link": lambda backlog: backlog.link("A", "B"),
}


@pytest.mark.parametrize("purpose", ["gate", "cards"])
@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_waits_for_whoever_changes_the_schema_or_the_links(
    postgres_fixture: BacklogFixture, name: str, purpose: str
) -> None:
    postgres_fixture.cards("A", "B")
    storage = postgres(postgres_fixture)
    with ThreadPoolExecutor(1) as pool, raw(storage, autocommit=False) as other:
        # given a session alone with the schema, or with all links
        other.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(storage.schema, purpose),))
        # when a command comes, then it waits until that is over
        call = pool.submit(_COMMANDS[name], postgres_fixture.backlog)
        waited = waits(storage, call)
        other.rollback()
        call.result(30)
    assert waited
    postgres_fixture.check()


def test_cards_are_locked_in_the_order_of_their_ids_and_those_that_wait_for_them_too(
    postgres_fixture: BacklogFixture,
) -> None:
    # given a card that waits for another one, and one beside them
    postgres_fixture.cards("B", "A")
    postgres_fixture.cards("C", depends_on=["A"])
    storage, held = postgres(postgres_fixture), dict[str, list[str]]()
    for wanted in ("A", "B", "C"):
        with (
            ThreadPoolExecutor(1) as pool,
            raw(storage, autocommit=False) as other,
            raw(storage, autocommit=False) as writer,
            raw(storage, autocommit=False) as look,
        ):
            # when a session holds one of them while two are about to change
            other.execute("SELECT FROM backlog WHERE id = %s FOR UPDATE", (wanted,))
            ids = ["A"] if wanted == "C" else ["B", "A"]
            call = pool.submit(writer.execute, "SELECT lock_cards(0, %s, NULL, NULL, false, true)", (ids,))
            if waits(storage, call):
                free = look.execute("SELECT id FROM backlog ORDER BY id FOR UPDATE SKIP LOCKED").fetchall()
                held[wanted] = sorted({"A", "B", "C"} - {wanted} - {card_id for (card_id,) in free})
            look.rollback()
            other.rollback()
            call.result(30)
    # then the writer waits, and holds those that come before
    assert held == {"A": [], "B": ["A"], "C": ["A"]}


def test_a_writer_that_goes_quiet_is_told_how_long_it_may_hold_cards(postgres_fixture: BacklogFixture) -> None:
    with raw(postgres(postgres_fixture), autocommit=False) as writer:
        writer.execute("SELECT lock_cards(1234, '{}', NULL, NULL, false, false)")
        assert writer.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("1234ms",)


def test_a_claim_begins_when_it_has_nothing_to_wait_for_any_more(postgres_fixture: BacklogFixture) -> None:
    # given a claim by the database's own clock that waits for the thread
    storage = postgres(postgres_fixture)
    postgres_fixture.cards("A")
    storage.clock = None
    thread = "SELECT FROM journal_threads WHERE id = 'squid:backlog:cards' FOR UPDATE"
    with ThreadPoolExecutor(1) as pool:
        with holding(storage, thread):
            call = pool.submit(postgres_fixture.claim)
            wait_for_a_lock(storage)
            waited_until = storage.now()
        # when it gets there at last, then its time begins
        claimed_at = call.result(30).claimed_at
    assert claimed_at is not None
    assert claimed_at >= waited_until


def test_a_rival_gets_the_next_card_and_not_nothing(postgres_fixture: BacklogFixture) -> None:
    # given two cards, the better one of which another session is about to claim
    postgres_fixture.cards("A", "B")
    held = holding(postgres(postgres_fixture), "SELECT FROM backlog WHERE id = 'A' FOR UPDATE")
    with ThreadPoolExecutor(1) as pool, held:
        # when a worker claims, then it does not wait
        assert pool.submit(postgres_fixture.claim).result(10).id == "B"
        assert pool.submit(postgres_fixture.backlog.claim, "w").result(10) is None
    assert postgres_fixture.claim().id == "A"
    postgres_fixture.check()


def test_eight_claimers_get_eight_cards(postgres_fixture: BacklogFixture) -> None:
    postgres_fixture.cards(*(f"c{number}" for number in range(8)))

    def claim() -> Card | None:
        return Backlog(postgres_fixture.storage).claim("w")

    cards = at_once([claim] * 8)
    assert sorted(card.id for card in cards if card is not None) == [f"c{number}" for number in range(8)]
    postgres_fixture.check()


def test_claimers_of_expired_cards_get_one_each(postgres_fixture: BacklogFixture) -> None:
    # given cards whose holders are all gone, and a session that holds up the first call that takes them back
    names = [f"c{number}" for number in range(8)]
    postgres_fixture.cards(*names)
    postgres_fixture.claimed_in_order()
    postgres_fixture.later(hours=1)
    storage = postgres_fixture.storage
    assert isinstance(storage, PostgresStorage)
    with ThreadPoolExecutor(4) as pool:
        with holding(storage, "SELECT FROM journal_threads WHERE id = 'squid:backlog:cards' FOR UPDATE"):
            claims = [pool.submit(Backlog(storage).claim, "w") for _ in range(4)]
            wait_for_a_lock(storage, 4)
        # then the others wait for the first one, and find what it has left
        cards = [claim.result(60) for claim in claims]
    assert sorted(card.id for card in cards if card is not None) == names[:4]
    postgres_fixture.check()


def test_a_card_that_ran_out_and_is_held_is_passed_by(postgres_fixture: BacklogFixture) -> None:
    postgres_fixture.cards("A", "B")
    postgres_fixture.claimed_in_order()
    postgres_fixture.later(hours=1)
    held = holding(postgres(postgres_fixture), "SELECT FROM backlog WHERE id = 'A' FOR UPDATE")
    with ThreadPoolExecutor(1) as pool, held:
        assert [card.id for card in pool.submit(postgres_fixture.backlog.reclaim).result(10)] == ["B"]
    assert [card.id for card in postgres_fixture.backlog.reclaim()] == ["A"]
    postgres_fixture.check()


def test_claims_by_id_wait_for_each_other_and_one_gets_it(postgres_fixture: BacklogFixture) -> None:
    postgres_fixture.cards("A")
    cards = at_once([lambda: postgres_fixture.backlog.claim("w", card_id="A")] * 6)
    assert [card.attempts for card in cards if card is not None] == [1]
    postgres_fixture.check()


def test_a_claim_by_id_waits_for_a_rival_that_is_about_to_take_the_card(postgres_fixture: BacklogFixture) -> None:
    # given two claims of one card, the first of which waits for the thread
    postgres_fixture.cards("A")
    storage = postgres(postgres_fixture)
    with ThreadPoolExecutor(2) as pool:
        with holding(storage, "SELECT FROM journal_threads WHERE id = 'squid:backlog:cards' FOR UPDATE"):
            claims = [pool.submit(Backlog(storage).claim, "w", card_id="A") for _ in range(2)]
            wait_for_a_lock(storage, 2)
        # when it goes on, then the card is its own
        cards = [claim.result(30) for claim in claims]
    assert [card.attempts for card in cards if card is not None] == [1]
    postgres_fixture.check()


@pytest.mark.parametrize("_", range(5))
def test_two_links_that_race_never_close_a_cycle(postgres_fixture: BacklogFixture, _: int) -> None:
    # given three cards
    postgres_fixture.cards("A", "B", "C")
    postgres_fixture.backlog.link("B", "C")

    def link(card_id: str, depends_on: str) -> Callable[[], bool]:
        def call() -> bool:
            try:
                postgres_fixture.backlog.link(card_id, depends_on)
            except InvalidTransition:
                return False
            return True

        return call

    # when links that make a cycle together are made at once, then one of them is refused
    made = at_once([link("A", "B"), link("C", "A")])
    assert sorted(made) == [False, True]
    postgres_fixture.check()


def test_a_link_that_waits_sees_what_the_first_one_made(postgres_fixture: BacklogFixture) -> None:
    postgres_fixture.cards("A", "B")
    storage = postgres_fixture.storage
    assert isinstance(storage, PostgresStorage)
    # given a session that holds up all others that change links
    with holding(storage, "SELECT lock_cards(0, '{}', NULL, NULL, true, false)") as held:

        def link(card_id: str, depends_on: str) -> Callable[[], str]:
            def call() -> str:
                try:
                    postgres_fixture.backlog.link(card_id, depends_on)
                except InvalidTransition as error:
                    return str(error)
                return "linked"

            return call

        def let_go() -> str:
            wait_for_a_lock(storage, 2)
            held.rollback()
            return "let go"

        answers = at_once([link("A", "B"), link("B", "A"), let_go])
    assert sorted(answer == "linked" for answer in answers) == [False, False, True]
    assert any("closes the cycle" in answer for answer in answers)
    postgres_fixture.check()


def test_creating_the_same_card_many_times_at_once_makes_it_once(postgres_fixture: BacklogFixture) -> None:
    by_id = at_once([lambda: postgres_fixture.backlog.create("A", "x")] * 6)
    assert set(by_id) == {postgres_fixture.backlog.get("A")}
    create = partial(postgres_fixture.backlog.create, title="x", idempotency_key="k")
    by_key = at_once([partial(create, f"B{number}") for number in range(6)])
    assert len({card.id for card in by_key}) == 1
    assert postgres_fixture.revision() == 2
    postgres_fixture.check()


def test_cards_that_are_completed_at_once_free_the_one_that_waits_for_both(postgres_fixture: BacklogFixture) -> None:
    postgres_fixture.cards("A", "B", "C")
    postgres_fixture.cards("D", "E", depends_on=["A", "B", "C"])
    at_once([partial(postgres_fixture.backlog.complete, card_id) for card_id in ("A", "B", "C")])
    assert [card.id for card in postgres_fixture.backlog.list(ready_only=True)] == ["D", "E"]
    postgres_fixture.check()


def test_links_and_completions_at_once_count_right(postgres_fixture: BacklogFixture) -> None:
    for number in range(5):
        names = [f"{letter}{number}" for letter in "ABC"]
        postgres_fixture.cards(*names)
        first, second, third = names
        backlog = postgres_fixture.backlog
        calls: list[Callable[[], object]] = [
            partial(backlog.link, first, second),
            partial(backlog.complete, second),
            partial(backlog.create, f"D{number}", "x", depends_on=[second, third]),
            partial(backlog.complete, third),
            partial(backlog.claim, "w"),
        ]
        at_once(calls)
        postgres_fixture.check()
