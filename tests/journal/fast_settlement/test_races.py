"""The fast way of a settlement beside everything else: lost answers, odd planners, odd claims, and others at work."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage, verify
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import ClaimRef, Completed, Planner, PlanRequest, Settlement
from squid_dagster.journal.plan_state.cache import PlanStates
from squid_dagster.journal.postgres.dispatch.settle_fast import settle_fast
from squid_dagster.journal.postgres.dispatch.settle_template import SettleTemplates
from squid_dagster.protocol import Fact, RunUnit
from squid_dagster.protocol.errors import NotFound, StaleClaim, StorageUnavailable, TerminalRun
from squid_dagster.workflow import Workflow
from tests.facts import QUEUE, RUN, key, planned, queued, runnable, scheduled, started, t
from tests.journal.access import (
    LossyProxy,
    all_entries,
    assert_views_agree_with_the_journal,
    facts_of,
    raw,
    terminate_backends,
    wait_for_a_lock,
)
from tests.journal.dispatch_fixture import DispatchFixture, claim, done, refused, seconds, statuses
from tests.journal.fast_settlement.planners import PLANNERS, apply_results, next_visit, pauses
from tests.journal.fast_settlement.workflows import facts_without_names, fast


def _nothing() -> None:
    """Return nothing: only its facts matter."""


def chain(*steps: str) -> Workflow:
    """Return a workflow of one step after the other."""
    wf = Workflow("chain")
    for before, name in zip((None, *steps), steps, strict=False):
        wf.step(name=name, after=[before] if before else [])(_nothing)
    return wf


# --- lost answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [["a"], ["a", "b"]], ids=["the run ends", "the run goes on"])
def test_a_completion_whose_answer_was_lost_is_told_as_written(
    lossy_proxy: LossyProxy, behind_lossy_proxy: PostgresStorage, fast_counts: list[int], steps: list[str]
) -> None:
    # given two runs, and a connection that breaks after the commit
    squid = Squid(behind_lossy_proxy, [chain(*steps)])
    squid.start_many("chain", [None] * 2)
    claims = squid.runtime.dispatch.claim(QUEUE, "worker", limit=2)
    lossy_proxy.lose_answer_to("settle_runs")
    # when both are settled
    answers = squid.runtime.dispatch.settle([done(one) for one in claims], squid.runtime.plan)
    # then they are answered as written, also the one whose run has ended by it
    assert lossy_proxy.lost == 1
    assert fast_counts == [2]
    assert [(answer.error, answer.unwrap().status) for answer in answers] == [(None, "completed")] * 2
    assert [answer.unwrap().result for answer in answers] == [{"ok": True}] * 2
    # and nothing is there twice
    types = [fact.type for fact in facts_of(all_entries(behind_lossy_proxy))]
    assert (types.count("attempt_completed"), types.count("runnable_applied")) == (2, 2)
    assert_views_agree_with_the_journal(behind_lossy_proxy)


@pytest.mark.parametrize("steps", [["a"], ["a", "b"]], ids=["the run ends", "the run goes on"])
def test_a_group_whose_answer_was_lost_is_told_as_far_as_it_was_written(
    lossy_proxy: LossyProxy,
    behind_lossy_proxy: PostgresStorage,
    clock: VirtualClock,
    fast_counts: list[int],
    steps: list[str],
) -> None:
    # given a group with a claim that was taken over, and a connection that breaks after the commit
    squid = Squid(behind_lossy_proxy, [chain(*steps)])
    squid.start_many("chain", [None] * 3)
    store = squid.runtime.dispatch
    claims = sorted(store.claim(QUEUE, "worker", limit=3), key=lambda one: one.ref.run_id)
    store.release([claims[1].ref])
    (rival,) = store.claim(QUEUE, "rival")
    before = all_entries(behind_lossy_proxy)
    lossy_proxy.lose_answer_to("settle_runs")
    # when it is settled
    answers = store.settle([done(one) for one in claims], squid.runtime.plan)
    # then what was written is told as written, what was not is refused, and nothing is there twice
    assert lossy_proxy.lost == 1
    assert fast_counts == [2]
    assert [type(answer.error) for answer in answers] == [type(None), StaleClaim, type(None)]
    assert answers[0].unwrap().settled_at == clock.now()
    types = [fact.type for fact in facts_of(all_entries(behind_lossy_proxy)[len(before) :])]
    assert (types.count("attempt_completed"), types.count("runnable_applied")) == (2, 2)
    assert store.settle([done(rival)], squid.runtime.plan)[0].unwrap().status == "completed"
    assert_views_agree_with_the_journal(behind_lossy_proxy)


def test_a_commit_that_is_sent_again_has_the_first_answer(
    postgres_virtual: PostgresStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a group of which one run was written, under a commit id that is known
    squid = Squid(postgres_virtual, [chain("a")])
    squid.start_many("chain", [None] * 2)
    claims = sorted(squid.runtime.dispatch.claim(QUEUE, "worker", limit=2), key=lambda one: one.ref.run_id)
    with raw(postgres_virtual) as connection:
        connection.execute("UPDATE attempts SET claim_id = 'x' WHERE run_id = %s", (claims[1].ref.run_id,))
    commit_id = uuid4()
    monkeypatch.setattr(f"{settle_fast.__module__}.uuid4", lambda: commit_id)
    states, same_states = PlanStates(), PlanStates()
    for plan_states in (states, same_states):
        assert fast(postgres_virtual, claims, _refuses, plan_states) == []
    assert fast(postgres_virtual, claims, squid.runtime.plan, states) == [claims[0].ref.run_id]
    before = all_entries(postgres_virtual)
    receipt = postgres_virtual.find_commit(commit_id)
    assert receipt == {
        f"squid:run:{claims[0].ref.run_id}": postgres_virtual.revision(f"squid:run:{claims[0].ref.run_id}"),
        f"squid:dispatch:{QUEUE}": postgres_virtual.revision(f"squid:dispatch:{QUEUE}"),
    }
    # when it is sent again, as after an answer that was lost, and by now the other claim would stand
    with raw(postgres_virtual) as connection:
        connection.execute("UPDATE attempts SET claim_id = %s", (claims[1].ref.claim_id,))
    assert fast(postgres_virtual, claims, squid.runtime.plan, same_states) == [claims[0].ref.run_id]
    # then nothing more is written
    assert all_entries(postgres_virtual) == before


def _refuses(_: PlanRequest) -> list[Fact]:
    raise StaleClaim("the planner says no")


@pytest.mark.parametrize(
    ("way", "cut"),
    [("fast", 1), ("general", 1), ("general", 2), ("general", 21)],
    ids=["fast", "general", "general, twice", "general, more often than it is tried"],
)
def test_a_connection_that_is_cut_between_plan_and_write_leaves_nothing_halfway(
    postgres: PostgresStorage, way: str, cut: int
) -> None:
    # given a planner in whose time the server cuts the connection, so many times
    squid = Squid(postgres, [chain("a")])
    squid.start("chain")
    held = squid.runtime.dispatch.claim(QUEUE, "worker")
    asked: list[PlanRequest] = []

    def plan(request: PlanRequest) -> Sequence[Fact]:
        asked.append(request)
        if len(asked) <= cut:
            assert terminate_backends(postgres) > 0
        return squid.runtime.plan(request)

    before = all_entries(postgres)
    store = squid.runtime.dispatch if way == "fast" else PostgresDispatchStore(postgres)
    # when the claim is settled
    if cut > 20:
        with pytest.raises(StorageUnavailable):
            store.settle([done(one) for one in held], plan)
        assert all_entries(postgres) == before
    # then it is settled once the connection holds
    (answer,) = store.settle([done(one) for one in held], plan)
    assert answer.unwrap().status == "completed"
    assert squid.inspect_run(held[0].ref.run_id).status == "completed"
    assert_views_agree_with_the_journal(postgres)


def test_what_a_rival_does_while_the_fast_way_waits_for_the_run_is_seen(postgres: PostgresStorage) -> None:
    # given a run that a session is about to cancel, and holds
    squid = Squid(postgres, [chain("a")])
    run_id = squid.start("chain").run_id
    (held,) = squid.runtime.dispatch.claim(QUEUE, "worker")
    with ThreadPoolExecutor(2) as pool, raw(postgres, autocommit=False) as connection:
        connection.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (run_id,))
        first = pool.submit(squid.cancel, run_id)
        wait_for_a_lock(postgres)
        # when it is settled meanwhile, and the other one was first
        second = pool.submit(squid.runtime.dispatch.settle, [done(held)], squid.runtime.plan)
        wait_for_a_lock(postgres, 2)
        connection.rollback()
        first.result(30)
        (answer,) = second.result(30)
    # then the outcome is refused, and the run is what the first one made of it
    refused(answer, TerminalRun)
    assert squid.inspect_run(run_id).status == "cancelled"
    assert_views_agree_with_the_journal(postgres)


def test_a_takeover_that_comes_while_the_fast_way_waits_for_the_attempt_is_seen(postgres: PostgresStorage) -> None:
    # given an attempt that another transaction is about to take over, and holds
    squid = Squid(postgres, [chain("a")])
    squid.start("chain")
    (held,) = squid.runtime.dispatch.claim(QUEUE, "worker")
    before = all_entries(postgres)
    with ThreadPoolExecutor(1) as pool, raw(postgres, autocommit=False) as connection:
        connection.execute("SELECT FROM attempts WHERE runnable_key = %s FOR UPDATE", (held.ref.runnable_key,))
        # when it is settled meanwhile
        settling = pool.submit(squid.runtime.dispatch.settle, [done(held)], squid.runtime.plan)
        wait_for_a_lock(postgres)
        connection.execute("UPDATE attempts SET claim_id = 'rival', claim_token_hash = 'rival'")
        connection.commit()
        (answer,) = settling.result(30)
    # then the outcome is refused, and nothing is written
    refused(answer, StaleClaim)
    assert all_entries(postgres) == before


def test_two_siblings_that_are_settled_at_once_by_two_committers_are_joined_once(postgres: PostgresStorage) -> None:
    # given the last two steps before a join, and their run held by a session
    wf = Workflow("join")
    for name, after in (("a", []), ("b", []), ("c", ["a", "b"])):
        wf.step(name=name, after=after)(_nothing)
    squid = Squid(postgres, [wf])
    run_id = squid.start("join").run_id
    both = squid.runtime.dispatch.claim(QUEUE, "worker", limit=2)
    with ThreadPoolExecutor(2) as pool, raw(postgres, autocommit=False) as connection:
        connection.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (run_id,))
        # when each is settled in a commit of its own, at the same time
        settling = [pool.submit(squid.runtime.dispatch.settle, [done(one)], squid.runtime.plan) for one in both]
        wait_for_a_lock(postgres, 2)
        connection.rollback()
        answers = [call.result(30)[0] for call in settling]
    # then both are applied, and the join was planned by the second
    assert [answer.unwrap().status for answer in answers] == ["completed"] * 2
    unit = RunUnit.fold(postgres.read_run(run_id))
    assert sorted(attempt.step for attempt in unit.dispatch.attempts.values()) == ["a", "b", "c"]
    assert unit.anomalies == []
    assert_views_agree_with_the_journal(postgres)


def test_what_another_process_has_settled_meanwhile_is_seen(
    postgres: PostgresStorage, postgres_url: str, fast_counts: list[int]
) -> None:
    # given two processes that hold steps of the same run, and know the run as it was
    wf = Workflow("join")
    for name in ("a", "b", "c", "d"):
        wf.step(name=name)(_nothing)
    wf.step(name="e", after=["a", "b", "c", "d"])(_nothing)
    elsewhere = PostgresStorage(postgres_url, postgres.schema)
    one, other = Squid(postgres, [wf]), Squid(elsewhere, [wf])
    run_id = one.start("join").run_id
    held = [squid.runtime.dispatch.claim(QUEUE, "worker", limit=2) for squid in (one, other)]
    # when they settle in turn
    for n in range(2):
        for squid, claims in zip((one, other), held, strict=True):
            (answer,) = squid.runtime.dispatch.settle([done(claims[n])], squid.runtime.plan)
            assert answer.unwrap().status == "completed"
    # then each was planned for by what is on record: what was known of the run has moved in between
    assert fast_counts == [1, 1, 0, 0]
    unit = RunUnit.fold(postgres.read_run(run_id))
    assert sorted(attempt.step for attempt in unit.dispatch.attempts.values()) == ["a", "b", "c", "d", "e"]
    assert unit.anomalies == []
    assert_views_agree_with_the_journal(postgres)
    elsewhere.close()


@pytest.mark.parametrize("waited", [20, 65], ids=["within the first lease", "within the extended lease only"])
def test_a_lease_that_was_extended_counts_and_its_row_keeps_it(
    postgres_dispatch: DispatchFixture, waited: float
) -> None:
    # given a claim for a minute, extended after ten seconds
    postgres_dispatch.put(started(), queued(), planned(), scheduled())
    (held,) = claim(postgres_dispatch)
    postgres_dispatch.wait(10)
    assert postgres_dispatch.store.heartbeat([held.ref], seconds(60))[0].unwrap().lease_until == t(70)
    postgres_dispatch.wait(waited - 10)
    # when it is settled with the attempt as it was claimed
    (answer,) = postgres_dispatch.store.settle([done(held)], next_visit)
    # then it counts, and nothing that the heartbeat wrote is lost
    assert answer.unwrap().settled_at == t(waited)
    assert statuses(postgres_dispatch) == {key(): "completed", key(visit=2): "available"}


@pytest.mark.parametrize("other_step", ["is not there", "is held", "is done", "has paused the run", "was followed"])
@pytest.mark.parametrize("plan", PLANNERS, ids=lambda plan: plan.__name__)
def test_whatever_is_planned_both_ways_write_it_and_the_views_agree(
    postgres_dispatch: DispatchFixture, plan: Planner, other_step: str
) -> None:
    # given two runs, whose other step is not there, or has seen something
    dispatch, written = postgres_dispatch, {}
    storage = dispatch.storage
    assert isinstance(storage, PostgresStorage)
    for run, settles in ((RUN, dispatch.store), ("run-2", PostgresDispatchStore(storage))):
        steps = ["charge"] if other_step == "is not there" else ["charge", "ship"]
        dispatch.put(started(run), queued(run), planned(*(runnable(run, step) for step in steps), run=run))
        dispatch.put(*(scheduled(run, step) for step in steps))
        held = {one.attempt.step: one for one in claim(dispatch, limit=9) if one.ref.run_id == run}
        mine, other = held["charge"], held[steps[-1]]
        if other_step == "is done":
            assert settles.settle([done(other)], apply_results)[0].error is None
        elif other_step == "has paused the run":
            assert settles.settle([done(other)], pauses)[0].error is None
        elif other_step == "was followed":
            assert settles.settle([done(other)], next_visit)[0].error is None
            assert key(run, visit=2) in [one.ref.runnable_key for one in claim(dispatch, limit=9)]
        # when the first one is settled with a plan of any kind, by a store that has claimed it and by one that has not
        (answer,) = settles.settle([done(mine)], plan)
        # then it was recorded, and the views agree
        assert answer.error is None
        assert_views_agree_with_the_journal(storage, [run])
        written[run] = facts_without_names(storage, run)
    # and both ways have written the same
    assert written[RUN] == written["run-2"]
    assert verify(storage) == []


# --- claims that are not ours ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_id", ['a"b', 'run-1","run-2', "a\\", "{}", "ü", "", 'x"}', "run-1 "])
def test_a_claim_on_a_run_that_cannot_be_takes_nobody_with_it(postgres_dispatch: DispatchFixture, run_id: str) -> None:
    # given a good claim, and one that names no run
    postgres_dispatch.put(started(), queued(), planned(), scheduled())
    (good,) = claim(postgres_dispatch)
    bad = ClaimRef(QUEUE, run_id, good.ref.runnable_key, good.ref.claim_id, good.ref.token)
    # when both are settled together
    answers = postgres_dispatch.store.settle([Settlement(bad, Completed(None)), done(good)], next_visit)
    # then each is answered as it would be alone
    refused(answers[0], NotFound)
    assert answers[1].unwrap().status == "completed"
    assert_views_agree_with_the_journal(postgres_dispatch.storage)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["queue", "claim_id", "token", "runnable_key"])
def test_a_claim_that_is_not_the_one_at_hand_is_refused_as_ever(postgres_dispatch: DispatchFixture, what: str) -> None:
    postgres_dispatch.put(started(), queued(), planned(), scheduled())
    (good,) = claim(postgres_dispatch)
    given = {name: getattr(good.ref, name) for name in ("queue", "run_id", "runnable_key", "claim_id", "token")}
    bad = ClaimRef(**{**given, what: "other"})
    (answer,) = postgres_dispatch.store.settle([Settlement(bad, Completed(None))], next_visit)
    refused(answer, NotFound if what in ("queue", "runnable_key") else StaleClaim)


def test_what_was_claimed_by_another_hand_is_not_believed(postgres_dispatch: DispatchFixture) -> None:
    # given a claim, and the attempt of another one under its id
    postgres_dispatch.put(*(fact for run in (RUN, "run-2") for fact in (started(run), queued(run), planned(run=run))))
    postgres_dispatch.put(scheduled(), scheduled("run-2"))
    mine, other = claim(postgres_dispatch, limit=2)
    forged = other.attempt._replace(claim_id=mine.ref.claim_id, claim_token_hash=mine.ref.token_hash)
    storage = postgres_dispatch.storage
    assert isinstance(storage, PostgresStorage)
    before = all_entries(storage)
    known, templates = {mine.ref.claim_id: forged}, SettleTemplates(10_000)
    assert settle_fast(storage, PlanStates(), templates, known, [done(mine)], next_visit) == {}
    assert all_entries(storage) == before
    (answer,) = postgres_dispatch.store.settle([done(mine)], next_visit)
    assert answer.unwrap().run_id == mine.ref.run_id
    assert_views_agree_with_the_journal(postgres_dispatch.storage)  # type: ignore[arg-type]
