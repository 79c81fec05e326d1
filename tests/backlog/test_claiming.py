"""Claiming cards: order, gates and time, and how long a claim is held."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.backlog import Backlog
from squid_dagster.protocol.errors import ExpiredClaim, InvalidArgument, NotFound, StaleClaim
from tests.backlog.commands import COMMANDS, commands_of
from tests.backlog.contract import MINUTE, Board
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
def test_a_claim_that_makes_no_sense_is_refused_and_takes_nothing(board: Board, options: dict[str, Any]) -> None:
    board.cards("A")
    with pytest.raises(InvalidArgument):
        board.backlog.claim(**{"owner": "w", **options})
    assert board.revision() == 1


def test_a_card_that_does_not_exist_is_not_found(board: Board) -> None:
    backlog = board.backlog
    commands: list[Callable[..., Any]] = [*commands_of(backlog).values(), backlog.unblock, backlog.reclaim, backlog.get]
    commands += [backlog.history, lambda card_id: backlog.claim("w", card_id=card_id)]
    for command in commands:
        with pytest.raises(NotFound, match="'nothing'"):
            command("nothing")
    assert board.revision() == 0


# --- order ----------------------------------------------------------------------------------------------------------


def test_the_highest_priority_comes_first_and_the_oldest_of_equals(board: Board) -> None:
    board.cards("old", "new")
    board.cards("urgent", priority=9)
    board.cards("late", priority=-5)
    assert board.claimed_in_order() == ["urgent", "old", "new", "late"]
    assert board.backlog.claim("w") is None


def test_a_card_waits_until_all_that_it_depends_on_is_done(board: Board) -> None:
    board.cards("A", "B")
    board.cards("C", priority=9, depends_on=["A", "B"])
    first, second = board.claim(), board.claim()
    assert (first.id, second.id) == ("A", "B")
    assert board.backlog.claim("w") is None
    board.backlog.complete("A", token=first.claim_token)
    assert board.backlog.claim("w") is None
    board.backlog.complete("B", token=second.claim_token)
    assert board.claim().id == "C"


def test_a_card_that_is_done_frees_only_those_that_wait_for_it(board: Board) -> None:
    board.cards("A", "B")
    board.cards("C", depends_on=["A"])
    board.cards("D", depends_on=["B"])
    board.backlog.complete("A")
    assert [board.backlog.get(card_id).open_dependencies for card_id in ("C", "D")] == [0, 1]


def test_a_card_by_its_id_is_given_or_nothing(board: Board) -> None:
    board.cards("A", "B")
    board.cards("C", depends_on=["B"])
    assert board.claim(card_id="B").id == "B"
    assert board.backlog.claim("w", card_id="B") is None
    assert board.backlog.claim("w", card_id="C") is None
    board.backlog.block("A")
    assert board.backlog.claim("w", card_id="A") is None
    board.backlog.complete("B")
    assert board.backlog.claim("w", card_id="B") is None
    assert board.claim(card_id="C").id == "C"


def test_claims_of_a_phase_take_only_its_cards(board: Board) -> None:
    board.cards("A", priority=9)
    board.cards("B", "C", phase="M1")
    board.cards("D", phase="M1", priority=2)
    board.cards("E", phase="M1", priority=5, depends_on=["A"])
    assert [board.claim(phase="M1").id for _ in range(3)] == ["D", "B", "C"]
    assert board.backlog.claim("w", phase="M1") is None
    assert board.backlog.claim("w", phase="M1", card_id="A") is None
    assert board.backlog.claim("w", phase="M2") is None
    assert board.claim().id == "A"


def test_a_card_is_not_claimed_before_its_time(board: Board) -> None:
    board.backlog.create("later", "x", priority=9, not_before=t(60), phase="M1")
    board.cards("now")
    assert board.claimed_in_order() == ["now"]
    assert board.backlog.claim("w", card_id="later") is None
    assert board.backlog.claim("w", phase="M1") is None
    board.clock.advance(t(60) - board.clock.now())
    assert board.claim().id == "later"


# --- holding --------------------------------------------------------------------------------------------------------


def test_a_claim_fills_the_columns_and_stores_no_token(board: Board) -> None:
    board.cards("A")
    card = board.claim("ada", ttl=timedelta(seconds=600))
    assert (card.status, card.claim_owner, card.claim_ttl_seconds, card.attempts) == ("claimed", "ada", 600, 1)
    assert card.claimed_at == board.clock.now()
    assert card.claim_expires_at == board.clock.now() + timedelta(seconds=600)
    assert card.claim_token is not None
    stored = [entry.fact.model_dump_json() for entry in board.backlog.history("A")]  # type: ignore[union-attr]
    assert not any(card.claim_token in text for text in (*stored, repr(card), repr(board.backlog.get("A"))))
    assert "claim_token" not in card.to_dict()
    assert board.backlog.get("A").claim_token is None


def test_without_a_ttl_a_claim_lasts_a_quarter_of_an_hour(board: Board) -> None:
    board.cards("A")
    assert board.claim().claim_ttl_seconds == 900


def test_the_next_claim_takes_a_card_whose_claim_ran_out(board: Board) -> None:
    # given an expired claim on the older of two cards
    board.cards("A", "B")
    first = board.claim("dead", ttl=MINUTE)
    board.later(seconds=60)
    # when a worker claims, then it gets that card, with a fact that says what became of the first claim
    second = board.claim("alive")
    assert (second.id, second.claim_owner, second.attempts) == (first.id, "alive", 2)
    assert board.types("A") == ["created", "claimed", "released", "claimed"]
    assert board.facts("A")[2].cause == "expired"


def test_a_claim_by_id_takes_over_when_the_claim_ran_out(board: Board) -> None:
    board.cards("A", "B")
    board.claim(ttl=MINUTE)
    board.claim(ttl=MINUTE)
    board.later(seconds=60)
    assert board.claim(card_id="B").attempts == 2
    assert board.types("A") == ["created", "claimed"]  # no caller asked for it


def test_renewing_lets_a_claim_last_and_never_shortens_it(board: Board) -> None:
    board.cards("A")
    held = board.claim(ttl=MINUTE)
    board.later(seconds=30)
    renewed = board.backlog.renew("A", ttl=MINUTE, token=held.claim_token)
    assert renewed.claim_expires_at == board.clock.now() + MINUTE
    assert (renewed.claimed_at, renewed.claim_ttl_seconds) == (held.claimed_at, 90)
    shorter = board.backlog.renew("A", ttl=timedelta(seconds=1), token=held.claim_token)
    assert shorter.claim_expires_at == renewed.claim_expires_at
    board.later(seconds=59)
    assert board.backlog.claim("w") is None


@pytest.mark.parametrize("name", COMMANDS)
def test_a_stale_owner_is_refused_and_changes_nothing(board: Board, name: str) -> None:
    # given a claim that ran out and was taken over
    board.cards("A")
    stale = board.claim("late", ttl=MINUTE)
    board.later(seconds=60)
    held = board.claim("new")
    before = board.revision()
    # when the first owner comes back, then it is told so
    with pytest.raises(StaleClaim, match="'A'"):
        commands_of(board.backlog)[name]("A", token=stale.claim_token)
    with pytest.raises(StaleClaim):
        commands_of(board.backlog)[name]("A", token="made up")
    assert board.backlog.get("A") == held
    assert board.revision() == before


@pytest.mark.parametrize("name", COMMANDS)
def test_a_claim_that_ran_out_is_over_even_if_nobody_took_over(board: Board, name: str) -> None:
    board.cards("A")
    held = board.claim(ttl=MINUTE)
    board.later(seconds=60)
    with pytest.raises(ExpiredClaim, match="ran out"):
        commands_of(board.backlog)[name]("A", token=held.claim_token)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_token_of_a_card_that_was_freed_is_stale(board: Board, name: str) -> None:
    board.cards("A")
    held = board.claim()
    board.backlog.reclaim("A")
    with pytest.raises(StaleClaim):
        commands_of(board.backlog)[name]("A", token=held.claim_token)


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_token_a_command_acts_and_the_fact_reads_unfenced(board: Board, name: str) -> None:
    board.cards("A")
    board.claim()
    commands_of(board.backlog)[name]("A")
    assert board.facts("A")[-1].fence == "unfenced"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_strict_backlog_demands_tokens(board: Board, name: str) -> None:
    strict = Backlog(board.storage, strict=True)
    board.cards("A")
    held = board.claim()
    with pytest.raises(InvalidArgument, match="token"):
        commands_of(strict)[name]("A")
    commands_of(strict)[name]("A", token=held.claim_token)
    assert board.facts("A")[-1].fence == "token"
