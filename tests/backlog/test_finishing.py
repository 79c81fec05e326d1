"""Finishing, failing, blocking and freeing cards, and the clocks of their claims."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from squid_dagster.backlog import Card
from squid_dagster.journal import PostgresStorage
from squid_dagster.protocol import BACKLOG_THREAD
from squid_dagster.protocol.errors import InvalidArgument, InvalidTransition, StaleClaim
from tests.backlog.contract import MINUTE, BacklogFixture

# --- finishing ------------------------------------------------------------------------------------------------------


def test_completing_clears_the_claim_and_repeating_it_is_no_error(fixture: BacklogFixture) -> None:
    fixture.cards("A")
    held = fixture.claim()
    done = fixture.backlog.complete("A", token=held.claim_token)
    assert (done.status, done.claim_owner, done.claim_ttl_seconds, done.claimed_at) == ("done", None, None, None)
    before = fixture.revision()
    assert fixture.backlog.complete("A", token=held.claim_token) == fixture.backlog.complete("A") == done
    assert fixture.revision() == before
    with pytest.raises(StaleClaim):
        fixture.backlog.complete("A", token="another")


def test_any_open_card_can_be_completed_by_hand(fixture: BacklogFixture) -> None:
    fixture.cards("ready", "blocked")
    fixture.cards("gated", depends_on=["blocked"])
    fixture.backlog.block("blocked")
    for card_id in ("ready", "blocked", "gated"):
        assert fixture.backlog.complete(card_id).status == "done"


def test_a_failure_gives_the_card_back_at_once_or_later(fixture: BacklogFixture) -> None:
    fixture.cards("A")
    again = fixture.backlog.fail("A", token=fixture.claim().claim_token, error="no luck")
    assert (again.status, again.error, again.attempts, again.claim_owner) == ("ready", {"message": "no luck"}, 1, None)
    later = fixture.backlog.fail("A", token=fixture.claim().claim_token, error={"api_key": "x"}, retry_after=MINUTE)
    assert (later.not_before, later.error) == (fixture.clock.now() + MINUTE, {"api_key": "[REDACTED]"})
    assert fixture.backlog.claim("w") is None
    fixture.later(seconds=60)
    assert fixture.claim().attempts == 3
    assert fixture.types("A") == ["created", "claimed", "failed", "claimed", "failed", "claimed"]


def test_a_card_that_failed_too_often_is_a_dead_letter_until_somebody_frees_it(fixture: BacklogFixture) -> None:
    fixture.backlog.create("A", "x", max_attempts=2)
    assert fixture.backlog.fail("A", token=fixture.claim().claim_token).status == "ready"
    dead = fixture.backlog.fail("A", token=fixture.claim().claim_token, error="again")
    assert (dead.status, dead.error) == ("dead_lettered", {"message": "again"})
    assert fixture.backlog.claim("w") is None
    assert fixture.types("A")[-1] == "dead_lettered"
    # one more attempt for a person who asks for it
    assert fixture.backlog.reclaim("A")[0].status == "ready"
    assert fixture.backlog.fail("A", token=fixture.claim().claim_token).status == "dead_lettered"


def test_a_holder_can_give_a_card_up(fixture: BacklogFixture) -> None:
    fixture.cards("A")
    assert fixture.backlog.fail("A", token=fixture.claim().claim_token, retry_after=None).status == "dead_lettered"
    assert (fixture.facts("A")[-1].cause, fixture.backlog.claim("w")) == ("given_up", None)


def test_claims_that_run_out_count_as_attempts(fixture: BacklogFixture) -> None:
    fixture.backlog.create("A", "x", max_attempts=1)
    fixture.cards("B")
    fixture.claim(ttl=MINUTE)
    fixture.later(seconds=60)
    assert fixture.claim().id == "B"
    assert fixture.backlog.get("A").status == "dead_lettered"
    assert fixture.facts("A")[-1].attempts == 1


def test_a_card_has_as_many_attempts_as_it_may_have(fixture: BacklogFixture) -> None:
    fixture.backlog.create("A", "x", max_attempts=2)
    for status in ("ready", "dead_lettered"):
        fixture.claim(ttl=MINUTE)
        fixture.later(seconds=60)
        assert [card.status for card in fixture.backlog.reclaim()] == [status]


def test_a_claim_that_gets_nothing_records_what_ran_out(fixture: BacklogFixture) -> None:
    fixture.backlog.create("A", "x", max_attempts=1)
    fixture.claim(ttl=MINUTE)
    fixture.later(seconds=60)
    assert fixture.backlog.claim("w") is None
    assert fixture.types("A") == ["created", "claimed", "dead_lettered"]
    assert fixture.facts("A")[-1].cause == "spent"


@pytest.mark.parametrize("bad", [timedelta(seconds=-1), 5, "soon"])
def test_a_failure_with_a_bad_time_is_refused(fixture: BacklogFixture, bad: Any) -> None:
    fixture.cards("A")
    fixture.claim()
    with pytest.raises(InvalidArgument, match="retry_after"):
        fixture.backlog.fail("A", retry_after=bad)
    assert fixture.backlog.get("A").status == "claimed"


def test_an_error_that_is_no_json_is_refused(fixture: BacklogFixture) -> None:
    fixture.cards("A")
    fixture.claim()
    with pytest.raises(InvalidArgument, match="error"):
        fixture.backlog.fail("A", error={"x": object()})  # type: ignore[dict-item]
    assert fixture.backlog.get("A").status == "claimed"


def test_reclaim_frees_what_ran_out_and_nothing_else(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B", "C")
    fixture.backlog.create("D", "spent", max_attempts=1, priority=-1)
    fixture.claim(ttl=MINUTE)
    fixture.claim(ttl=2 * MINUTE)
    fixture.claim(ttl=MINUTE, card_id="D")
    fixture.backlog.block("C")
    fixture.later(seconds=60)
    assert [(card.id, card.status) for card in fixture.backlog.reclaim()] == [("A", "ready"), ("D", "dead_lettered")]
    assert fixture.backlog.reclaim() == []
    assert fixture.backlog.get("A").claim_owner is None
    assert fixture.backlog.get("A").attempts == 1


def test_what_ran_out_first_is_freed_first(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B", "C")
    for minutes in (3, 1, 2):
        fixture.claim(ttl=minutes * MINUTE)
    fixture.later(hours=1)
    assert [card.id for card in fixture.backlog.reclaim()] == ["B", "C", "A"]
    released = [entry.fact for entry in fixture.storage.read(BACKLOG_THREAD)][-3:]
    assert [fact.card_id for fact in released] == ["B", "C", "A"]  # type: ignore[union-attr]


def test_a_limit_on_what_is_freed_in_one_commit_is_kept(postgres_fixture: BacklogFixture) -> None:
    storage = postgres_fixture.storage
    assert isinstance(storage, PostgresStorage)
    postgres_fixture.cards("A", "B", "C")
    for minutes in (3, 1, 2):
        postgres_fixture.claim(ttl=minutes * MINUTE)
    postgres_fixture.later(hours=1)
    freed = []
    for _ in range(4):
        values = uuid4(), 1, postgres_fixture.clock.now()
        ((cards,),) = storage.rows("SELECT {schema}.release_cards(%s, %s, %s)", *values)
        freed.append([card["id"] for card in cards or ()])
    assert freed == [["B"], ["C"], ["A"], []]
    postgres_fixture.check()


def test_reclaim_by_id_frees_any_card_that_is_not_done(fixture: BacklogFixture) -> None:
    fixture.cards("held", "blocked", "ready", "done")
    fixture.claim()
    fixture.backlog.block("blocked")
    fixture.backlog.complete("done")
    for card_id in ("held", "blocked", "ready"):
        assert [card.status for card in fixture.backlog.reclaim(card_id)] == ["ready"]
    assert fixture.types("ready") == ["created"]
    with pytest.raises(InvalidTransition, match="done"):
        fixture.backlog.reclaim("done")


def test_blocked_cards_wait_and_come_back(fixture: BacklogFixture) -> None:
    fixture.cards("A")
    assert fixture.backlog.block("A", reason="vendor").status == "blocked"
    assert fixture.backlog.block("A").status == "blocked"
    assert fixture.facts("A")[-1].reason == "vendor"
    assert fixture.claimed_in_order() == []
    assert fixture.backlog.unblock("A").status == fixture.backlog.unblock("A").status == "ready"
    fixture.backlog.block("A", token=fixture.claim().claim_token)
    assert fixture.backlog.get("A").claim_owner is None
    fixture.backlog.unblock("A")
    fixture.claim()
    with pytest.raises(InvalidTransition, match="claimed"):
        fixture.backlog.unblock("A")
    fixture.backlog.complete("A")
    for command in (fixture.backlog.block, fixture.backlog.unblock, fixture.backlog.renew, fixture.backlog.fail):
        with pytest.raises(InvalidTransition, match="done"):
            command("A")


def test_an_unclaimed_card_can_neither_fail_nor_be_renewed(fixture: BacklogFixture) -> None:
    fixture.cards("A")
    for command in (fixture.backlog.renew, fixture.backlog.fail):
        with pytest.raises(InvalidTransition, match="claim it first"):
            command("A")


def test_a_clock_that_goes_back_breaks_no_rule(fixture: BacklogFixture) -> None:
    fixture.cards("A")
    held = fixture.claim()
    fixture.later(seconds=-300)
    renewed = fixture.backlog.renew("A", ttl=MINUTE, token=held.claim_token)
    assert renewed.updated_at == held.updated_at
    assert fixture.backlog.complete("A", token=held.claim_token).updated_at == held.updated_at


def test_a_claim_that_runs_out_is_freed_no_sooner_than_the_card_changed(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B")
    fixture.claim(ttl=MINUTE)
    fixture.later(seconds=100)
    linked = fixture.backlog.link("A", "B")
    fixture.later(seconds=-30)
    assert [card.updated_at for card in fixture.backlog.reclaim()] == [linked.updated_at]


def test_a_claim_begins_no_sooner_than_the_card_was_freed(fixture: BacklogFixture) -> None:
    fixture.cards("A")
    fixture.later(seconds=60)
    fixture.backlog.block("A")
    freed = fixture.backlog.unblock("A")
    fixture.later(seconds=-30)
    held = fixture.claim(ttl=MINUTE)
    assert (held.claimed_at, held.claim_expires_at) == (freed.updated_at, freed.updated_at + MINUTE)


def test_the_history_of_a_card_is_its_own(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B")
    fixture.cards("C", depends_on=["A"])
    held: Card = fixture.claim()
    fixture.backlog.complete("A", token=held.claim_token)
    assert fixture.types("A") == ["created", "claimed", "completed"]
    assert fixture.types("B") == ["created"]
    assert fixture.types("C") == ["created"]
    assert [entry.seq for entry in fixture.backlog.history("A")] == [1, 4, 5]
