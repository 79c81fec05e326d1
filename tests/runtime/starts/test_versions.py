"""Versions: a run keeps the definition that it was started with, is held where that is missing, and says so."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Completed, Settlement
from squid_dagster.protocol.errors import IncompatibleDefinition, NotFound
from squid_dagster.workflow import InvalidWorkflow, Retry, Workflow, WorkflowsNotLoaded
from tests.runtime.runs import MakeSquid, drain, facts, finish, state_of, unit


class Order(BaseModel):
    amount: int = 1


def orders(version: str | None, *, extra: bool = False, result: Any = "old", **options: Any) -> Workflow:
    """Build a workflow of two steps, or of three: with `extra` its meaning, and so its fingerprint, is another."""
    wf = Workflow("orders", payload=Order, version=version)
    wf.step(name="charge", **options)(lambda: result)
    wf.approval("review")
    wf.step(name="ship")(lambda: result)
    wf.route("charge", to="review")
    wf.route("review", on="error", to="fail")
    wf.route("review", to="ship")
    if extra:
        wf.log("note", "shipped")
        wf.route("ship", to="note")
        wf.route("note", to="complete")
    else:
        wf.route("ship", to="complete")
    return wf


def held(squid: Squid, run_id: str) -> bool:
    return squid.inspect_run(run_id).status == "held"


def test_a_run_whose_definition_changed_is_held_and_says_so_and_nothing_ends_it(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    run_id = make_squid(orders("1")).start("orders").run_id
    newer = make_squid(orders("2", extra=True))
    written = state_of(newer.journal)
    assert newer.execute_next() is None
    snapshot = newer.inspect_run(run_id)
    assert (snapshot.status, snapshot.terminal) == ("held", False)
    explanation = newer.explain_run(run_id)
    assert (explanation.status, explanation.reason) == ("held", "held")
    for said in ("'1'", "'2'"):
        assert said in explanation.summary or said.strip("'") in explanation.summary
    details = explanation.details
    old, new = orders("1").freeze(), orders("2", extra=True).freeze()
    assert (details["persisted_version"], details["current_version"]) == ("1", "2")
    assert (details["persisted_fingerprint"], details["current_fingerprint"]) == (old.fingerprint, new.fingerprint)
    assert explanation.evidence, "the fact that says which version it was"
    assert [row.status for row in newer.list_runs(workflow="orders").runs] == ["held"]
    clock.advance(timedelta(days=9))
    assert newer.recover().failed == {}
    assert [fact for fact in state_of(newer.journal) if fact not in written and fact[2] == "run_terminal"] == []


def test_a_held_run_goes_on_when_its_version_is_registered_beside_the_new_one(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    run_id = make_squid(orders("1")).start("orders").run_id
    newer = make_squid(orders("2", extra=True))
    assert held(newer, run_id)
    both = make_squid([orders("1"), orders("2", extra=True, result="new")])
    drain(both)
    both.approve(run_id, actor="ada")
    snapshot = finish(both, clock, run_id)
    assert snapshot.status == "completed"
    assert (snapshot.outputs["ship"], snapshot.definition_version) == ("old", "1")
    fresh = both.start("orders").run_id
    drain(both)
    both.approve(fresh, actor="ada")
    assert finish(both, clock, fresh).outputs["ship"] == "new"
    versions = {fact.definition_version for fact in facts(both, fresh, "attempt_scheduled")}
    assert versions == {"2"}


def test_a_worker_takes_only_what_it_has_and_leaves_the_rest_visible(make_squid: MakeSquid) -> None:
    old, new = make_squid(orders("1")), make_squid(orders("2", extra=True))
    first, second = old.start("orders").run_id, new.start("orders").run_id
    assert drain(new) == 1
    assert new.inspect_run(second).status == "paused"
    assert [attempt.run_id for attempt in new.dispatch_agent().visible_attempts()] == [first]
    assert new.dispatch_agent().claim_many("w", 10) == [], "agents neither"
    assert make_squid([]).execute_next() is None
    assert drain(old) == 1
    assert old.inspect_run(first).status == "paused"


def test_commands_that_plan_need_the_definition_and_the_others_do_not(make_squid: MakeSquid) -> None:
    old = make_squid(orders("1"))
    waiting, other = (old.start("orders").run_id for _ in range(2))
    drain(old)
    newer = make_squid(orders("2", extra=True))
    written = state_of(newer.journal)
    for command in (newer.approve, newer.reject):
        with pytest.raises(IncompatibleDefinition, match=r"version '1'.*version '2'.*register"):
            command(waiting, actor="ada")
    assert state_of(newer.journal) == written
    newer.cancel(other)
    assert newer.inspect_run(other).status == "cancelled"
    assert old.approve(waiting, actor="ada").snapshot.status == "running"


def test_an_outcome_of_a_definition_that_is_not_here_is_refused_and_planned_where_it_is(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    old, newer = make_squid(orders("1")), make_squid(orders("2", extra=True))
    run_id = old.start("orders").run_id
    claim = old.dispatch_agent().claim_next("w")
    assert claim is not None
    written = state_of(old.journal)
    with pytest.raises(IncompatibleDefinition):
        newer.dispatch_agent().complete(claim, "done")
    assert state_of(old.journal) == written
    old.dispatch_agent().complete(claim, "done")
    assert old.inspect_run(run_id).status == "paused"


def test_recovery_names_held_runs_and_plans_for_them_where_their_definition_is(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    old, newer = make_squid(orders("1")), make_squid(orders("2", extra=True))
    run_id = old.start("orders").run_id
    (claim,) = old.runtime.dispatch.claim("default", "w")
    old.runtime.dispatch.settle([Settlement(claim.ref, Completed("done"))])  # and the process dies before it plans
    report = newer.recover()
    assert (report.held, report.failed, report.applied) == ([run_id], {}, 0)
    assert old.recover().applied == 1
    assert old.inspect_run(run_id).status == "paused"
    assert not unit(old, run_id).anomalies


def test_what_does_not_change_the_meaning_holds_nobody(make_squid: MakeSquid, clock: VirtualClock) -> None:
    run_id = make_squid(orders("1")).start("orders").run_id
    same = make_squid(orders("2", result="better", retry=Retry(max_attempts=9), priority=3, max_deliveries=9))
    assert not held(same, run_id)
    drain(same)
    same.approve(run_id, actor="ada")
    snapshot = finish(same, clock, run_id)
    assert (snapshot.status, snapshot.outputs["ship"]) == ("completed", "better")


def test_new_runs_use_the_definition_that_was_given_last_unless_a_version_is_named(make_squid: MakeSquid) -> None:
    old, new = orders("1"), orders("2", extra=True)
    squid = make_squid([old, new])

    def version(*arguments: Any, **options: Any) -> Any:
        return squid.start(*arguments, **options).snapshot.definition_version

    assert version("orders") == "2"
    assert version("orders", version="1") == "1"
    assert version(old) == "1"
    assert version(new) == "2"
    assert version(old.freeze()) == "1"
    assert make_squid([new, old]).start("orders").snapshot.definition_version == "1"
    with pytest.raises(NotFound, match=r"version '3' of workflow 'orders'.*orders 1, orders 2"):
        squid.start("orders", version="3")


def test_versions_that_differ_in_function_bodies_only_execute_their_own_runs(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid([orders("1", result="old"), orders("2", result="new")])
    runs = {version: squid.start("orders", version=version).run_id for version in ("1", "2")}
    drain(squid)
    for run_id in runs.values():
        squid.approve(run_id, actor="ada")
    ends = {version: finish(squid, clock, run_id).outputs["ship"] for version, run_id in runs.items()}
    assert ends == {"1": "old", "2": "new"}
    assert [facts(squid, run_id, "run_started")[0].definition_version for run_id in runs.values()] == ["1", "2"]


def test_a_run_that_an_earlier_release_started_goes_on_and_is_undone(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    undone: list[int] = []

    def charge(amount: int) -> int:
        return amount

    def refund(charge: int, amount: int) -> None:
        undone.append(charge + amount)

    wf = Workflow("orders", payload=Order)
    wf.step(compensate=refund)(charge)
    wf.approval("review")
    wf.route("charge", to="review")
    wf.route("review", to="complete")
    wf.route("review", on="error", to="fail")
    definition = wf.freeze()
    (former,) = definition.former_fingerprints
    earlier = make_squid([replace(definition, fingerprint=former, former_fingerprints=())])
    run_id = earlier.start("orders", {"amount": 2}).run_id
    new_run = make_squid(wf).start("orders", {"amount": 5}).run_id
    squid = make_squid(wf)
    assert not held(squid, run_id)
    drain(squid)
    for open_run in (run_id, new_run):
        squid.reject(open_run, actor="ada")
        assert finish(squid, clock, open_run).status == "failed"
    assert undone == [4, 10]
    prints = {fact.definition_fingerprint for fact in facts(squid, run_id, "attempt_scheduled")}
    assert prints == {former}, "a run keeps the fingerprint that it was started with"
    assert held(earlier, squid.start("orders").run_id)


def test_a_run_of_a_release_in_which_steps_took_no_payload_goes_on_with_its_defaults(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    wf = Workflow("orders")

    @wf.step
    def charge(amount: int = 5) -> int:
        return amount

    @wf.step
    def ship(charge: int, amount: int = 5, note: str = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
        return f"{charge} {amount} {note}"

    definition = wf.freeze()
    (former,) = definition.former_fingerprints
    steps = {
        name: replace(step, task=step.task and replace(step.task, parameters=step.task.parameters[:taken]))
        for (name, step), taken in zip(definition.steps.items(), (0, 1), strict=True)
    }
    earlier = make_squid([replace(definition, payload=None, steps=steps, fingerprint=former, former_fingerprints=())])
    run_id = earlier.start("orders").run_id
    squid = make_squid(wf)
    assert not held(squid, run_id)
    assert finish(squid, clock, run_id).outputs["ship"] == "5 5 None"

    starts: list[dict[str, Any]] = [{}, {"amount": 7}, {"note": "x"}, {"amount": 7, "note": "x"}]
    runs = [squid.start("orders", payload).run_id for payload in starts]
    ends = [finish(squid, clock, run_id).outputs["ship"] for run_id in runs]
    assert ends == ["5 5 None", "7 7 None", "5 5 x", "7 7 x"]
    assert held(earlier, squid.start("orders").run_id)


def test_two_meanings_under_one_version_are_refused(make_squid: MakeSquid) -> None:
    with pytest.raises(WorkflowsNotLoaded, match="'1'"):
        make_squid([orders("1"), orders("1", extra=True)])
    with pytest.raises(WorkflowsNotLoaded, match="None"):
        make_squid([orders(None).freeze(), orders(None, extra=True).freeze()])
    with pytest.raises(WorkflowsNotLoaded, match="different functions of step 'charge'"):
        make_squid([orders(None).freeze(), orders(None, result="new").freeze()])


def test_a_workflow_that_makes_no_sense_is_refused_when_it_is_handed_over(make_squid: MakeSquid) -> None:
    wf = Workflow("orders")
    wf.step(name="a")(lambda: None)
    wf.step(name="b")(lambda: None)
    wf.route("a", to="b")
    wf.route("b", to="a")
    with pytest.raises(InvalidWorkflow) as refused:
        make_squid(wf)
    assert len(refused.value.problems) > 1, "all errors at once"


def _waits(hours: int = 1, payload: type[BaseModel] = Order, version: str = "1", **markers: Any) -> Workflow:
    workflow = Workflow("waits", payload=payload, version=version)
    workflow.step(name="first", **markers)(lambda: 1)
    workflow.wait("rest", timedelta(hours=hours), after="first")
    return workflow


class Other(BaseModel):
    """Another payload."""

    order_id: int = 0


@pytest.mark.parametrize(
    "change",
    [{"hours": 2}, {"payload": Other}, {"irreversible": True}, {"compensate": lambda: None}],
    ids=["wait", "payload", "irreversible", "compensation"],
)
def test_defect_10_the_fingerprint_misses_what_matters(make_squid: MakeSquid, change: dict[str, Any]) -> None:
    # The original: a changed wait, payload or recovery marker goes unnoticed by runs that are under way. Here they are
    # held.
    run_id = make_squid(_waits()).start("waits").run_id
    changed = make_squid(_waits(**change))
    assert changed.execute_next() is None
    assert changed.inspect_run(run_id).status == "held"
    both = make_squid([_waits(), _waits(version="2", **change)])
    assert both.execute_next() is not None, "and it goes on beside the new one"
