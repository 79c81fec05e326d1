"""Finishing, failing, blocking and freeing cards, and the clocks of their claims."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from squid_dagster.backlog import Card
from squid_dagster.journal import PostgresStorage
from squid_dagster.protocol import BACKLOG_THREAD
from squid_dagster.protocol.errors import InvalidArgument, InvalidTransition, StaleClaim
from tests.backlog.contract import MINUTE, Board

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
