"""Claiming, holding and finishing cards: order, gates, time, and who is let through."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from squid_dagster.backlog import Backlog, Card
from squid_dagster.journal import PostgresStorage
from squid_dagster.protocol import BACKLOG_THREAD
from squid_dagster.protocol.errors import ExpiredClaim, InvalidArgument, InvalidTransition, NotFound, StaleClaim
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


def _commands(backlog: Backlog) -> dict[str, Callable[..., Any]]:
    return {"complete": backlog.complete, "renew": backlog.renew, "fail": backlog.fail, "block": backlog.block}


COMMANDS = ["complete", "renew", "fail", "block"]


def test_a_card_that_does_not_exist_is_not_found(board: Board) -> None:
    backlog = board.backlog
    commands: list[Callable[..., Any]] = [*_commands(backlog).values(), backlog.unblock, backlog.reclaim, backlog.get]
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
    assert not any(card.claim_token in each for each in (*stored, repr(card), repr(board.backlog.get("A"))))
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
    # when somebody claims, then he gets that card, with a fact that says what became of the first claim
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
    assert board.types("A") == ["created", "claimed"]  # nobody asked for it


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
        _commands(board.backlog)[name]("A", token=stale.claim_token)
    with pytest.raises(StaleClaim):
        _commands(board.backlog)[name]("A", token="made up")
    assert board.backlog.get("A") == held
    assert board.revision() == before


@pytest.mark.parametrize("name", COMMANDS)
def test_a_claim_that_ran_out_is_over_even_if_nobody_took_over(board: Board, name: str) -> None:
    board.cards("A")
    held = board.claim(ttl=MINUTE)
    board.later(seconds=60)
    with pytest.raises(ExpiredClaim, match="ran out"):
        _commands(board.backlog)[name]("A", token=held.claim_token)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_token_of_a_card_that_was_freed_is_stale(board: Board, name: str) -> None:
    board.cards("A")
    held = board.claim()
    board.backlog.reclaim("A")
    with pytest.raises(StaleClaim):
        _commands(board.backlog)[name]("A", token=held.claim_token)


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_token_a_command_acts_and_the_fact_reads_unfenced(board: Board, name: str) -> None:
    board.cards("A")
    board.claim()
    _commands(board.backlog)[name]("A")
    assert board.facts("A")[-1].fence == "unfenced"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_strict_backlog_demands_tokens(board: Board, name: str) -> None:
    strict = Backlog(board.storage, strict=True)
    board.cards("A")
    held = board.claim()
    with pytest.raises(InvalidArgument, match="token"):
        _commands(strict)[name]("A")
    _commands(strict)[name]("A", token=held.claim_token)
    assert board.facts("A")[-1].fence == "token"


# --- finishing ------------------------------------------------------------------------------------------------------


def test_completing_clears_the_claim_and_repeating_it_is_no_error(board: Board) -> None:
    board.cards("A")
    held = board.claim()
    done = board.backlog.complete("A", token=held.claim_token)
    assert (done.status, done.claim_owner, done.claim_ttl_seconds, done.claimed_at) == ("done", None, None, None)
    before = board.revision()
    assert board.backlog.complete("A", token=held.claim_token) == board.backlog.complete("A") == done
    assert board.revision() == before
    with pytest.raises(StaleClaim):
        board.backlog.complete("A", token="another")


def test_any_open_card_can_be_completed_by_hand(board: Board) -> None:
    board.cards("ready", "blocked")
    board.cards("gated", depends_on=["blocked"])
    board.backlog.block("blocked")
    for card_id in ("ready", "blocked", "gated"):
        assert board.backlog.complete(card_id).status == "done"


def test_a_failure_gives_the_card_back_at_once_or_later(board: Board) -> None:
    board.cards("A")
    again = board.backlog.fail("A", token=board.claim().claim_token, error="no luck")
    assert (again.status, again.error, again.attempts, again.claim_owner) == ("ready", {"message": "no luck"}, 1, None)
    later = board.backlog.fail("A", token=board.claim().claim_token, error={"api_key": "x"}, retry_after=MINUTE)
    assert (later.not_before, later.error) == (board.clock.now() + MINUTE, {"api_key": "[REDACTED]"})
    assert board.backlog.claim("w") is None
    board.later(seconds=60)
    assert board.claim().attempts == 3
    assert board.types("A") == ["created", "claimed", "failed", "claimed", "failed", "claimed"]


def test_a_card_that_failed_too_often_is_a_dead_letter_until_somebody_frees_it(board: Board) -> None:
    board.backlog.create("A", "x", max_attempts=2)
    assert board.backlog.fail("A", token=board.claim().claim_token).status == "ready"
    dead = board.backlog.fail("A", token=board.claim().claim_token, error="again")
    assert (dead.status, dead.error) == ("dead_lettered", {"message": "again"})
    assert board.backlog.claim("w") is None
    assert board.types("A")[-1] == "dead_lettered"
    # one more attempt for a person who asks for it
    assert board.backlog.reclaim("A")[0].status == "ready"
    assert board.backlog.fail("A", token=board.claim().claim_token).status == "dead_lettered"


def test_a_holder_can_give_a_card_up(board: Board) -> None:
    board.cards("A")
    assert board.backlog.fail("A", token=board.claim().claim_token, retry_after=None).status == "dead_lettered"
    assert (board.facts("A")[-1].cause, board.backlog.claim("w")) == ("given_up", None)


def test_claims_that_run_out_count_as_attempts(board: Board) -> None:
    board.backlog.create("A", "x", max_attempts=1)
    board.cards("B")
    board.claim(ttl=MINUTE)
    board.later(seconds=60)
    assert board.claim().id == "B"
    assert board.backlog.get("A").status == "dead_lettered"
    assert board.facts("A")[-1].attempts == 1


def test_a_card_has_as_many_attempts_as_it_may_have(board: Board) -> None:
    board.backlog.create("A", "x", max_attempts=2)
    for status in ("ready", "dead_lettered"):
        board.claim(ttl=MINUTE)
        board.later(seconds=60)
        assert [card.status for card in board.backlog.reclaim()] == [status]


def test_a_claim_that_gets_nothing_records_what_ran_out(board: Board) -> None:
    board.backlog.create("A", "x", max_attempts=1)
    board.claim(ttl=MINUTE)
    board.later(seconds=60)
    assert board.backlog.claim("w") is None
    assert board.types("A") == ["created", "claimed", "dead_lettered"]
    assert board.facts("A")[-1].cause == "spent"


@pytest.mark.parametrize("bad", [timedelta(seconds=-1), 5, "soon"])
def test_a_failure_with_a_bad_time_is_refused(board: Board, bad: Any) -> None:
    board.cards("A")
    board.claim()
    with pytest.raises(InvalidArgument, match="retry_after"):
        board.backlog.fail("A", retry_after=bad)
    assert board.backlog.get("A").status == "claimed"


def test_an_error_that_is_no_json_is_refused(board: Board) -> None:
    board.cards("A")
    board.claim()
    with pytest.raises(InvalidArgument, match="error"):
        board.backlog.fail("A", error={"x": object()})  # type: ignore[dict-item]
    assert board.backlog.get("A").status == "claimed"


def test_reclaim_frees_what_ran_out_and_nothing_else(board: Board) -> None:
    board.cards("A", "B", "C")
    board.backlog.create("D", "spent", max_attempts=1, priority=-1)
    board.claim(ttl=MINUTE)
    board.claim(ttl=2 * MINUTE)
    board.claim(ttl=MINUTE, card_id="D")
    board.backlog.block("C")
    board.later(seconds=60)
    assert [(card.id, card.status) for card in board.backlog.reclaim()] == [("A", "ready"), ("D", "dead_lettered")]
    assert board.backlog.reclaim() == []
    assert board.backlog.get("A").claim_owner is None
    assert board.backlog.get("A").attempts == 1


def test_what_ran_out_first_is_freed_first(board: Board) -> None:
    board.cards("A", "B", "C")
    for minutes in (3, 1, 2):
        board.claim(ttl=minutes * MINUTE)
    board.later(hours=1)
    assert [card.id for card in board.backlog.reclaim()] == ["B", "C", "A"]
    released = [entry.fact for entry in board.storage.read(BACKLOG_THREAD)][-3:]
    assert [fact.card_id for fact in released] == ["B", "C", "A"]  # type: ignore[union-attr]


def test_a_limit_on_what_is_freed_in_one_commit_is_kept(postgres_board: Board) -> None:
    storage = postgres_board.storage
    assert isinstance(storage, PostgresStorage)
    postgres_board.cards("A", "B", "C")
    for minutes in (3, 1, 2):
        postgres_board.claim(ttl=minutes * MINUTE)
    postgres_board.later(hours=1)
    freed = []
    for _ in range(4):
        values = uuid4(), 1, postgres_board.clock.now()
        ((cards,),) = storage.rows("SELECT {schema}.release_cards(%s, %s, %s)", *values)
        freed.append([card["id"] for card in cards or ()])
    assert freed == [["B"], ["C"], ["A"], []]
    postgres_board.check()


def test_reclaim_by_id_frees_any_card_that_is_not_done(board: Board) -> None:
    board.cards("held", "blocked", "ready", "done")
    board.claim()
    board.backlog.block("blocked")
    board.backlog.complete("done")
    for card_id in ("held", "blocked", "ready"):
        assert [card.status for card in board.backlog.reclaim(card_id)] == ["ready"]
    assert board.types("ready") == ["created"]
    with pytest.raises(InvalidTransition, match="done"):
        board.backlog.reclaim("done")


def test_blocked_cards_wait_and_come_back(board: Board) -> None:
    board.cards("A")
    assert board.backlog.block("A", reason="vendor").status == "blocked"
    assert board.backlog.block("A").status == "blocked"
    assert board.facts("A")[-1].reason == "vendor"
    assert board.claimed_in_order() == []
    assert board.backlog.unblock("A").status == board.backlog.unblock("A").status == "ready"
    board.backlog.block("A", token=board.claim().claim_token)
    assert board.backlog.get("A").claim_owner is None
    board.backlog.unblock("A")
    board.claim()
    with pytest.raises(InvalidTransition, match="claimed"):
        board.backlog.unblock("A")
    board.backlog.complete("A")
    for command in (board.backlog.block, board.backlog.unblock, board.backlog.renew, board.backlog.fail):
        with pytest.raises(InvalidTransition, match="done"):
            command("A")


def test_an_unclaimed_card_can_neither_fail_nor_be_renewed(board: Board) -> None:
    board.cards("A")
    for command in (board.backlog.renew, board.backlog.fail):
        with pytest.raises(InvalidTransition, match="claim it first"):
            command("A")


def test_a_clock_that_goes_back_breaks_no_rule(board: Board) -> None:
    board.cards("A")
    held = board.claim()
    board.later(seconds=-300)
    renewed = board.backlog.renew("A", ttl=MINUTE, token=held.claim_token)
    assert renewed.updated_at == held.updated_at
    assert board.backlog.complete("A", token=held.claim_token).updated_at == held.updated_at


def test_a_claim_that_runs_out_is_freed_no_sooner_than_the_card_changed(board: Board) -> None:
    board.cards("A", "B")
    board.claim(ttl=MINUTE)
    board.later(seconds=100)
    linked = board.backlog.link("A", "B")
    board.later(seconds=-30)
    assert [card.updated_at for card in board.backlog.reclaim()] == [linked.updated_at]


def test_a_claim_begins_no_sooner_than_the_card_was_freed(board: Board) -> None:
    board.cards("A")
    board.later(seconds=60)
    board.backlog.block("A")
    freed = board.backlog.unblock("A")
    board.later(seconds=-30)
    held = board.claim(ttl=MINUTE)
    assert (held.claimed_at, held.claim_expires_at) == (freed.updated_at, freed.updated_at + MINUTE)


def test_the_history_of_a_card_is_its_own(board: Board) -> None:
    board.cards("A", "B")
    board.cards("C", depends_on=["A"])
    held: Card = board.claim()
    board.backlog.complete("A", token=held.claim_token)
    assert board.types("A") == ["created", "claimed", "completed"]
    assert board.types("B") == ["created"]
    assert board.types("C") == ["created"]
    assert [entry.seq for entry in board.backlog.history("A")] == [1, 4, 5]
