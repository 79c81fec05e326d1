"""Dispatch, in every version on every storage: what was delivered too often becomes a dead letter."""

from collections import Counter

from squid_dagster.protocol.errors import StaleClaim
from squid_dagster.protocol.facts import DEFAULT_MAX_DELIVERIES
from tests.facts import QUEUE, claimed, key, scheduled, t
from tests.journal.access import all_entries, facts_of
from tests.journal.dispatch_fixture import DispatchFixture, claim, done, keys, one, refused, statuses, work


def test_what_was_delivered_too_often_is_dead_lettered_by_the_claim_that_meets_it(dispatch: DispatchFixture) -> None:
    # given an attempt that two workers lost, and one behind it
    dispatch.put(work("run-1", max_deliveries=2, priority=5), work("run-2"))
    for _ in range(2):
        assert keys(claim(dispatch)) == ["run-1"]
        dispatch.wait(60)
    # when a worker claims
    assert keys(claim(dispatch)) == ["run-2"]
    # then the first is parked and the second is given
    assert statuses(dispatch, "run-1") == {key("run-1"): "dead_lettered"}
    fact = next(f for f in facts_of(all_entries(dispatch.storage)) if f.type == "attempt_dead_lettered")
    assert (fact.deliveries, fact.occurred_at, fact.run_id) == (2, t(120), "run-1")
    dispatch.wait(60)
    assert dispatch.store.dead_letter_expired(QUEUE) == []


def test_a_claim_parks_what_is_spent_even_when_it_gets_nothing(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled(max_deliveries=1))
    one(dispatch)
    dispatch.wait(60)
    assert claim(dispatch) == []
    assert statuses(dispatch) == {key(): "dead_lettered"}


def test_recovery_dead_letters_without_claiming(dispatch: DispatchFixture) -> None:
    dispatch.put(work("run-1", max_deliveries=1), work("run-2", max_deliveries=1), work("run-3"))
    lost = claim(dispatch, limit=3)
    assert dispatch.store.dead_letter_expired(QUEUE) == []
    dispatch.wait(60)
    assert dispatch.store.dead_letter_expired("slow") == []
    assert dispatch.store.dead_letter_expired(QUEUE, limit=1) == [key("run-1")]
    assert dispatch.store.dead_letter_expired(QUEUE) == [key("run-2")]
    assert dispatch.store.dead_letter_expired(QUEUE) == []
    assert statuses(dispatch, "run-3") == {key("run-3"): "claimed"}
    refused(dispatch.store.settle([done(lost[0])])[0], StaleClaim)
    assert keys(claim(dispatch, limit=9)) == ["run-3"]


def test_more_than_a_thousand_spent_attempts_do_not_hide_a_live_one(dispatch: DispatchFixture) -> None:
    spent = [work(f"spent-{n}", max_deliveries=1, priority=1) for n in range(1100)]
    dispatch.put(*spent, *(claimed(fact.run_id, at=0, lease=10) for fact in spent), work("alive"), work("alive-too"))
    dispatch.wait(60)
    assert keys(claim(dispatch, limit=2)) == ["alive", "alive-too"]
    parked = [f for f in facts_of(all_entries(dispatch.storage)) if f.type == "attempt_dead_lettered"]
    assert len({f.run_id for f in parked}) == len(parked) == 1100


def test_a_claim_parks_no_more_than_a_thousand_and_its_limit_in_one_commit(postgres_dispatch: DispatchFixture) -> None:
    spent = [work(f"spent-{n}", max_deliveries=1) for n in range(1100)]
    postgres_dispatch.put(*spent, *(claimed(fact.run_id, at=0, lease=10) for fact in spent))
    postgres_dispatch.wait(60)
    assert claim(postgres_dispatch, limit=20) == []
    entries = all_entries(postgres_dispatch.storage)
    commits = Counter(entry.position >> 20 for entry in entries if entry.fact.type == "attempt_dead_lettered")
    assert sorted(commits.values()) == [80, 1020]


def test_more_than_a_thousand_expired_claims_do_not_hide_a_spent_one_from_recovery(dispatch: DispatchFixture) -> None:
    waiting = [work(f"run-{n}") for n in range(1050)]
    dispatch.put(*waiting, *(claimed(fact.run_id, at=0, lease=10) for fact in waiting))
    dispatch.put(work("spent", max_deliveries=1), claimed("spent", at=0, lease=20))
    dispatch.wait(60)
    assert dispatch.store.dead_letter_expired(QUEUE) == [key("spent")]


def test_an_attempt_without_a_cap_of_its_own_is_delivered_five_times(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled())
    for _ in range(DEFAULT_MAX_DELIVERIES):
        assert len(claim(dispatch)) == 1
        dispatch.wait(60)
    assert claim(dispatch) == []
    assert statuses(dispatch) == {key(): "dead_lettered"}
