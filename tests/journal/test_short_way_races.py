"""The short way of a settlement beside everything else: lost answers, odd planners, odd claims, and others at work."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.journal.dispatch import ClaimRef, Completed, Planner, PlanRequest, Settlement
from squid_dagster.protocol import Fact, RunUnit
from squid_dagster.protocol.errors import NotFound, StaleClaim, StorageUnavailable, TerminalRun
from squid_dagster.workflow import Workflow
from tests.facts import (
    QUEUE,
    RUN,
    T0,
    applied,
    key,
    planned,
    queued,
    runnable,
    scheduled,
    started,
    step_paused,
    t,
    terminal,
)
from tests.journal.contract import (
    Wire,
    all_entries,
    assert_views_agree_with_the_journal,
    facts_of,
    raw,
    terminate_backends,
    wait_for_a_lock,
)
from tests.journal.desk import Desk, claim, done, refused, seconds, statuses


def _nothing() -> None:
    """A step of which only the facts matter."""


def chain(*steps: str) -> Workflow:
    """One step after the other."""
    wf = Workflow("chain")
    for before, name in zip((None, *steps), steps, strict=False):
        wf.step(name=name, after=[before] if before else [])(_nothing)
    return wf


# --- lost answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [["a"], ["a", "b"]], ids=["the run ends", "the run goes on"])
@pytest.mark.parametrize("marker", ["settle_rows", "COMMIT"])
def test_a_completion_whose_answer_was_lost_is_told_as_written(
    wire: Wire, behind_wire: PostgresStorage, steps: list[str], marker: str
) -> None:
    # given two runs, and a connection that breaks after the commit
    squid = Squid(behind_wire, [chain(*steps)])
    squid.start_many("chain", [None] * 2)
    claims = squid.runtime.dispatch.claim(QUEUE, "worker", limit=2)
    wire.lose_answer_to(marker)
    # when both are settled
    answers = squid.runtime.dispatch.settle([done(each) for each in claims], squid.runtime.plan)
    # then they hear that they were, also the one whose run has ended by it
    assert wire.lost == 1
    assert [(answer.error, answer.unwrap().status) for answer in answers] == [(None, "completed")] * 2
    assert [answer.unwrap().result for answer in answers] == [{"ok": True}] * 2
    # and nothing is there twice
    types = [fact.type for fact in facts_of(all_entries(behind_wire))]
    assert (types.count("attempt_completed"), types.count("runnable_applied")) == (2, 2)
    assert_views_agree_with_the_journal(behind_wire)


@pytest.mark.parametrize("cut", [1, 2, 21], ids=["once", "twice", "more often than it is tried"])
def test_a_connection_that_is_cut_between_lock_and_write_leaves_nothing_halfway(
    postgres: PostgresStorage, cut: int
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
    # when the claim is settled
    if cut > 20:
        with pytest.raises(StorageUnavailable):
            squid.runtime.dispatch.settle([done(each) for each in held], plan)
        assert all_entries(postgres) == before
    # then it is settled once the connection holds
    (answer,) = squid.runtime.dispatch.settle([done(each) for each in held], plan)
    assert answer.unwrap().status == "completed"
    assert squid.inspect_run(held[0].ref.run_id).status == "completed"
    assert_views_agree_with_the_journal(postgres)


def test_what_a_rival_does_while_the_short_way_waits_for_the_run_is_seen(postgres: PostgresStorage) -> None:
    # given a run that somebody is about to cancel, and holds
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


def test_two_siblings_that_are_settled_at_once_by_two_committers_are_joined_once(postgres: PostgresStorage) -> None:
    # given the last two steps before a join, and their run held by somebody
    wf = Workflow("join")
    for name, after in (("a", []), ("b", []), ("c", ["a", "b"])):
        wf.step(name=name, after=after)(_nothing)
    squid = Squid(postgres, [wf])
    run_id = squid.start("join").run_id
    both = squid.runtime.dispatch.claim(QUEUE, "worker", limit=2)
    with ThreadPoolExecutor(2) as pool, raw(postgres, autocommit=False) as connection:
        connection.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (run_id,))
        # when each is settled in a commit of its own, at the same time
        settling = [pool.submit(squid.runtime.dispatch.settle, [done(each)], squid.runtime.plan) for each in both]
        wait_for_a_lock(postgres, 2)
        connection.rollback()
        answers = [each.result(30)[0] for each in settling]
    # then both are applied, and the join was planned by whoever came second
    assert [answer.unwrap().status for answer in answers] == ["completed"] * 2
    unit = RunUnit.fold(postgres.read_run(run_id))
    assert sorted(attempt.step for attempt in unit.dispatch.attempts.values()) == ["a", "b", "c"]
    assert unit.anomalies == []
    assert_views_agree_with_the_journal(postgres)


@pytest.mark.parametrize("waited", [20, 65], ids=["within the first lease", "within the extended lease only"])
def test_a_lease_that_was_extended_counts_and_its_row_keeps_it(postgres_desk: Desk, waited: float) -> None:
    # given a claim for a minute, extended after ten seconds
    postgres_desk.put(started(), queued(), planned(), scheduled())
    (held,) = claim(postgres_desk)
    postgres_desk.wait(10)
    assert postgres_desk.store.heartbeat([held.ref], seconds(60))[0].unwrap().lease_until == t(70)
    postgres_desk.wait(waited - 10)
    # when it is settled with the attempt as it was claimed
    (answer,) = postgres_desk.store.settle([done(held)], _next)
    # then it counts, and nothing that the heartbeat wrote is lost
    assert answer.unwrap().settled_at == t(waited)
    assert statuses(postgres_desk) == {key(): "completed", key(visit=2): "available"}


# --- planners that are not like ours --------------------------------------------------------------------------------


def _apply(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, attempt.step, result=None) for attempt in request.settled]


def _next(request: PlanRequest, *, times: int = 1) -> list[Fact]:
    """The same follow-up for whichever attempt is settled: whoever comes second repeats what is planned."""
    follow: dict[str, Any] = {"visit": 2, "visible_at": T0}
    (attempt,) = request.settled
    facts: list[Fact] = [applied(request.run_id, attempt.step, result=None)]
    for _ in range(times):
        facts.append(planned(runnable(request.run_id, **follow), run=request.run_id))
        facts.append(scheduled(request.run_id, **follow))
    return facts


def _next_twice(request: PlanRequest) -> list[Fact]:
    return _next(request, times=2)


def _known_again(request: PlanRequest) -> list[Fact]:
    """Plan what is planned already, by the very object."""
    (known,) = [
        each.runnable for each in request.run.planned.values() if each.runnable and each.runnable.step == "ship"
    ]
    fact = planned(known, run=request.run_id)
    return [applied(request.run_id, result=None), fact, scheduled(request.run_id, "ship")]


def _pauses_after_the_end(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, result=None), terminal(request.run_id), step_paused(request.run_id)]


def _ends_twice(request: PlanRequest) -> list[Fact]:
    return [terminal(request.run_id), terminal(request.run_id, status="failed", error={"message": "no"})]


def _applies_after_the_end(request: PlanRequest) -> list[Fact]:
    return [terminal(request.run_id), applied(request.run_id, result=None)]


def _two_runs_in_one_plan(request: PlanRequest) -> list[Fact]:
    return [applied(request.run_id, result=None), planned(runnable("run-9"), run="run-9")]


def _schedules_elsewhere(request: PlanRequest) -> list[Fact]:
    follow: dict[str, Any] = {"visit": 2, "visible_at": T0}
    return [
        applied(request.run_id, result=None),
        planned(runnable(request.run_id, queue="slow", **follow), run=request.run_id),
        scheduled(request.run_id, queue="slow", **follow),
    ]


def _nothing_at_all(_: PlanRequest) -> list[Fact]:
    return []


PLANNERS: list[Planner] = [
    _apply,
    _next,
    _next_twice,
    _known_again,
    _pauses_after_the_end,
    _ends_twice,
    _applies_after_the_end,
    _two_runs_in_one_plan,
    _schedules_elsewhere,
    _nothing_at_all,
]


@pytest.mark.parametrize("other_step", ["is held", "is done", "was followed"])
@pytest.mark.parametrize("plan", PLANNERS, ids=lambda plan: plan.__name__)
def test_whatever_is_planned_the_views_say_what_the_journal_says(
    postgres_desk: Desk, plan: Planner, other_step: str
) -> None:
    # given a run with two steps, to one of which something has happened
    desk = postgres_desk
    desk.put(
        started(),
        queued(),
        planned(runnable(), runnable(step="ship")),
        scheduled(),
        scheduled(step="ship", priority=-1),
    )
    mine, other = claim(desk, limit=2)
    if other_step == "is done":
        assert desk.store.settle([done(other)], _apply)[0].error is None
    elif other_step == "was followed":
        assert desk.store.settle([done(other)], _next)[0].error is None
        assert [each.ref.runnable_key for each in claim(desk)] == [key(visit=2)]
    # when the first one is settled with a plan of any kind
    (answer,) = desk.store.settle([done(mine)], plan)
    # then it was recorded, as the long way does, and the views agree
    assert answer.error is None
    assert_views_agree_with_the_journal(desk.storage)  # type: ignore[arg-type]  # it is one on Postgres
    assert verify(desk.storage) == []  # type: ignore[arg-type]
    assert_views_agree_with_the_journal(desk.storage)  # type: ignore[arg-type]


# --- claims that are not ours ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_id", ['a"b', 'run-1","run-2', "a\\", "{}", "ü", "", 'x"}', "run-1 "])
def test_a_claim_on_a_run_that_cannot_be_takes_nobody_with_it(postgres_desk: Desk, run_id: str) -> None:
    # given a good claim, and one that names no run
    postgres_desk.put(started(), queued(), planned(), scheduled())
    (good,) = claim(postgres_desk)
    bad = ClaimRef(QUEUE, run_id, good.ref.runnable_key, good.ref.claim_id, good.ref.token)
    # when both are settled together
    answers = postgres_desk.store.settle([Settlement(bad, Completed(None), good.attempt), done(good)], _next)
    # then each is answered as it would be alone
    refused(answers[0], NotFound)
    assert answers[1].unwrap().status == "completed"
    assert_views_agree_with_the_journal(postgres_desk.storage)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["queue", "claim_id", "token", "runnable_key"])
def test_a_claim_that_is_not_the_one_at_hand_is_refused_as_ever(postgres_desk: Desk, what: str) -> None:
    postgres_desk.put(started(), queued(), planned(), scheduled())
    (good,) = claim(postgres_desk)
    given = {name: getattr(good.ref, name) for name in ("queue", "run_id", "runnable_key", "claim_id", "token")}
    bad = ClaimRef(**{**given, what: "other"})
    (answer,) = postgres_desk.store.settle([Settlement(bad, Completed(None), good.attempt)], _next)
    refused(answer, NotFound if what in ("queue", "runnable_key") else StaleClaim)


def test_what_was_claimed_by_another_hand_is_not_believed(postgres_desk: Desk) -> None:
    # given a claim, and the attempt of another one that says it is this one
    postgres_desk.put(*(fact for run in (RUN, "run-2") for fact in (started(run), queued(run), planned(run=run))))
    postgres_desk.put(scheduled(), scheduled("run-2"))
    mine, other = claim(postgres_desk, limit=2)
    forged = other.attempt._replace(claim_id=mine.ref.claim_id, claim_token_hash=mine.ref.token_hash)
    (answer,) = postgres_desk.store.settle([Settlement(mine.ref, Completed(None), forged)], _next)
    assert answer.unwrap().run_id == mine.ref.run_id
    assert_views_agree_with_the_journal(postgres_desk.storage)  # type: ignore[arg-type]
