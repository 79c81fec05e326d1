"""Claiming cards: order, gates and time, and how long a claim is held."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.backlog import Backlog
from squid_dagster.protocol.errors import ExpiredClaim, InvalidArgument, NotFound, StaleClaim
from tests.backlog.commands import COMMANDS, commands_of
from tests.backlog.contract import MINUTE, BacklogFixture
from tests.facts import t

# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"owner": ""},
        {"owner": None},
        {"owner": "a\0b"},
        {"owner": " "},
        {"owner": "a\nb"},
        {"ttl": timedelta(0)},
        {"ttl": timedelta(seconds=-1)},
        {"ttl": timedelta(seconds=1.5)},
        {"ttl": timedelta(days=31)},
        {"ttl": 900},
        {"card_id": ""},
        {"phase": ""},
    ],
    ids=str,
)
def test_a_claim_that_makes_no_sense_is_refused_and_takes_nothing(
    fixture: BacklogFixture, options: dict[str, Any]
) -> None:
    fixture.cards("A")
    with pytest.raises(InvalidArgument):
        fixture.backlog.claim(**{"owner": "w", **options})
    assert fixture.revision() == 1


def test_a_card_that_does_not_exist_is_not_found(fixture: BacklogFixture) -> None:
    backlog = fixture.backlog
    commands: list[Callable[..., Any]] = [*commands_of(backlog).values(), backlog.unblock, backlog.reclaim, backlog.get]
    commands += [backlog.history, lambda card_id: backlog.claim("w", card_id=card_id)]
    for command in commands:
        with pytest.raises(NotFound, match="'nothing'"):
            command("nothing")
    assert fixture.revision() == 0


# --- order ----------------------------------------------------------------------------------------------------------


def test_the_highest_priority_comes_first_and_the_oldest_of_equals(fixture: BacklogFixture) -> None:
    fixture.cards("old", "new")
    fixture.cards("urgent", priority=9)
    fixture.cards("late", priority=-5)
    assert fixture.claimed_in_order() == ["urgent", "old", "new", "late"]
    assert fixture.backlog.claim("w") is None


def test_a_card_waits_until_all_that_it_depends_on_is_done(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B")
    fixture.cards("C", priority=9, depends_on=["A", "B"])
    first, second = fixture.claim(), fixture.claim()
    assert (first.id, second.id) == ("A", "B")
    assert fixture.backlog.claim("w") is None
    fixture.backlog.complete("A", token=first.claim_token)
    assert fixture.backlog.claim("w") is None
    fixture.backlog.complete("B", token=second.claim_token)
    assert fixture.claim().id == "C"


def test_a_card_that_is_done_frees_only_those_that_wait_for_it(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B")
    fixture.cards("C", depends_on=["A"])
    fixture.cards("D", depends_on=["B"])
    fixture.backlog.complete("A")
    assert [fixture.backlog.get(card_id).open_dependencies for card_id in ("C", "D")] == [0, 1]


def test_a_card_by_its_id_is_given_or_nothing(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B")
    fixture.cards("C", depends_on=["B"])
    assert fixture.claim(card_id="B").id == "B"
    assert fixture.backlog.claim("w", card_id="B") is None
    assert fixture.backlog.claim("w", card_id="C") is None
    fixture.backlog.block("A")
    assert fixture.backlog.claim("w", card_id="A") is None
    fixture.backlog.complete("B")
    assert fixture.backlog.claim("w", card_id="B") is None
    assert fixture.claim(card_id="C").id == "C"


def test_claims_of_a_phase_take_only_its_cards(fixture: BacklogFixture) -> None:
    fixture.cards("A", priority=9)
    fixture.cards("B", "C", phase="M1")
    fixture.cards("D", phase="M1", priority=2)
    fixture.cards("E", phase="M1", priority=5, depends_on=["A"])
    assert [fixture.claim(phase="M1").id for _ in range(3)] == ["D", "B", "C"]
    assert fixture.backlog.claim("w", phase="M1") is None
    assert fixture.backlog.claim("w", phase="M1", card_id="A") is None
    assert fixture.backlog.claim("w", phase="M2") is None
    assert fixture.claim().id == "A"


def test_a_card_is_not_claimed_before_its_time(fixture: BacklogFixture) -> None:
    fixture.backlog.create("later", "x", priority=9, not_before=t(60), phase="M1")
    fixture.cards("now")
    assert fixture.claimed_in_order() == ["now"]
    assert fixture.backlog.claim("w", card_id="later") is None
    assert fixture.backlog.claim("w", phase="M1") is None
    fixture.clock.advance(t(60) - fixture.clock.now())
    assert fixture.claim().id == "later"


# --- holding --------------------------------------------------------------------------------------------------------


def test_a_claim_fills_the_columns_and_stores_no_token(fixture: BacklogFixture) -> None:
    fixture.cards("A")
    card = fixture.claim("ada", ttl=timedelta(seconds=600))
    assert (card.status, card.claim_owner, card.claim_ttl_seconds, card.attempts) == ("claimed", "ada", 600, 1)
    assert card.claimed_at == fixture.clock.now()
    assert card.claim_expires_at == fixture.clock.now() + timedelta(seconds=600)
    assert card.claim_token is not None
    stored = [entry.fact.model_dump_json() for entry in fixture.backlog.history("A")]  # type: ignore[union-attr]
    assert not any(card.claim_token in text for text in (*stored, repr(card), repr(fixture.backlog.get("A"))))
    assert "claim_token" not in card.to_dict()
    assert fixture.backlog.get("A").claim_token is None


def test_without_a_ttl_a_claim_lasts_a_quarter_of_an_hour(fixture: BacklogFixture) -> None:
    fixture.cards("A")
    assert fixture.claim().claim_ttl_seconds == 900


def test_the_next_claim_takes_a_card_whose_claim_ran_out(fixture: BacklogFixture) -> None:
    # given an expired claim on the older of two cards
    fixture.cards("A", "B")
    first = fixture.claim("dead", ttl=MINUTE)
    fixture.later(seconds=60)
    # when a worker claims, then it gets that card, with a fact that says what became of the first claim
    second = fixture.claim("alive")
    assert (second.id, second.claim_owner, second.attempts) == (first.id, "alive", 2)
    assert fixture.types("A") == ["created", "claimed", "released", "claimed"]
    assert fixture.facts("A")[2].cause == "expired"


def test_a_claim_by_id_takes_over_when_the_claim_ran_out(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B")
    fixture.claim(ttl=MINUTE)
    fixture.claim(ttl=MINUTE)
    fixture.later(seconds=60)
    assert fixture.claim(card_id="B").attempts == 2
    assert fixture.types("A") == ["created", "claimed"]  # no caller asked for it


def test_renewing_lets_a_claim_last_and_never_shortens_it(fixture: BacklogFixture) -> None:
    fixture.cards("A")
    held = fixture.claim(ttl=MINUTE)
    fixture.later(seconds=30)
    renewed = fixture.backlog.renew("A", ttl=MINUTE, token=held.claim_token)
    assert renewed.claim_expires_at == fixture.clock.now() + MINUTE
    assert (renewed.claimed_at, renewed.claim_ttl_seconds) == (held.claimed_at, 90)
    shorter = fixture.backlog.renew("A", ttl=timedelta(seconds=1), token=held.claim_token)
    assert shorter.claim_expires_at == renewed.claim_expires_at
    fixture.later(seconds=59)
    assert fixture.backlog.claim("w") is None


@pytest.mark.parametrize("name", COMMANDS)
def test_a_stale_owner_is_refused_and_changes_nothing(fixture: BacklogFixture, name: str) -> None:
    # given a claim that ran out and was taken over
    fixture.cards("A")
    stale = fixture.claim("late", ttl=MINUTE)
    fixture.later(seconds=60)
    held = fixture.claim("new")
    before = fixture.revision()
    # when the first owner comes back, then it is told so
    with pytest.raises(StaleClaim, match="'A'"):
        commands_of(fixture.backlog)[name]("A", token=stale.claim_token)
    with pytest.raises(StaleClaim):
        commands_of(fixture.backlog)[name]("A", token="made up")
    assert fixture.backlog.get("A") == held
    assert fixture.revision() == before


@pytest.mark.parametrize("name", COMMANDS)
def test_a_claim_that_ran_out_is_over_even_if_nobody_took_over(fixture: BacklogFixture, name: str) -> None:
    fixture.cards("A")
    held = fixture.claim(ttl=MINUTE)
    fixture.later(seconds=60)
    with pytest.raises(ExpiredClaim, match="ran out"):
        commands_of(fixture.backlog)[name]("A", token=held.claim_token)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_token_of_a_card_that_was_freed_is_stale(fixture: BacklogFixture, name: str) -> None:
    fixture.cards("A")
    held = fixture.claim()
    fixture.backlog.reclaim("A")
    with pytest.raises(StaleClaim):
        commands_of(fixture.backlog)[name]("A", token=held.claim_token)


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_token_a_command_acts_and_the_fact_reads_unfenced(fixture: BacklogFixture, name: str) -> None:
    fixture.cards("A")
    fixture.claim()
    commands_of(fixture.backlog)[name]("A")
    assert fixture.facts("A")[-1].fence == "unfenced"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_strict_backlog_demands_tokens(fixture: BacklogFixture, name: str) -> None:
    strict = Backlog(fixture.storage, strict=True)
    fixture.cards("A")
    held = fixture.claim()
    with pytest.raises(InvalidArgument, match="token"):
        commands_of(strict)[name]("A")
    commands_of(strict)[name]("A", token=held.claim_token)
    assert fixture.facts("A")[-1].fence == "token"
