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
    Desk,
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


def test_the_raw_token_is_nowhere_but_in_the_claim(desk: Desk) -> None:
    # given claims that were used for everything
    desk.put(work("run-1"), work("run-2"), work("run-3"))
    claims = claim(desk, limit=3)
    answers = desk.store.heartbeat([c.ref for c in claims])
    answers += desk.store.release([claims[0].ref], "going home")
    answers += desk.store.settle([done(claims[1]), broke(claims[2])])
    answers += desk.store.settle([done(claims[0])])
    stored = "\n".join(to_json(fact) for fact in facts_of(all_entries(desk.storage)))
    if isinstance(desk.storage, PostgresStorage):
        with raw(desk.storage) as connection:
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


def test_the_fencing_token_counts_claims_over_all_attempts_of_a_visit_and_never_falls(desk: Desk) -> None:
    desk.put(scheduled(), scheduled(visit=2, visible_at=t(9999)), work("run-2", visible_at=t(9999)))
    tokens: list[int] = []
    # claimed and released
    first = one(desk)
    tokens.append(first.attempt.fencing_token)
    desk.store.release([first.ref])
    # claimed and lost
    tokens.append(one(desk).attempt.fencing_token)
    desk.wait(60)
    # taken over and failed
    third = one(desk)
    tokens.append(third.attempt.fencing_token)
    (answer,) = desk.store.settle([broke(third, NextAttempt(key(attempt=2), seconds(0)))])
    assert answer.unwrap().status == "failed"
    # tried again
    fourth = one(desk)
    tokens.append(fourth.attempt.fencing_token)
    assert (fourth.attempt.runnable_key, fourth.attempt.deliveries) == (key(attempt=2), 1)
    assert tokens == [1, 2, 3, 4]
    # and another visit, or another run, counts for itself
    desk.wait(9999)
    assert [c.attempt.fencing_token for c in claim(desk, limit=9)] == [5, 1, 1]


def test_attempts_of_one_visit_that_are_claimed_together_get_tokens_of_their_own(desk: Desk) -> None:
    desk.put(scheduled(attempt=1), scheduled(attempt=2), scheduled(attempt=3))
    assert [c.attempt.fencing_token for c in claim(desk, limit=3)] == [1, 2, 3]
    assert set(statuses(desk).values()) == {"claimed"}


def test_two_runs_that_use_the_same_idempotency_key_are_counted_apart(desk: Desk) -> None:
    desk.put(work("run-1", idempotency_key="same"), work("run-2", idempotency_key="same"))
    assert [c.attempt.fencing_token for c in claim(desk, limit=2)] == [1, 1]
    assert statuses(desk, "run-2") == {key("run-2"): "claimed"}
    # also when one of them was claimed before
    desk.put(work("run-3", idempotency_key="same"))
    assert one(desk).attempt.fencing_token == 1
    assert statuses(desk, "run-3") == {key("run-3"): "claimed"}


def test_a_dead_letter_takes_no_fencing_token_from_an_attempt_of_its_visit(desk: Desk) -> None:
    desk.put(scheduled(attempt=1, max_deliveries=1), scheduled(attempt=2, visible_at=t(60)))
    assert one(desk).attempt.fencing_token == 1
    desk.wait(60)
    assert [(c.attempt.attempt_number, c.attempt.fencing_token) for c in claim(desk, limit=9)] == [(2, 2)]
    assert statuses(desk) == {key(): "dead_lettered", key(attempt=2): "claimed"}


# --- fences and leases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pretend", [other_token, other_claim])
def test_only_the_holder_of_claim_and_token_may_act(desk: Desk, pretend: Callable[[ClaimRef], ClaimRef]) -> None:
    # given a claim, and a caller with another id or token
    desk.put(scheduled())
    held = one(desk)
    stranger, before = pretend(held.ref), desk.entries()
    # when that one tries everything
    for answers in (
        desk.store.settle([Settlement(stranger, Completed({"ok": True}))]),
        desk.store.settle([Settlement(stranger, Failed({"message": "no"}))]),
        desk.store.heartbeat([stranger]),
        desk.store.release([stranger]),
    ):
        # then all of it is refused and nothing is written
        refused(answers[0], StaleClaim)
    assert desk.entries() == before
    # and the holder goes on
    assert desk.store.settle([done(held)])[0].unwrap().status == "completed"
    # nor does the stranger's repeat of a settled outcome pass for the holder's
    refused(desk.store.settle([Settlement(stranger, Completed({"ok": True}))])[0], StaleClaim)


def test_an_answer_holds_either_the_attempt_or_the_error(desk: Desk) -> None:
    desk.put(scheduled())
    held = one(desk)
    (bad,) = desk.store.heartbeat([other_token(held.ref)])
    (good,) = desk.store.heartbeat([held.ref])
    assert (bad.attempt, type(bad.error)) == (None, StaleClaim)
    assert good.attempt is not None
    assert good.error is None


def test_what_was_never_scheduled_is_not_found(desk: Desk) -> None:
    desk.put(scheduled())
    held = one(desk)
    for ref in (
        ClaimRef(QUEUE, "nobody", "nobody:charge:1:1", "a", "b"),
        ClaimRef(QUEUE, RUN, key(visit=7), "a", "b"),
        ClaimRef("slow", RUN, key(), held.ref.claim_id, held.ref.token),
    ):
        refused(desk.store.settle([Settlement(ref, Completed(1))])[0], NotFound)
        refused(desk.store.heartbeat([ref])[0], NotFound)
        refused(desk.store.release([ref])[0], NotFound)
    assert desk.entries() == 2


def test_a_lease_runs_out_exactly_at_its_end(desk: Desk) -> None:
    desk.put(scheduled())
    first = one(desk, lease=seconds(30))
    desk.wait(29.999999)
    assert desk.store.expired(QUEUE) == []
    assert claim(desk) == []
    desk.wait(0.000001)
    assert [a.runnable_key for a in desk.store.expired(QUEUE)] == [key()]
    (second,) = claim(desk)
    assert second.ref.claim_id != first.ref.claim_id
    assert (second.attempt.deliveries, second.attempt.fencing_token) == (2, 2)
    assert desk.store.expired(QUEUE) == []


def test_expired_claims_are_shown_queue_by_queue_in_the_order_in_which_they_ran_out(desk: Desk) -> None:
    desk.put(work("run-1"), work("run-2"), work("run-3", queue="slow"))
    one(desk, seconds(20))
    one(desk, seconds(10))
    desk.store.claim("slow", "worker-1", lease=seconds(5))
    assert desk.store.expired(QUEUE) == desk.store.expired("slow") == []
    desk.wait(60)
    assert [a.run_id for a in desk.store.expired(QUEUE)] == ["run-2", "run-1"]
    assert [a.run_id for a in desk.store.expired("slow")] == ["run-3"]


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


def test_a_zombie_can_do_nothing_after_takeover(desk: Desk) -> None:
    # given a worker that lost its lease to another
    desk.put(scheduled())
    zombie = one(desk)
    desk.wait(60)
    holder = one(desk)
    before = desk.entries()
    # when it comes back
    refused_everything(desk, zombie, StaleClaim)
    # then nothing of it stays
    assert desk.entries() == before
    assert desk.store.settle([done(holder)])[0].unwrap().status == "completed"
    refused(desk.store.settle([done(zombie)])[0], StaleClaim)


def test_a_late_outcome_is_refused_although_nobody_took_over(desk: Desk) -> None:
    desk.put(scheduled())
    late = one(desk, lease=seconds(30))
    desk.wait(30)
    before = desk.entries()
    refused_everything(desk, late, ExpiredClaim)
    assert desk.entries() == before
    assert statuses(desk) == {key(): "claimed"}


def test_an_outcome_an_instant_before_the_lease_ends_counts(desk: Desk) -> None:
    desk.put(scheduled())
    held = one(desk, lease=seconds(30))
    desk.wait(29.999999)
    assert desk.store.settle([done(held)])[0].unwrap().status == "completed"


def test_a_heartbeat_extends_a_lease_and_never_shortens_it(desk: Desk) -> None:
    desk.put(scheduled())
    held = one(desk, lease=seconds(60))
    desk.wait(30)
    assert desk.store.heartbeat([held.ref], seconds(60))[0].unwrap().lease_until == t(90)
    assert desk.store.heartbeat([held.ref], seconds(1))[0].unwrap().lease_until == t(90)
    desk.wait(59)
    assert claim(desk) == []
    desk.wait(1)
    assert [a.lease_until for a in desk.store.expired(QUEUE)] == [t(90)]
    assert len(claim(desk)) == 1


def test_heartbeats_of_many_claims_go_together_and_a_lost_one_does_not_fail_the_rest(desk: Desk) -> None:
    desk.put(*(work(f"run-{n}") for n in range(3)))
    first, lost, third = claim(desk, limit=3)
    desk.store.release([lost.ref])
    answers = desk.store.heartbeat([first.ref, lost.ref, third.ref], seconds(120))
    assert [answer.ref for answer in answers] == [first.ref, lost.ref, third.ref]
    assert answers[0].unwrap().lease_until == answers[2].unwrap().lease_until == t(120)
    refused(answers[1], StaleClaim)


def test_a_released_attempt_is_claimable_at_once_and_was_neither_a_failure_nor_a_delivery(desk: Desk) -> None:
    desk.put(scheduled(max_deliveries=1))
    for _ in range(3):
        held = one(desk)
        assert held.attempt.deliveries == 1
        released = desk.store.release([held.ref], "shutting down")[0].unwrap()
        assert (released.status, released.deliveries, released.lease_until) == ("available", 0, None)
        assert [a.runnable_key for a in desk.store.visible(QUEUE)] == [key()]
        refused(desk.store.settle([done(held)])[0], StaleClaim)
        refused(desk.store.release([held.ref])[0], StaleClaim)
    assert facts_of(all_entries(desk.storage))[-1].reason == "shutting down"


def test_a_clock_that_goes_back_neither_steals_nor_loses_a_claim(desk: Desk) -> None:
    desk.put(scheduled())
    desk.wait(100)
    held = one(desk, lease=seconds(60))
    desk.wait(-90)
    assert claim(desk) == []
    assert desk.store.heartbeat([held.ref], seconds(60))[0].unwrap().lease_until == t(160)
    # a release and a new claim, by a clock that is behind, happen when the attempt was last heard of
    assert desk.store.release([held.ref])[0].unwrap().last_at == t(100)
    again = one(desk, lease=seconds(60))
    assert (again.attempt.last_at, again.lease_until) == (t(100), t(160))
    assert desk.store.settle([done(again)])[0].unwrap().settled_at == t(100)
    assert statuses(desk) == {key(): "completed"}
