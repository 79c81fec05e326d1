"""Dispatch, in every version on every storage: what follows from an outcome is written with it."""

from collections.abc import Sequence

from squid_dagster.journal.contract.dispatch_store import Completed, PlanRequest, Settlement
from squid_dagster.protocol import Fact, RunUnit, run_thread
from squid_dagster.protocol.errors import InvalidArgument, InvalidFact, StaleClaim, TerminalRun
from tests.facts import RUN, key, planned, runnable, scheduled, signal, started, t
from tests.journal.access import all_entries, facts_of
from tests.journal.dispatch_fixture import (
    DispatchFixture,
    Planner,
    broke,
    claim,
    done,
    keys,
    one,
    other_token,
    refused,
    start,
    statuses,
    work,
)


def test_what_follows_from_an_outcome_is_written_with_it(dispatch: DispatchFixture) -> None:
    # given a run whose first step is done
    start(dispatch, RUN)
    held = one(dispatch)
    dispatch.wait(5)
    revision = dispatch.storage.revision(run_thread(RUN))
    plan = Planner()
    # when it is settled with a planner
    answer = dispatch.store.settle([done(held)], plan)[0].unwrap()
    assert answer.status == "completed"
    # then the planner saw the run, what was settled, and the time
    (request,) = plan.asked
    assert (request.run_id, request.now) == (RUN, t(5))
    assert set(request.run.planned) == {key()}
    assert request.run.start is not None
    assert [(a.runnable_key, a.status, a.result) for a in request.settled] == [(key(), "completed", {"ok": True})]
    # and all that followed is on record, the outcome before its application
    written = facts_of(all_entries(dispatch.storage))[-4:]
    assert {f.type for f in written} == {
        "attempt_completed",
        "runnable_applied",
        "runnables_planned",
        "attempt_scheduled",
    }
    assert [f.type for f in written].index("attempt_completed") < [f.type for f in written].index("runnable_applied")
    assert dispatch.storage.revision(run_thread(RUN)) == revision + 2
    assert statuses(dispatch) == {key(): "completed", key(visit=2): "available"}
    assert one(dispatch).attempt.runnable_key == key(visit=2)


def test_a_planner_sees_all_that_was_settled_of_a_run_at_once(dispatch: DispatchFixture) -> None:
    dispatch.put(planned(runnable(), runnable(step="ship")), scheduled(), scheduled(step="ship"), planned(run="run-2"))
    dispatch.put(work("run-2"))
    claims = claim(dispatch, limit=3)
    plan = Planner(last_visit=0)
    dispatch.store.settle([done(c) for c in claims[:1]] + [broke(claims[2])] + [done(claims[1])], plan)
    # it may be asked again, if the fast way does not apply
    asked = {(r.run_id, *sorted(a.step for a in r.settled)) for r in plan.asked}
    assert asked == {(RUN, "charge", "ship"), ("run-2", "charge")}


def test_the_end_of_a_run_is_written_with_its_last_outcome_and_fences_the_rest(dispatch: DispatchFixture) -> None:
    # given a run with two attempts claimed
    start(dispatch, RUN)
    dispatch.put(planned(runnable(step="ship")), scheduled(step="ship"))
    first, second = claim(dispatch, limit=2)
    # when the first of them ends the run
    assert dispatch.store.settle([done(first)], Planner(last_visit=1))[0].unwrap().status == "completed"
    # then the other comes too late
    refused(dispatch.store.settle([done(second)])[0], TerminalRun)
    unit = RunUnit.fold(dispatch.storage.read_run(RUN))
    assert (unit.run.status, unit.dispatch.fenced, unit.anomalies) == ("completed", True, [])
    dispatch.wait(9999)
    assert claim(dispatch) == []


def test_a_planner_that_refuses_one_run_leaves_that_run_as_it_was_and_the_others_go_on(
    dispatch: DispatchFixture,
) -> None:
    # given three runs, one of which cannot be planned
    start(dispatch, "run-1", "run-2", "run-3")
    claims = claim(dispatch, limit=3)
    plan = Planner()

    def picky(request: PlanRequest) -> Sequence[Fact]:
        if request.run_id == "run-2":
            raise InvalidArgument("no such step")
        return plan(request)

    # when all three are settled together
    answers = dispatch.store.settle([done(c) for c in claims], picky)
    # then that one is told why, and nothing of it is written
    assert [type(a.error) for a in answers] == [type(None), InvalidArgument, type(None)]
    assert statuses(dispatch, "run-2") == {key("run-2"): "claimed"}
    for run in ("run-1", "run-3"):
        assert statuses(dispatch, run) == {key(run): "completed", key(run, visit=2): "available"}
    # and it can be settled later
    assert dispatch.store.settle([done(claims[1])], plan)[1 - 1].unwrap().status == "completed"
    assert statuses(dispatch, "run-2")[key("run-2", visit=2)] == "available"


def test_a_planner_whose_facts_cannot_be_written_fails_its_own_run_only(dispatch: DispatchFixture) -> None:
    start(dispatch, "run-1", "run-2")
    claims = claim(dispatch, limit=2)

    def verbose(request: PlanRequest) -> Sequence[Fact]:
        return [signal(request.run_id, payload={"x": "y" * (17_000_000 if request.run_id == "run-1" else 1)})]

    answers = dispatch.store.settle([done(c) for c in claims], verbose)
    assert isinstance(answers[0].error, InvalidFact)
    assert answers[1].unwrap().status == "completed"
    assert statuses(dispatch, "run-1") == {key("run-1"): "claimed"}


def test_a_planner_is_not_asked_about_refused_outcomes(dispatch: DispatchFixture) -> None:
    start(dispatch, RUN)
    held = one(dispatch)
    plan = Planner()
    refused(dispatch.store.settle([Settlement(other_token(held.ref), Completed(1))], plan)[0], StaleClaim)
    assert plan.asked == []


def test_repeating_a_planned_outcome_changes_nothing(dispatch: DispatchFixture) -> None:
    start(dispatch, RUN)
    held = one(dispatch)
    dispatch.store.settle([done(held)], Planner())
    before = dispatch.entries()
    assert dispatch.store.settle([done(held)], Planner())[0].unwrap().status == "completed"
    assert dispatch.entries() == before
    assert statuses(dispatch) == {key(): "completed", key(visit=2): "available"}


def test_a_planner_may_schedule_the_work_of_other_runs(dispatch: DispatchFixture) -> None:
    start(dispatch, RUN)
    held = one(dispatch)
    child: list[Fact] = [started("child-1"), planned(run="child-1"), scheduled("child-1")]
    dispatch.store.settle([done(held)], lambda _: child)
    assert keys(claim(dispatch, limit=9)) == ["child-1"]
