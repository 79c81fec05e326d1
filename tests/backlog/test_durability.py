"""Crashes and lost answers: a change of a card is whole or it never was."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from squid_dagster.backlog import Backlog, Card
from squid_dagster.journal import MemoryStorage, PostgresStorage
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol import BACKLOG_THREAD
from squid_dagster.testing.fault_injection import Crashed, InjectedStorage, Plan
from tests.backlog.contract import MINUTE, BacklogFixture, write_history
from tests.facts import T0, token_hash
from tests.journal.access import LossyProxy, all_entries, raw, wait_for_a_lock

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
def lossy_proxy(postgres_url: str) -> Iterator[LossyProxy]:
    """A proxy to the server that can lose an answer."""
    made = LossyProxy(postgres_url)
    yield made
    made.close()


@pytest.mark.parametrize("name", [*STEPS, "create by key"])
def test_a_lost_answer_is_asked_for_again_and_nothing_happens_twice(
    name: str, lossy_proxy: LossyProxy, postgres_fixture: BacklogFixture
) -> None:
    # given a change whose answer gets lost after the server has committed it
    steps: dict[str, Step] = {**STEPS}
    steps["create by key"] = lambda backlog, _: backlog.create("C", "c", idempotency_key="k")
    held = _prepare(postgres_fixture.backlog, name)
    before = postgres_fixture.revision()
    storage = PostgresStorage(lossy_proxy.url, _schema(postgres_fixture), clock=postgres_fixture.clock)
    storage.now()
    lossy_proxy.lose_answer_to("claim_card" if name == "claim" else "append_entries")
    # when it is made, then it is made once
    steps[name](Backlog(storage), held)
    storage.close()
    assert lossy_proxy.lost == 1
    assert postgres_fixture.revision() == before + 1
    postgres_fixture.check()


def test_a_lost_answer_to_reclaim_leaves_no_row_without_its_fact(
    lossy_proxy: LossyProxy, postgres_fixture: BacklogFixture
) -> None:
    _prepare(postgres_fixture.backlog, "renew")
    postgres_fixture.later(seconds=60)
    storage = PostgresStorage(lossy_proxy.url, _schema(postgres_fixture), clock=postgres_fixture.clock)
    storage.now()
    lossy_proxy.lose_answer_to("release_cards")
    Backlog(storage).reclaim()
    storage.close()
    assert lossy_proxy.lost == 1
    postgres_fixture.check()


def _schema(fixture: BacklogFixture) -> str:
    assert isinstance(fixture.storage, PostgresStorage)
    return fixture.storage.schema


def test_a_claim_that_is_repeated_while_the_first_still_waits_gives_the_card(
    postgres_fixture: BacklogFixture, postgres_url: str
) -> None:
    # given a claim that waits in the server for another session
    storage, lossy_proxy = postgres_fixture.storage, LossyProxy(postgres_url)
    assert isinstance(storage, PostgresStorage)
    postgres_fixture.cards("A")
    far = PostgresStorage(lossy_proxy.url, storage.schema, clock=postgres_fixture.clock)
    try:
        with ThreadPoolExecutor(1) as pool, raw(storage, autocommit=False) as other:
            other.execute("SELECT FROM journal_threads WHERE id = %s FOR UPDATE", (BACKLOG_THREAD,))
            claimed = pool.submit(Backlog(far).claim, "w")
            wait_for_a_lock(storage)
            # when the connection breaks, and the claim is made again before the first is through
            lossy_proxy.cut()
            wait_for_a_lock(storage, 2)
            other.rollback()
            card = claimed.result(60)
        # then the caller has the card of the first one, and its token is good
        assert card is not None
        assert (card.id, card.attempts) == ("A", 1)
        postgres_fixture.backlog.complete("A", token=card.claim_token)
        postgres_fixture.check()
    finally:
        far.close()
        lossy_proxy.close()


def test_a_card_that_is_created_again_while_the_first_try_still_waits_is_the_card_of_that_try(
    postgres_fixture: BacklogFixture, postgres_url: str
) -> None:
    # given a card that is being created, whose facts wait in the server for another session
    storage, lossy_proxy = postgres_fixture.storage, LossyProxy(postgres_url)
    assert isinstance(storage, PostgresStorage)
    postgres_fixture.cards("A")
    far = PostgresStorage(lossy_proxy.url, storage.schema, clock=postgres_fixture.clock)
    try:
        with ThreadPoolExecutor(1) as pool, raw(storage, autocommit=False) as other:
            other.execute("SELECT FROM journal_threads WHERE id = %s FOR UPDATE", (BACKLOG_THREAD,))
            created = pool.submit(Backlog(far).create, "B", "b")
            wait_for_a_lock(storage)
            # when the connection breaks, and it is made again, later, before the first try is through
            postgres_fixture.later(seconds=1)
            lossy_proxy.cut()
            wait_for_a_lock(storage, 2)
            other.rollback()
            # then the answer is what was written
            assert created.result(60) == postgres_fixture.backlog.get("B")
        postgres_fixture.check()
    finally:
        far.close()
        lossy_proxy.close()


def test_a_claim_that_is_repeated_gives_its_card_as_long_as_it_is_held(postgres_fixture: BacklogFixture) -> None:
    storage = postgres_fixture.storage
    assert isinstance(storage, PostgresStorage)
    postgres_fixture.cards("A", "B")
    commit_id, hashed = uuid4(), token_hash("mine")

    def repeat() -> Any:
        values = commit_id, hashed, postgres_fixture.clock.now()
        text = "SELECT {schema}.claim_card(%s, 'w', 60, %s, NULL, NULL, %s)"
        ((answer,),) = storage.rows(text, *values)
        return answer["card"] and answer["card"]["id"]

    assert [repeat(), repeat()] == ["A", "A"]
    postgres_fixture.later(seconds=60)
    assert postgres_fixture.claim().id == "A"
    # now it is another's
    assert repeat() is None
    postgres_fixture.check()


def test_a_commit_of_cards_that_is_there_is_not_written_again(postgres_fixture: BacklogFixture) -> None:
    storage, commit_id = postgres_fixture.storage, uuid4()
    assert isinstance(storage, PostgresStorage)
    fact = {"type": "card_unblocked", "at": "2026-01-01T00:00:00Z", "data": {"card_id": "A"}}
    with raw(storage, autocommit=False) as connection:
        append = "SELECT append_cards(%s, %s::json)", (commit_id, json.dumps([fact]))
        connection.execute(*append)
        with pytest.raises(psycopg.Error) as refused:
            connection.execute(*append)
    assert refused.value.sqlstate == "SQ002"


def test_every_change_is_a_fact_among_all_others(fixture: BacklogFixture) -> None:
    write_history(fixture)
    entries = all_entries(fixture.storage)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert {entry.thread for entry in entries} == {BACKLOG_THREAD}
    assert fixture.storage.cut() >= entries[-1].position
