"""Dispatch, in every version on every storage: tokens, fences and leases keep all but the holder out."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from squid_dagster.journal.contract.dispatch_store import ClaimRef, Completed, Failed, NextAttempt, Settlement
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import to_json
from squid_dagster.protocol.errors import ExpiredClaim, NotFound, StaleClaim
from tests.facts import QUEUE, RUN, key, scheduled, t
from tests.journal.access import all_entries, facts_of, put, raw, wait_for_a_lock
from tests.journal.dispatch_fixture import (
    DispatchFixture,
    broke,
    claim,
    done,
    one,
    other_claim,
    other_token,
    refused,
    refused_everything,
    seconds,
    statuses,
    work,
)

# --- tokens ---------------------------------------------------------------------------------------------------------


def test_the_raw_token_is_nowhere_but_in_the_claim(dispatch: DispatchFixture) -> None:
    # given claims that were used for everything
    dispatch.put(work("run-1"), work("run-2"), work("run-3"))
    claims = claim(dispatch, limit=3)
    answers = dispatch.store.heartbeat([c.ref for c in claims])
    answers += dispatch.store.release([claims[0].ref], "going home")
    answers += dispatch.store.settle([done(claims[1]), broke(claims[2])])
    answers += dispatch.store.settle([done(claims[0])])
    stored = "\n".join(to_json(fact) for fact in facts_of(all_entries(dispatch.storage)))
    if isinstance(dispatch.storage, PostgresStorage):
        with raw(dispatch.storage) as connection:
            for table in ("journal_entries", "attempts", "runs", "journal_commits", "journal_checkpoints", "anomalies"):
                rows = connection.execute(f"SELECT to_json(x)::text FROM {table} x").fetchall()
                stored += "\n".join(text for (text,) in rows)
    for c in claims:
        # then neither the journal nor anything printed shows its token, only its hash
        assert len(c.ref.token) >= 32
        assert c.ref.token not in stored
        assert c.ref.token_hash in stored
        assert c.ref.token not in repr(c) + str(c) + repr(c.ref) + repr(claims) + repr(answers)
        assert c.ref.token not in repr(done(c)) + "".join(str(a.error) for a in answers)
    assert len({c.ref.token for c in claims}) == len({c.ref.claim_id for c in claims}) == 3


def test_the_fencing_token_counts_claims_over_all_attempts_of_a_visit_and_never_falls(
    dispatch: DispatchFixture,
) -> None:
    dispatch.put(scheduled(), scheduled(visit=2, visible_at=t(9999)), work("run-2", visible_at=t(9999)))
    tokens: list[int] = []
    # claimed and released
    first = one(dispatch)
    tokens.append(first.attempt.fencing_token)
    dispatch.store.release([first.ref])
    # claimed and lost
    tokens.append(one(dispatch).attempt.fencing_token)
    dispatch.wait(60)
    # taken over and failed
    third = one(dispatch)
    tokens.append(third.attempt.fencing_token)
    (answer,) = dispatch.store.settle([broke(third, NextAttempt(key(attempt=2), seconds(0)))])
    assert answer.unwrap().status == "failed"
    # tried again
    fourth = one(dispatch)
    tokens.append(fourth.attempt.fencing_token)
    assert (fourth.attempt.runnable_key, fourth.attempt.deliveries) == (key(attempt=2), 1)
    assert tokens == [1, 2, 3, 4]
    # and another visit, or another run, counts for itself
    dispatch.wait(9999)
    assert [c.attempt.fencing_token for c in claim(dispatch, limit=9)] == [5, 1, 1]


def test_attempts_of_one_visit_that_are_claimed_together_get_tokens_of_their_own(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled(attempt=1), scheduled(attempt=2), scheduled(attempt=3))
    assert [c.attempt.fencing_token for c in claim(dispatch, limit=3)] == [1, 2, 3]
    assert set(statuses(dispatch).values()) == {"claimed"}


def test_two_runs_that_use_the_same_idempotency_key_are_counted_apart(dispatch: DispatchFixture) -> None:
    dispatch.put(work("run-1", idempotency_key="same"), work("run-2", idempotency_key="same"))
    assert [c.attempt.fencing_token for c in claim(dispatch, limit=2)] == [1, 1]
    assert statuses(dispatch, "run-2") == {key("run-2"): "claimed"}
    # also when one of them was claimed before
    dispatch.put(work("run-3", idempotency_key="same"))
    assert one(dispatch).attempt.fencing_token == 1
    assert statuses(dispatch, "run-3") == {key("run-3"): "claimed"}


def test_a_dead_letter_takes_no_fencing_token_from_an_attempt_of_its_visit(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled(attempt=1, max_deliveries=1), scheduled(attempt=2, visible_at=t(60)))
    assert one(dispatch).attempt.fencing_token == 1
    dispatch.wait(60)
    assert [(c.attempt.attempt_number, c.attempt.fencing_token) for c in claim(dispatch, limit=9)] == [(2, 2)]
    assert statuses(dispatch) == {key(): "dead_lettered", key(attempt=2): "claimed"}


# --- fences and leases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pretend", [other_token, other_claim])
def test_only_the_holder_of_claim_and_token_may_act(
    dispatch: DispatchFixture, pretend: Callable[[ClaimRef], ClaimRef]
) -> None:
    # given a claim, and a caller with another id or token
    dispatch.put(scheduled())
    held = one(dispatch)
    stranger, before = pretend(held.ref), dispatch.entries()
    # when that one tries everything
    for answers in (
        dispatch.store.settle([Settlement(stranger, Completed({"ok": True}))]),
        dispatch.store.settle([Settlement(stranger, Failed({"message": "no"}))]),
        dispatch.store.heartbeat([stranger]),
        dispatch.store.release([stranger]),
    ):
        # then all of it is refused and nothing is written
        refused(answers[0], StaleClaim)
    assert dispatch.entries() == before
    # and the holder goes on
    assert dispatch.store.settle([done(held)])[0].unwrap().status == "completed"
    # nor does the stranger's repeat of a settled outcome pass for the holder's
    refused(dispatch.store.settle([Settlement(stranger, Completed({"ok": True}))])[0], StaleClaim)


def test_an_answer_holds_either_the_attempt_or_the_error(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled())
    held = one(dispatch)
    (bad,) = dispatch.store.heartbeat([other_token(held.ref)])
    (good,) = dispatch.store.heartbeat([held.ref])
    assert (bad.attempt, type(bad.error)) == (None, StaleClaim)
    assert good.attempt is not None
    assert good.error is None


def test_what_was_never_scheduled_is_not_found(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled())
    held = one(dispatch)
    for ref in (
        ClaimRef(QUEUE, "nobody", "nobody:charge:1:1", "a", "b"),
        ClaimRef(QUEUE, RUN, key(visit=7), "a", "b"),
        ClaimRef("slow", RUN, key(), held.ref.claim_id, held.ref.token),
    ):
        refused(dispatch.store.settle([Settlement(ref, Completed(1))])[0], NotFound)
        refused(dispatch.store.heartbeat([ref])[0], NotFound)
        refused(dispatch.store.release([ref])[0], NotFound)
    assert dispatch.entries() == 2


def test_a_lease_runs_out_exactly_at_its_end(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled())
    first = one(dispatch, lease=seconds(30))
    dispatch.wait(29.999999)
    assert dispatch.store.expired(QUEUE) == []
    assert claim(dispatch) == []
    dispatch.wait(0.000001)
    assert [a.runnable_key for a in dispatch.store.expired(QUEUE)] == [key()]
    (second,) = claim(dispatch)
    assert second.ref.claim_id != first.ref.claim_id
    assert (second.attempt.deliveries, second.attempt.fencing_token) == (2, 2)
    assert dispatch.store.expired(QUEUE) == []


def test_expired_claims_are_shown_queue_by_queue_in_the_order_in_which_they_ran_out(dispatch: DispatchFixture) -> None:
    dispatch.put(work("run-1"), work("run-2"), work("run-3", queue="slow"))
    one(dispatch, seconds(20))
    one(dispatch, seconds(10))
    dispatch.store.claim("slow", "worker-1", lease=seconds(5))
    assert dispatch.store.expired(QUEUE) == dispatch.store.expired("slow") == []
    dispatch.wait(60)
    assert [a.run_id for a in dispatch.store.expired(QUEUE)] == ["run-2", "run-1"]
    assert [a.run_id for a in dispatch.store.expired("slow")] == ["run-3"]


def test_a_lease_begins_when_a_claim_has_nothing_to_wait_for_any_more(postgres: PostgresStorage) -> None:
    # given a claim that waits for the queue's thread
    put(postgres, work("run-1"))
    store = PostgresDispatchStore(postgres)
    with raw(postgres, autocommit=False) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT FROM journal_threads WHERE id = %s FOR UPDATE", (work("run-1").thread,))
        claiming = pool.submit(store.claim, QUEUE, "worker-1", lease=seconds(60))
        wait_for_a_lock(postgres)
        # when it gets there at last
        waited_until = postgres.now()
        other.rollback()
        (claimed,) = claiming.result(30)
    # then its lease is as long as any
    assert claimed.lease_until >= waited_until + seconds(60)


def test_a_zombie_can_do_nothing_after_takeover(dispatch: DispatchFixture) -> None:
    # given a worker that lost its lease to another
    dispatch.put(scheduled())
    zombie = one(dispatch)
    dispatch.wait(60)
    holder = one(dispatch)
    before = dispatch.entries()
    # when it comes back
    refused_everything(dispatch, zombie, StaleClaim)
    # then nothing of it stays
    assert dispatch.entries() == before
    assert dispatch.store.settle([done(holder)])[0].unwrap().status == "completed"
    refused(dispatch.store.settle([done(zombie)])[0], StaleClaim)


def test_a_late_outcome_is_refused_although_nobody_took_over(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled())
    late = one(dispatch, lease=seconds(30))
    dispatch.wait(30)
    before = dispatch.entries()
    refused_everything(dispatch, late, ExpiredClaim)
    assert dispatch.entries() == before
    assert statuses(dispatch) == {key(): "claimed"}


def test_an_outcome_an_instant_before_the_lease_ends_counts(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled())
    held = one(dispatch, lease=seconds(30))
    dispatch.wait(29.999999)
    assert dispatch.store.settle([done(held)])[0].unwrap().status == "completed"


def test_a_heartbeat_extends_a_lease_and_never_shortens_it(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled())
    held = one(dispatch, lease=seconds(60))
    dispatch.wait(30)
    assert dispatch.store.heartbeat([held.ref], seconds(60))[0].unwrap().lease_until == t(90)
    assert dispatch.store.heartbeat([held.ref], seconds(1))[0].unwrap().lease_until == t(90)
    dispatch.wait(59)
    assert claim(dispatch) == []
    dispatch.wait(1)
    assert [a.lease_until for a in dispatch.store.expired(QUEUE)] == [t(90)]
    assert len(claim(dispatch)) == 1


def test_heartbeats_of_many_claims_go_together_and_a_lost_one_does_not_fail_the_rest(dispatch: DispatchFixture) -> None:
    dispatch.put(*(work(f"run-{n}") for n in range(3)))
    first, lost, third = claim(dispatch, limit=3)
    dispatch.store.release([lost.ref])
    answers = dispatch.store.heartbeat([first.ref, lost.ref, third.ref], seconds(120))
    assert [answer.ref for answer in answers] == [first.ref, lost.ref, third.ref]
    assert answers[0].unwrap().lease_until == answers[2].unwrap().lease_until == t(120)
    refused(answers[1], StaleClaim)


def test_a_released_attempt_is_claimable_at_once_and_was_neither_a_failure_nor_a_delivery(
    dispatch: DispatchFixture,
) -> None:
    dispatch.put(scheduled(max_deliveries=1))
    for _ in range(3):
        held = one(dispatch)
        assert held.attempt.deliveries == 1
        released = dispatch.store.release([held.ref], "shutting down")[0].unwrap()
        assert (released.status, released.deliveries, released.lease_until) == ("available", 0, None)
        assert [a.runnable_key for a in dispatch.store.visible(QUEUE)] == [key()]
        refused(dispatch.store.settle([done(held)])[0], StaleClaim)
        refused(dispatch.store.release([held.ref])[0], StaleClaim)
    assert facts_of(all_entries(dispatch.storage))[-1].reason == "shutting down"


def test_a_clock_that_goes_back_neither_steals_nor_loses_a_claim(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled())
    dispatch.wait(100)
    held = one(dispatch, lease=seconds(60))
    dispatch.wait(-90)
    assert claim(dispatch) == []
    assert dispatch.store.heartbeat([held.ref], seconds(60))[0].unwrap().lease_until == t(160)
    # a release and a new claim, by a clock that is behind, happen when the attempt was last heard of
    assert dispatch.store.release([held.ref])[0].unwrap().last_at == t(100)
    again = one(dispatch, lease=seconds(60))
    assert (again.attempt.last_at, again.lease_until) == (t(100), t(160))
    assert dispatch.store.settle([done(again)])[0].unwrap().settled_at == t(100)
    assert statuses(dispatch) == {key(): "completed"}
