"""A run as a graph: nodes and their states, edges and which were taken, where the run is."""

import json
from typing import Any

import pytest

from squid_dagster.inspection import EdgeStatus, NodeStatus, RunGraph
from squid_dagster.inspection.graph.run_graph import graph
from squid_dagster.protocol.errors import InvalidArgument, NotFound
from squid_dagster.workflow import Workflow
from squid_dagster.workflow.registry import Registry
from tests.facts import applied, planned, runnable, scheduled, started, step_paused, step_resolved
from tests.inspection.run_histories import (
    RUN,
    RunHistory,
    changed_order,
    fan,
    looping,
    nothing,
    order,
    saga,
    start_history,
)


def _statuses(drawn: RunGraph) -> dict[str, str]:
    return {node.id: node.status.value for node in drawn.nodes}


def _edges(drawn: RunGraph) -> dict[str, str]:
    return {edge.id: edge.status.value for edge in drawn.edges}


def _drawn(history: RunHistory) -> RunGraph:
    return graph(history.case())


def test_a_run_that_has_just_started_has_everything_before_it() -> None:
    drawn = _drawn(start_history(order()))

    assert _statuses(drawn) == {
        "charge": "pending",
        "mend": "waiting",
        "rest": "waiting",
        "check": "waiting",
        "review": "waiting",
        "complete": "waiting",
        "fail": "waiting",
    }
    assert set(_edges(drawn).values()) == {"pending"}
    assert drawn.current_node_ids == ("charge",)
    assert drawn.mode == "routes"
    assert {node.id: node.kind for node in drawn.nodes} == {
        "charge": "step",
        "mend": "step",
        "rest": "wait",
        "check": "step",
        "review": "approval",
        "complete": "end",
        "fail": "end",
    }


def test_chosen_and_skipped_routes_show_the_way_of_the_run() -> None:
    history = start_history(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 500})

    drawn = _drawn(history)

    assert _edges(drawn) == {
        "charge:ok:rest": "chosen",
        "charge:error:mend": "skipped",
        "mend:ok:fail": "pending",
        "rest:ok:check": "chosen",
        "check:ok:review:condition:0": "chosen",
        "check:ok:charge:condition:1": "skipped",
        "check:ok:complete": "skipped",
        "review:ok:complete": "pending",
        "review:error:fail": "pending",
    }
    assert drawn.current_node_ids == ("review",)
    assert _statuses(drawn)["review"] == "paused"


def test_when_the_run_has_ended_nothing_is_pending() -> None:
    history = (
        start_history(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 500}).decide("rejected")
    )

    drawn = _drawn(history)

    assert _statuses(drawn) == {
        "charge": "completed",
        "mend": "skipped",
        "rest": "completed",
        "check": "completed",
        "review": "rejected",
        "complete": "skipped",
        "fail": "failed",
    }
    assert set(_edges(drawn).values()) == {"chosen", "skipped"}
    assert _edges(drawn)["review:error:fail"] == "chosen"
    assert drawn.current_node_ids == ()


def test_an_error_route_is_chosen_by_a_failure() -> None:
    drawn = _drawn(start_history(order()).claim("charge").fail("charge"))

    assert (_statuses(drawn)["charge"], _statuses(drawn)["mend"]) == ("failed", "pending")
    assert _edges(drawn)["charge:error:mend"] == "chosen"
    assert _edges(drawn)["charge:ok:rest"] == "skipped"
    (edge,) = [edge for edge in drawn.edges if edge.id == "charge:error:mend"]
    assert (edge.outcome, edge.recovery, edge.times) == ("error", "compensation", 1)


def test_a_condition_is_told_and_what_a_secret_is_compared_with_is_not() -> None:
    conditions = {edge.id: edge.condition for edge in _drawn(start_history(order())).edges if edge.condition}

    assert conditions == {
        "check:ok:review:condition:0": "check.amount > 100",
        "check:ok:charge:condition:1": "check.api_token == [REDACTED]",
    }


def _node(history: RunHistory, name: str) -> NodeStatus:
    return next(node.status for node in _drawn(history).nodes if node.id == name)


def test_a_node_goes_through_the_states_of_its_attempts() -> None:
    history = start_history(order())
    seen = [_node(history, "charge")]
    seen.append(_node(history.claim("charge", lease=30), "charge"))
    seen.append(_node(history.advance(seconds=40), "charge"))
    seen.append(_node(history.claim("charge").defer("charge", 60), "charge"))
    seen.append(_node(history.advance(seconds=60), "charge"))
    seen.append(_node(history.claim("charge").fail("charge", retry_in=10), "charge"))
    history.advance(seconds=10).claim("charge")
    history.write(history.completion("charge"))
    seen.append(_node(history, "charge"))
    seen.append(_node(history.settle("run-1:charge:1:2"), "charge"))
    seen.append(_node(history, "rest"))

    assert [status.value for status in seen] == [
        "pending",
        "running",
        "expired",
        "deferred",
        "pending",
        "retrying",
        "completing",
        "completed",
        "scheduled",
    ]


def test_what_was_open_when_the_run_ended_is_cancelled() -> None:
    assert _node(start_history(order()).claim("charge").end(), "charge") is NodeStatus.CANCELLED
    history = start_history(looping()).do("poll").do("look", {"tired": True}).end()
    assert _node(history, "breathe") is NodeStatus.CANCELLED


def test_loops_count_visits_and_an_edge_is_pending_again() -> None:
    history = start_history(looping()).do("poll", {"again": True}).do("poll").do("look", {"again": True})

    drawn = _drawn(history)

    assert {node.id: node.visits for node in drawn.nodes} == {"poll": 3, "look": 1, "breathe": 0, "complete": 0}
    assert _edges(drawn) == {
        "poll:ok:poll:condition:0": "chosen",
        "poll:ok:look": "chosen",
        "look:ok:breathe:condition:0": "skipped",
        "look:ok:poll:condition:1": "chosen",
        "look:ok:complete": "skipped",
        "breathe:ok:poll": "pending",
    }
    history.do("poll")
    assert _edges(_drawn(history))["look:ok:complete"] == "pending"
    assert {edge.id: edge.times for edge in _drawn(history).edges}["poll:ok:look"] == 2


def test_a_manual_step_that_is_visited_again_waits_again() -> None:
    history = start_history(looping()).do("poll").do("look", {"tired": True}).decide("resumed")

    assert _node(history, "breathe") is NodeStatus.COMPLETED
    history.do("poll").do("look", {"tired": True})
    assert _node(history, "breathe") is NodeStatus.PAUSED
    assert next(node.visits for node in _drawn(history).nodes if node.id == "breathe") == 2
    assert _node(history.end(), "breathe") is NodeStatus.CANCELLED


def test_dependencies_are_chosen_pending_and_blocked() -> None:
    history = start_history(fan()).do("left").claim("middle").fail("middle")

    drawn = _drawn(history)

    assert drawn.mode == "dependencies"
    assert _edges(drawn) == {
        "left:dependency:join": "chosen",
        "middle:dependency:join": "blocked",
        "right:dependency:join": "blocked",
        "middle:error:fail:taken:0": "chosen",
    }
    assert _statuses(drawn) == {
        "left": "completed",
        "middle": "failed",
        "right": "cancelled",
        "join": "skipped",
        "fail": "failed",
    }
    assert _edges(_drawn(start_history(fan())))["left:dependency:join"] == "pending"


def test_compensations_are_nodes_of_their_own() -> None:
    history = start_history(saga()).do("book").do("pay").do("mail").claim("ship").fail("ship").do("compensate:pay")

    drawn = _drawn(history)

    assert _statuses(drawn)["compensate:pay"] == "completed"
    assert _statuses(drawn)["compensate:book"] == "pending"
    assert drawn.current_node_ids == ("compensate:book",)
    assert {node.kind for node in drawn.nodes if node.id.startswith("compensate:")} == {"compensation"}
    assert [edge.id for edge in drawn.edges if edge.type == "compensation"] == [
        "pay:compensation:compensate:pay",
        "book:compensation:compensate:book",
    ]
    assert _edges(drawn)["ship:error:fail:taken:0"] == "chosen"


def test_a_dead_letter_blocks_what_comes_after_it() -> None:
    drawn = _drawn(start_history(saga()).do("book").do("pay").do("mail").die("ship"))

    assert _statuses(drawn)["ship"] == "dead_letter"
    assert _edges(drawn)["ship:ok:complete"] == "blocked"
    assert drawn.current_node_ids == ("ship",)


def test_without_its_definition_a_run_is_drawn_from_its_facts() -> None:
    history = (
        start_history(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 500}).decide("approved")
    )

    drawn = graph(history.case(registry=Registry([changed_order().freeze()])))

    assert drawn.mode == "history"
    assert _statuses(drawn) == {
        "charge": "completed",
        "rest": "completed",
        "check": "completed",
        "review": "completed",
        "complete": "completed",
    }
    assert [(edge.source, edge.target) for edge in drawn.edges] == [
        ("charge", "rest"),
        ("rest", "check"),
        ("check", "review"),
        ("review", "complete"),
    ]
    assert {edge.status for edge in drawn.edges} == {EdgeStatus.CHOSEN}
    assert [edge.condition for edge in drawn.edges] == [None, None, "check.amount > 100", None]
    assert {node.id: node.kind for node in drawn.nodes}["review"] == "approval"


def test_steps_that_are_not_declared_are_drawn_behind_those_that_are() -> None:
    history = start_history(order())
    history.write(planned(runnable(step="extra")), scheduled(step="extra"))

    assert [node.id for node in _drawn(history).nodes][5] == "extra"


def test_an_end_leaves_later_dependencies_skipped() -> None:
    workflow = Workflow("chain")
    for name, before in (("a", []), ("b", ["a"]), ("c", ["b"])):
        workflow.step(name=name, after=before)(nothing)

    drawn = _drawn(start_history(workflow).end())

    assert _statuses(drawn) == {"a": "cancelled", "b": "skipped", "c": "skipped"}
    assert _edges(drawn) == {"a:dependency:b": "blocked", "b:dependency:c": "skipped"}


def test_a_manual_step_is_known_as_one_without_its_definition() -> None:
    history = start_history(looping()).do("poll").do("look", {"tired": True})

    def kind() -> str:
        return next(node.kind for node in graph(history.case(registry=Registry())).nodes if node.id == "breathe")

    assert kind() == "pause"
    history.decide("resumed")
    assert kind() == "pause"


def test_a_decision_without_a_record_is_known_when_there_was_one_way_only() -> None:
    workflow = Workflow("asking")
    workflow.approval("ask")
    workflow.route("ask", to="complete")
    workflow.route("ask", on="error", to="fail")
    definition = workflow.freeze()
    history = RunHistory(definition)
    history.write(
        started(workflow="asking", definition_fingerprint=definition.fingerprint),
        step_paused(step="ask"),
        step_resolved(step="ask"),
    )

    assert _edges(_drawn(history)) == {"ask:ok:complete": "chosen", "ask:error:fail": "skipped"}


def test_a_fact_that_names_unknown_steps_draws_no_loose_edge() -> None:
    history = RunHistory(order().freeze())
    history.write(started(), planned(), applied(transition={"from": "charge", "on": "ok", "to": "nowhere"}))

    drawn = _drawn(history)

    assert [node.id for node in drawn.nodes] == ["charge"]
    assert drawn.edges == ()


def test_history_is_shown_on_request() -> None:
    history = start_history(order()).do("charge", {"paid": 5, "api_key": "hunter2"})

    def of(**options: Any) -> Any:
        drawn = history.inspection().inspect_run_graph(RUN, **options).to_dict()
        return next(node for node in drawn["nodes"] if node["id"] == "charge")

    assert (of()["output"], of()["attempts"], of()["input"]) == (None, [], None)
    whole = of(include_history=True)
    assert whole["output"] == {"paid": 5, "api_key": "[REDACTED]"}
    assert whole["input"] == {"order_id": "o-1"}
    assert [attempt["status"] for attempt in whole["attempts"]] == ["completed"]
    assert whole["transition"] == {"from": "charge", "on": "ok", "to": "rest"}


def test_a_graph_is_json_with_stable_keys_and_can_be_seen_at_a_revision() -> None:
    history = start_history(order()).do("charge")

    early = history.inspection().inspect_run_graph(RUN, at_revision=3)

    assert json.loads(json.dumps(early.to_dict())) == early.to_dict()
    assert list(early.to_dict()) == [
        "run_id",
        "workflow",
        "definition_version",
        "status",
        "mode",
        "nodes",
        "edges",
        "current_node_ids",
        "as_of",
    ]
    assert _statuses(early)["rest"] == "waiting"
    with pytest.raises(InvalidArgument, match="from 1 to 5"):
        history.inspection().inspect_run_graph(RUN, at_revision=6)
    with pytest.raises(NotFound):
        history.inspection().inspect_run_graph("run-2")


def test_a_large_fan_is_drawn() -> None:
    workflow = Workflow("wide")
    for number in range(60):
        workflow.step(name=f"s{number}")(nothing)
    workflow.step(name="join", after=[f"s{number}" for number in range(60)])(nothing)

    drawn = _drawn(start_history(workflow))

    assert len(drawn.edges) == 60
    assert drawn.to_svg().count("<g data-node") == 61
