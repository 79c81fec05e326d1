"""The agent of one run: results that are applied, and runnables that are scheduled, once."""

from typing import Any

import pytest

from squid_dagster.agents import WorkflowAgent
from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Completed, Settlement
from squid_dagster.protocol.errors import (
    ConflictingCompletion,
    IncompatibleDefinition,
    InvalidThread,
    InvalidTransition,
    NotFound,
    TerminalRun,
)
from squid_dagster.protocol.threads import run_thread
from squid_dagster.workflow import Workflow
from tests.facts import applied
from tests.runtime.agents.orders import Order, claimed, orders, unscheduled
from tests.runtime.runs import MakeSquid, drain, run_facts, seconds, state_of


def unapplied(squid: Squid, result: Any = 7) -> tuple[WorkflowAgent, str]:
    """Complete a step from which nothing follows, as a crash between two appends leaves it."""
    run_id = squid.start("orders").run_id
    (claim,) = squid.runtime.dispatch.claim("default", "w")
    squid.runtime.dispatch.settle([Settlement(claim.ref, Completed(result))])
    return squid.workflow_agent(run_id), claim.ref.runnable_key


def test_a_pending_result_is_applied_with_its_successor_planned(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    agent, key = unapplied(squid)
    assert [attempt.runnable_key for attempt in agent.pending_results()] == [key]
    assert agent.apply_result(key).result == 7
    assert run_facts(squid, agent.run_id)[-2:] == ["runnable_applied", "runnables_planned"]
    assert agent.pending_results() == []
    written = state_of(squid.journal)
    assert agent.apply_result(key).runnable_key == key, "repeating does nothing"
    assert agent.apply_pending_results() == []
    assert state_of(squid.journal) == written
    assert drain(squid) == 1
    assert squid.inspect_run(agent.run_id).status == "completed"
    assert agent.projection.terminal_status == "completed"


def test_all_pending_results_are_applied_in_order(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("orders")
    for name in ("a", "b", "c"):
        wf.step(name=name)(lambda: None)
    squid = make_squid(wf)
    run_id = squid.start("orders").run_id
    for claim in squid.runtime.dispatch.claim("default", "w", limit=3)[::-1]:
        clock.advance(seconds(1))
        squid.runtime.dispatch.settle([Settlement(claim.ref, Completed(None))])
    done = squid.workflow_agent(run_id).apply_pending_results()
    assert [attempt.step for attempt in done] == ["c", "b", "a"]
    assert squid.inspect_run(run_id).status == "completed"


def test_what_cannot_be_applied_is_refused(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    agent, key = unapplied(squid)
    other = squid.start("orders").run_id
    written = state_of(squid.journal)
    with pytest.raises(NotFound, match="no such key"):
        agent.apply_result("no such key")
    with pytest.raises(InvalidTransition, match="available"):
        squid.workflow_agent(other).apply_result(f"{other}:charge:1:1")
    with pytest.raises(IncompatibleDefinition):
        make_squid([]).workflow_agent(agent.run_id).apply_result(key)
    assert state_of(squid.journal) == written
    squid.cancel(agent.run_id)
    with pytest.raises(TerminalRun, match="cancelled"):
        agent.apply_result(key)
    assert (agent.pending_results(), agent.pending_dispatches()) == ([], [])


@pytest.mark.parametrize("succeeds", [True, False], ids=["completion", "failure"])
def test_repeating_what_ended_the_run_is_no_error(make_squid: MakeSquid, succeeds: bool) -> None:
    wf = Workflow("orders", payload=Order)
    wf.step(name="charge")(lambda: None)
    squid = make_squid(wf)
    agent, claim = claimed(squid)

    def settle(value: str) -> Any:
        return agent.complete(claim, value) if succeeds else agent.fail(claim, {"message": value})

    first = settle("same")
    assert squid.inspect_run(claim.attempt.run_id).terminal
    written = state_of(squid.journal)
    again = settle("same")
    assert (again.attempt.status, again.attempt.settled_at) == (first.attempt.status, first.attempt.settled_at)
    with pytest.raises(ConflictingCompletion, match="first one stands"):
        settle("another")
    assert state_of(squid.journal) == written


@pytest.mark.usefixtures("spoilt")
def test_another_result_on_record_is_a_conflict(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    agent, key = unapplied(squid)
    squid.journal.append(run_thread(agent.run_id), [applied(agent.run_id, "charge", result=8)])
    with pytest.raises(ConflictingCompletion, match=key):
        agent.apply_result(key)


def test_pending_dispatches_are_scheduled_once(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, planned = unscheduled(squid)
    agent = squid.workflow_agent(run_id)
    assert agent.pending_dispatches() == [planned]
    assert agent.schedule_pending_dispatches() == [planned]
    assert agent.schedule_pending_dispatches() == []
    assert agent.pending_dispatches() == []
    assert repr(agent) == f"WorkflowAgent({run_id!r})"


def test_there_must_be_a_run(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    agent = squid.workflow_agent("nothing")
    for act in (agent.pending_results, agent.pending_dispatches, agent.apply_pending_results):
        with pytest.raises(NotFound, match="nothing"):
            act()
    with pytest.raises(InvalidThread):
        squid.workflow_agent("a b")
