"""Dispatch, in every version on every storage: what a claim returns, in which order, and what cannot be claimed."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from itertools import count
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import DispatchStore, NextAttempt
from squid_dagster.journal.contract.storage import Append, Storage
from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import AttemptStatus, Fact, definition_key
from squid_dagster.protocol.errors import ExpiredClaim, TerminalRun
from squid_dagster.protocol.folds.attempt import claim_order
from squid_dagster.protocol.folds.dispatch import DispatchProjection
from tests.facts import (
    QUEUE,
    RUN,
    claimed,
    fenced,
    key,
    quarantined,
    queue_paused,
    queue_resumed,
    scheduled,
    t,
    terminal,
)
from tests.journal.access import WITHOUT_SHRINKING, at_once, facts_of, put, raw, wait_for_a_lock
from tests.journal.dispatch_fixture import (
    DispatchFixture,
    broke,
    claim,
    done,
    keys,
    one,
    refused,
    seconds,
    statuses,
    work,
)
from tests.journal.schema.version5 import claim_one

_numbers = count(1)


def _postgres(dispatch: DispatchFixture) -> PostgresStorage:
    """Return the storage of a store on Postgres."""
    assert isinstance(dispatch.storage, PostgresStorage)
    return dispatch.storage


# --- claims ---------------------------------------------------------------------------------------------------------


def test_a_claim_gives_the_attempt_its_input_its_fence_and_its_lease(dispatch: DispatchFixture) -> None:
    # given an attempt
    scheduled_fact = scheduled(input={"amount": 5, "big": 10**30}, definition_fingerprint="f1", definition_version="1")
    dispatch.put(scheduled_fact)
    # when it is claimed
    dispatch.wait(10)
    (claim_,) = dispatch.store.claim(QUEUE, "worker-9", lease=seconds(30))
    # then the claim says all that a worker needs
    attempt = claim_.attempt
    assert (attempt.run_id, attempt.runnable_key, attempt.step, attempt.queue) == (RUN, key(), "charge", QUEUE)
    assert attempt.input == {"amount": 5, "big": 10**30}
    assert (attempt.status, attempt.owner_id) == (AttemptStatus.CLAIMED, "worker-9")
    assert (attempt.deliveries, attempt.fencing_token, attempt.attempt_number) == (1, 1, 1)
    assert (attempt.workflow, attempt.definition_fingerprint, attempt.definition_version) == ("billing", "f1", "1")
    assert claim_.lease_until == t(40)
    assert (claim_.ref.queue, claim_.ref.run_id, claim_.ref.runnable_key) == (QUEUE, RUN, key())
    # and the journal has the fact
    fact = facts_of(dispatch.storage.read(scheduled_fact.thread))[-1]
    assert (fact.type, fact.claim_id, fact.occurred_at, fact.lease_until) == (
        "attempt_claimed",
        claim_.ref.claim_id,
        t(10),
        t(40),
    )
    assert (fact.owner_id, fact.fencing_token, fact.claim_token_hash) == ("worker-9", 1, claim_.ref.token_hash)
    assert statuses(dispatch) == {key(): "claimed"}


def test_an_empty_queue_gives_nothing_and_writes_nothing(dispatch: DispatchFixture) -> None:
    assert claim(dispatch, limit=10) == []
    dispatch.put(work("run-1", queue="slow"))
    assert claim(dispatch, limit=10) == []
    assert dispatch.entries() == 1


def test_higher_priority_goes_first_then_due_time_then_position(dispatch: DispatchFixture) -> None:
    dispatch.put(
        work("late", visible_at=t(20)),
        work("early", visible_at=t(10)),
        work("urgent", visible_at=t(30), priority=10),
        work("lazy", visible_at=t(0), priority=-10),
        work("early-too", visible_at=t(10)),
    )
    dispatch.wait(60)
    assert [a.run_id for a in dispatch.store.visible(QUEUE)] == ["urgent", "early", "early-too", "late", "lazy"]
    assert [a.run_id for a in dispatch.store.visible(QUEUE, 2)] == ["urgent", "early"]
    assert keys(claim(dispatch, limit=10)) == ["urgent", "early", "early-too", "late", "lazy"]


def test_a_claim_takes_from_its_own_queue_alone(dispatch: DispatchFixture) -> None:
    # given two queues with work of the same definition and priority, one after the other
    for number in range(3):
        dispatch.put(work(f"mine-{number}"), work(f"other-{number}", queue="slow"))
    # when more is claimed than either has, then each gives its own
    assert keys(claim(dispatch, limit=9)) == ["mine-0", "mine-1", "mine-2"]
    assert keys(dispatch.store.claim("slow", "worker-1", limit=9)) == ["other-0", "other-1", "other-2"]


def test_a_limit_is_kept_and_the_next_claim_goes_on_from_there(dispatch: DispatchFixture) -> None:
    dispatch.put(*(work(f"run-{n}") for n in range(5)))
    assert keys(claim(dispatch, limit=2)) == ["run-0", "run-1"]
    assert keys(claim(dispatch)) == ["run-2"]
    assert keys(claim(dispatch, limit=1000)) == ["run-3", "run-4"]
    assert claim(dispatch, limit=1000) == []


def test_a_small_claim_takes_what_was_due_first(dispatch: DispatchFixture) -> None:
    dispatch.put(work("late", visible_at=t(20)), work("early", visible_at=t(10)), work("later", visible_at=t(30)))
    dispatch.wait(60)
    assert [keys(claim(dispatch)) for _ in range(3)] == [["early"], ["late"], ["later"]]


def test_an_attempt_of_the_future_is_claimable_at_its_very_instant(dispatch: DispatchFixture) -> None:
    dispatch.put(work("run-1", visible_at=t(10), priority=10))
    dispatch.wait(9.999999)
    assert claim(dispatch) == []
    assert dispatch.store.visible(QUEUE) == []
    dispatch.wait(0.000001)
    assert [a.run_id for a in dispatch.store.visible(QUEUE)] == ["run-1"]
    assert keys(claim(dispatch)) == ["run-1"]
    assert dispatch.store.visible(QUEUE) == []


def test_an_attempt_that_is_not_due_never_stands_in_the_way_of_one_that_is(dispatch: DispatchFixture) -> None:
    dispatch.put(*(work(f"later-{n}", visible_at=t(99), priority=10) for n in range(20)), work("now", priority=-10))
    assert keys(claim(dispatch, limit=5)) == ["now"]


@given(data=st.data())
@settings(max_examples=20, phases=WITHOUT_SHRINKING)
def test_any_set_of_attempts_is_claimed_in_claim_order(data: st.DataObject, postgres_shared: PostgresStorage) -> None:
    # given attempts of any priority, due at any time, some of them claimed before
    times = st.sampled_from([0, 0, 5, 10, 20, 40])
    rows = data.draw(
        st.lists(
            st.tuples(st.sampled_from([-10, -1, 0, 0, 1, 10]), times, st.sampled_from([None, None, None, 1, 30, 50])),
            min_size=1,
            max_size=12,
        )
    )
    limit, queue = data.draw(st.integers(1, 8)), f"order{next(_numbers)}"
    facts: list[Fact] = []
    expected: list[tuple[int, datetime, int, str]] = []
    for n, (priority, due, leased) in enumerate(rows):
        run = f"{queue}-{n}"
        facts.append(work(run, priority=priority, visible_at=t(due), queue=queue, workflow=f"flow{n % 3}"))
        if leased is not None:
            facts.append(claimed(run, at=due, lease=leased, queue=queue))
        ready = t(due) if leased is None else t(due + leased)
        if ready <= t(40):
            expected.append((-priority, ready, n, run))
    in_order = [run for *_, run in sorted(expected)]
    clock = VirtualClock(t(40))
    postgres_shared.clock = clock
    memory = MemoryStorage(clock)
    put(memory, *facts)
    put(postgres_shared, *facts)
    stores: list[tuple[Storage, DispatchStore]] = [
        (memory, FoldDispatchStore(memory)),
        (postgres_shared, PostgresDispatchStore(postgres_shared)),
    ]
    for storage, store in stores:
        projection = DispatchProjection.fold(storage.read(f"squid:dispatch:{queue}"))
        assert [a.run_id for a in sorted(projection.claimable(t(40)), key=claim_order)] == in_order
        # when they are claimed, few at a time
        claimed_runs: list[str] = []
        while claims := store.claim(queue, "worker", limit=limit):
            assert len(claims) <= limit
            claimed_runs += keys(claims)
        # then they come by priority, due time and position; an expired claim was due when its lease ran out
        assert claimed_runs == in_order


def test_many_who_claim_at_once_share_the_work_without_overlap(dispatch: DispatchFixture) -> None:
    # given forty attempts and six workers
    dispatch.put(*(work(f"run-{n}") for n in range(40)))
    taken: list[str] = []
    lock = threading.Lock()

    def drain(owner: str) -> None:
        while claims := dispatch.store.claim(QUEUE, owner, limit=3):
            with lock:
                taken.extend(keys(claims))

    # when all claim until nothing is left
    at_once([partial(drain, f"worker-{n}") for n in range(6)])
    # then each attempt went to one of them
    assert sorted(taken) == sorted(f"run-{n}" for n in range(40))
    assert all(statuses(dispatch, f"run-{n}") == {key(f"run-{n}"): "claimed"} for n in range(40))


def test_a_claim_takes_the_next_attempt_when_another_transaction_holds_the_first(
    postgres_dispatch: DispatchFixture,
) -> None:
    # given two attempts, of which a session holds the first
    postgres_dispatch.put(work("held"), work("free"))
    with raw(_postgres(postgres_dispatch), autocommit=False) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT FROM attempts WHERE run_id = 'held' FOR UPDATE")
        # when a worker claims, then it does not wait
        claiming = pool.submit(claim, postgres_dispatch, 9)
        try:
            assert keys(claiming.result(10)) == ["free"]
        finally:
            other.rollback()
    assert keys(claim(postgres_dispatch, limit=9)) == ["held"]


def test_what_a_rival_claims_between_the_search_and_the_locks_of_a_claim_is_left_to_it(
    postgres_dispatch: DispatchFixture,
) -> None:
    storage = _postgres(postgres_dispatch)
    postgres_dispatch.put(work("run-1"), work("run-2"))
    with raw(storage, autocommit=False) as rival, ThreadPoolExecutor(1) as pool:
        # given a rival that lets others read attempts and not lock them
        rival.execute("LOCK TABLE attempts IN EXCLUSIVE MODE")
        # when a worker has found attempts, and the rival claims the first of them
        claiming = pool.submit(claim, postgres_dispatch, 9)
        wait_for_a_lock(storage)
        assert claim_one(rival, QUEUE, "rival") == "run-1"
        rival.commit()
        # then the worker gets the other one
        assert keys(claiming.result(30)) == ["run-2"]


# --- what gives no claims -------------------------------------------------------------------------------------------


def test_a_paused_queue_gives_no_claims_until_it_is_resumed(dispatch: DispatchFixture) -> None:
    # given a queue with work, of which one is claimed
    dispatch.put(work("run-1"), work("run-2", max_deliveries=1), work("run-3", queue="slow"))
    held = one(dispatch)
    # when it is paused
    dispatch.put(queue_paused())
    # then nothing can be claimed from it, although it is shown
    assert claim(dispatch, limit=9) == []
    assert [a.run_id for a in dispatch.store.visible(QUEUE)] == ["run-2"]
    # other queues go on, and what was claimed before can be settled
    assert keys(dispatch.store.claim("slow", "worker-1")) == ["run-3"]
    assert dispatch.store.heartbeat([held.ref])[0].unwrap().status == "claimed"
    assert dispatch.store.settle([done(held)])[0].unwrap().status == "completed"
    # and when it is resumed, claims go on
    dispatch.put(queue_resumed())
    assert keys(claim(dispatch, limit=9)) == ["run-2"]


def test_a_pause_that_a_claim_has_to_wait_for_is_seen_by_it(postgres_dispatch: DispatchFixture) -> None:
    # given a pause that is written and comes to its last step
    storage, commit_id = _postgres(postgres_dispatch), uuid4()
    postgres_dispatch.put(work("run-1"))
    with raw(storage, autocommit=False) as other, ThreadPoolExecutor(2) as pool:
        other.execute(
            "INSERT INTO journal_commits (id, receipt, committed_at) VALUES (%s, '{}', clock_timestamp())", (commit_id,)
        )
        pausing = pool.submit(storage.commit, [Append(queue_paused().thread, [queue_paused()])], commit_id)
        wait_for_a_lock(storage)
        # when a worker claims meanwhile, and waits for the thread
        claiming = pool.submit(claim, postgres_dispatch)
        wait_for_a_lock(storage, 2)
        other.rollback()
        pausing.result(30)
        # then it gets nothing
        assert claiming.result(30) == []
    assert statuses(postgres_dispatch, "run-1") == {key("run-1"): "available"}


def test_a_worker_claims_only_what_it_has_registered(dispatch: DispatchFixture) -> None:
    # given work of several definitions
    dispatch.put(
        work("other", workflow="refund", definition_fingerprint="f1", priority=10),
        work("older", workflow="billing", definition_fingerprint="f0"),
        work("mine", workflow="billing", definition_fingerprint="f1"),
        work("bare", workflow=None),
    )
    mine = definition_key("billing", "f1")
    # when a worker claims that knows one of them, or none
    assert claim(dispatch, limit=9, definitions=[]) == []
    assert claim(dispatch, limit=9, definitions=["nothing/known"]) == []
    assert keys(claim(dispatch, limit=9, definitions=[mine, mine])) == ["mine"]
    # then the rest stays visible for others
    assert [a.run_id for a in dispatch.store.visible(QUEUE)] == ["other", "older", "bare"]
    assert keys(claim(dispatch, limit=9, definitions=(mine, definition_key(None, None)))) == ["bare"]
    assert keys(claim(dispatch, limit=9, definitions=None)) == ["other", "older"]


def test_a_thousand_attempts_of_another_definition_do_not_hide_one_of_mine(dispatch: DispatchFixture) -> None:
    dispatch.put(*(work(f"run-{n}", workflow="refund", priority=10) for n in range(1050)), work("mine"))
    assert keys(claim(dispatch, limit=5, definitions=[definition_key("billing", None)])) == ["mine"]
    assert len(dispatch.store.visible(QUEUE, limit=2000)) == 1050


def test_what_is_shown_can_be_kept_to_definitions_before_it_is_limited(dispatch: DispatchFixture) -> None:
    # given much of another definition, of higher priority and longer expired, and a little of mine
    mine = [definition_key("billing", None)]
    dispatch.put(*(work(f"held-{n}", workflow="refund", priority=10) for n in range(5)), work("mine-held"))
    claim(dispatch, limit=5, lease=seconds(5))
    claim(dispatch, lease=seconds(9))
    dispatch.put(*(work(f"run-{n}", workflow="refund", priority=10) for n in range(5)), work("mine"), work("mine-too"))
    dispatch.wait(10)
    # when only mine is asked for, then the rest does not count towards the limit
    for look, expected in ((dispatch.store.visible, ["mine", "mine-too"]), (dispatch.store.expired, ["mine-held"])):
        assert [a.run_id for a in look(QUEUE, 3, definitions=mine)] == expected
        assert [a.run_id for a in look(QUEUE, 1, definitions=mine)] == expected[:1]
        assert look(QUEUE, definitions=["nothing/known"]) == look(QUEUE, definitions=[]) == []
        assert len(look(QUEUE, 3)) == len(look(QUEUE, 3, definitions=None)) == 3


def test_a_worker_does_not_dead_letter_what_it_has_not_registered(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled(workflow="refund", max_deliveries=1))
    one(dispatch)
    dispatch.wait(60)
    assert claim(dispatch, definitions=[definition_key("billing", None)]) == []
    assert statuses(dispatch) == {key(): "claimed"}


@pytest.mark.parametrize("how", ["terminal", "terminal and fenced", "fenced"])
def test_a_run_that_has_ended_gives_no_claims_and_takes_no_outcomes(dispatch: DispatchFixture, how: str) -> None:
    # given a run with one attempt claimed, one visible and one expired
    dispatch.put(
        scheduled("run-1", "c", priority=3), scheduled("run-1", "b", priority=2), scheduled("run-1", "a"), work("x")
    )
    lost, held = *claim(dispatch, lease=seconds(5)), *claim(dispatch, lease=seconds(500))
    dispatch.wait(10)
    # when the run ends
    ends: dict[str, list[Fact]] = {"terminal": [terminal(at=10)], "fenced": [fenced(at=10)]}
    dispatch.put(*(ends.get(how) or [fenced(at=10), terminal(at=10)]))
    # then nothing of it can be claimed, seen or settled; all else can
    assert keys(claim(dispatch, limit=9)) == ["x"]
    assert dispatch.store.visible(QUEUE) == dispatch.store.expired(QUEUE) == []
    assert dispatch.store.dead_letter_expired(QUEUE) == []
    before = dispatch.entries()
    for c in (lost, held):
        refused(dispatch.store.settle([done(c)])[0], TerminalRun)
        refused(dispatch.store.settle([broke(c, NextAttempt(c.ref.runnable_key + "x", seconds(1)))])[0], TerminalRun)
        refused(dispatch.store.heartbeat([c.ref])[0], TerminalRun)
        refused(dispatch.store.release([c.ref])[0], TerminalRun)
    dispatch.wait(9999)
    assert keys(claim(dispatch, limit=9)) == ["x"]
    assert dispatch.entries() == before + 1


def test_a_quarantined_run_gives_no_claims_and_all_others_do(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled(), scheduled(step="ship", max_deliveries=1), work("run-2"))
    first, second = claim(dispatch, limit=2)
    dispatch.store.release([first.ref])
    dispatch.put(quarantined())
    dispatch.wait(60)
    assert keys(claim(dispatch, limit=9)) == ["run-2"]
    assert dispatch.store.visible(QUEUE) == []
    assert statuses(dispatch) == {key(): "available", key(step="ship"): "claimed"}
    refused(dispatch.store.settle([done(second)])[0], ExpiredClaim)
