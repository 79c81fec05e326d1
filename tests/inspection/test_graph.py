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
from tests.inspection.scenes import RUN, Scene, changed_order, fan, looping, nothing, order, saga, scene


def _statuses(found: RunGraph) -> dict[str, str]:
    return {node.id: node.status.value for node in found.nodes}


def _edges(found: RunGraph) -> dict[str, str]:
    return {edge.id: edge.status.value for edge in found.edges}


def _drawn(told: Scene) -> RunGraph:
    return graph(told.case())


def test_a_run_that_has_just_started_has_everything_before_it() -> None:
    found = _drawn(scene(order()))

    assert _statuses(found) == {
        "charge": "pending",
        "mend": "waiting",
        "rest": "waiting",
        "check": "waiting",
        "review": "waiting",
        "complete": "waiting",
        "fail": "waiting",
    }
    assert set(_edges(found).values()) == {"pending"}
    assert found.current_node_ids == ("charge",)
    assert found.mode == "routes"
    assert {node.id: node.kind for node in found.nodes} == {
        "charge": "step",
        "mend": "step",
        "rest": "wait",
        "check": "step",
        "review": "approval",
        "complete": "end",
        "fail": "end",
    }


def test_chosen_and_skipped_routes_show_the_way_of_the_run() -> None:
    told = scene(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 500})

    found = _drawn(told)

    assert _edges(found) == {
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
    assert found.current_node_ids == ("review",)
    assert _statuses(found)["review"] == "paused"


def test_when_the_run_has_ended_nothing_is_pending() -> None:
    told = scene(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 500}).decide("rejected")

    found = _drawn(told)

    assert _statuses(found) == {
        "charge": "completed",
        "mend": "skipped",
        "rest": "completed",
        "check": "completed",
        "review": "rejected",
        "complete": "skipped",
        "fail": "failed",
    }
    assert set(_edges(found).values()) == {"chosen", "skipped"}
    assert _edges(found)["review:error:fail"] == "chosen"
    assert found.current_node_ids == ()


def test_an_error_route_is_chosen_by_a_failure() -> None:
    found = _drawn(scene(order()).claim("charge").fail("charge"))

    assert (_statuses(found)["charge"], _statuses(found)["mend"]) == ("failed", "pending")
    assert _edges(found)["charge:error:mend"] == "chosen"
    assert _edges(found)["charge:ok:rest"] == "skipped"
    (edge,) = [edge for edge in found.edges if edge.id == "charge:error:mend"]
    assert (edge.outcome, edge.recovery, edge.times) == ("error", "compensation", 1)


def test_a_condition_is_told_and_what_a_secret_is_compared_with_is_not() -> None:
    conditions = {edge.id: edge.condition for edge in _drawn(scene(order())).edges if edge.condition}

    assert conditions == {
        "check:ok:review:condition:0": "check.amount > 100",
        "check:ok:charge:condition:1": "check.api_token == [REDACTED]",
    }


def _node(told: Scene, name: str) -> NodeStatus:
    return next(node.status for node in _drawn(told).nodes if node.id == name)


def test_a_node_goes_through_the_states_of_its_attempts() -> None:
    told = scene(order())
    seen = [_node(told, "charge")]
    seen.append(_node(told.claim("charge", lease=30), "charge"))
    seen.append(_node(told.advance(seconds=40), "charge"))
    seen.append(_node(told.claim("charge").defer("charge", 60), "charge"))
    seen.append(_node(told.advance(seconds=60), "charge"))
    seen.append(_node(told.claim("charge").fail("charge", retry_in=10), "charge"))
    told.advance(seconds=10).claim("charge")
    told.write(told.completion("charge"))
    seen.append(_node(told, "charge"))
    seen.append(_node(told.settle("run-1:charge:1:2"), "charge"))
    seen.append(_node(told, "rest"))

    assert [each.value for each in seen] == [
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
    assert _node(scene(order()).claim("charge").end(), "charge") is NodeStatus.CANCELLED
    told = scene(looping()).do("poll").do("look", {"tired": True}).end()
    assert _node(told, "breathe") is NodeStatus.CANCELLED


def test_loops_count_visits_and_an_edge_is_pending_again() -> None:
    told = scene(looping()).do("poll", {"again": True}).do("poll").do("look", {"again": True})

    found = _drawn(told)

    assert {node.id: node.visits for node in found.nodes} == {"poll": 3, "look": 1, "breathe": 0, "complete": 0}
    assert _edges(found) == {
        "poll:ok:poll:condition:0": "chosen",
        "poll:ok:look": "chosen",
        "look:ok:breathe:condition:0": "skipped",
        "look:ok:poll:condition:1": "chosen",
        "look:ok:complete": "skipped",
        "breathe:ok:poll": "pending",
    }
    told.do("poll")
    assert _edges(_drawn(told))["look:ok:complete"] == "pending"
    assert {edge.id: edge.times for edge in _drawn(told).edges}["poll:ok:look"] == 2


def test_a_manual_step_that_is_visited_again_waits_again() -> None:
    told = scene(looping()).do("poll").do("look", {"tired": True}).decide("resumed")

    assert _node(told, "breathe") is NodeStatus.COMPLETED
    told.do("poll").do("look", {"tired": True})
    assert _node(told, "breathe") is NodeStatus.PAUSED
    assert next(node.visits for node in _drawn(told).nodes if node.id == "breathe") == 2
    assert _node(told.end(), "breathe") is NodeStatus.CANCELLED


def test_dependencies_are_chosen_pending_and_blocked() -> None:
    told = scene(fan()).do("left").claim("middle").fail("middle")

    found = _drawn(told)

    assert found.mode == "dependencies"
    assert _edges(found) == {
        "left:dependency:join": "chosen",
        "middle:dependency:join": "blocked",
        "right:dependency:join": "blocked",
        "middle:error:fail:taken:0": "chosen",
    }
    assert _statuses(found) == {
        "left": "completed",
        "middle": "failed",
        "right": "cancelled",
        "join": "skipped",
        "fail": "failed",
    }
    assert _edges(_drawn(scene(fan())))["left:dependency:join"] == "pending"


def test_compensations_are_nodes_of_their_own() -> None:
    told = scene(saga()).do("book").do("pay").do("mail").claim("ship").fail("ship").do("compensate:pay")

    found = _drawn(told)

    assert _statuses(found)["compensate:pay"] == "completed"
    assert _statuses(found)["compensate:book"] == "pending"
    assert found.current_node_ids == ("compensate:book",)
    assert {node.kind for node in found.nodes if node.id.startswith("compensate:")} == {"compensation"}
    assert [edge.id for edge in found.edges if edge.type == "compensation"] == [
        "pay:compensation:compensate:pay",
        "book:compensation:compensate:book",
    ]
    assert _edges(found)["ship:error:fail:taken:0"] == "chosen"


def test_a_dead_letter_blocks_what_comes_after_it() -> None:
    found = _drawn(scene(saga()).do("book").do("pay").do("mail").die("ship"))

    assert _statuses(found)["ship"] == "dead_letter"
    assert _edges(found)["ship:ok:complete"] == "blocked"
    assert found.current_node_ids == ("ship",)


def test_without_its_definition_a_run_is_drawn_from_its_facts() -> None:
    told = scene(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 500}).decide("approved")

    found = graph(told.case(registry=Registry([changed_order().freeze()])))

    assert found.mode == "history"
    assert _statuses(found) == {
        "charge": "completed",
        "rest": "completed",
        "check": "completed",
        "review": "completed",
        "complete": "completed",
    }
    assert [(edge.source, edge.target) for edge in found.edges] == [
        ("charge", "rest"),
        ("rest", "check"),
        ("check", "review"),
        ("review", "complete"),
    ]
    assert {edge.status for edge in found.edges} == {EdgeStatus.CHOSEN}
    assert [edge.condition for edge in found.edges] == [None, None, "check.amount > 100", None]
    assert {node.id: node.kind for node in found.nodes}["review"] == "approval"


def test_steps_that_are_not_declared_are_drawn_behind_those_that_are() -> None:
    told = scene(order())
    told.write(planned(runnable(step="extra")), scheduled(step="extra"))

    assert [node.id for node in _drawn(told).nodes][5] == "extra"


def test_an_end_leaves_later_dependencies_skipped() -> None:
    workflow = Workflow("chain")
    for name, before in (("a", []), ("b", ["a"]), ("c", ["b"])):
        workflow.step(name=name, after=before)(nothing)

    found = _drawn(scene(workflow).end())

    assert _statuses(found) == {"a": "cancelled", "b": "skipped", "c": "skipped"}
    assert _edges(found) == {"a:dependency:b": "blocked", "b:dependency:c": "skipped"}


def test_a_manual_step_is_known_as_one_without_its_definition() -> None:
    told = scene(looping()).do("poll").do("look", {"tired": True})

    def kind() -> str:
        return next(node.kind for node in graph(told.case(registry=Registry())).nodes if node.id == "breathe")

    assert kind() == "pause"
    told.decide("resumed")
    assert kind() == "pause"


def test_a_decision_without_a_record_is_known_when_there_was_one_way_only() -> None:
    workflow = Workflow("asking")
    workflow.approval("ask")
    workflow.route("ask", to="complete")
    workflow.route("ask", on="error", to="fail")
    definition = workflow.freeze()
    told = Scene(definition)
    told.write(
        started(workflow="asking", definition_fingerprint=definition.fingerprint),
        step_paused(step="ask"),
        step_resolved(step="ask"),
    )

    assert _edges(_drawn(told)) == {"ask:ok:complete": "chosen", "ask:error:fail": "skipped"}


def test_a_fact_that_names_unknown_steps_draws_no_loose_edge() -> None:
    told = Scene(order().freeze())
    told.write(started(), planned(), applied(transition={"from": "charge", "on": "ok", "to": "nowhere"}))

    found = _drawn(told)

    assert [node.id for node in found.nodes] == ["charge"]
    assert found.edges == ()


def test_history_is_shown_on_request() -> None:
    told = scene(order()).do("charge", {"paid": 5, "api_key": "hunter2"})

    def of(**options: bool) -> Any:
        found = told.inspection().inspect_run_graph(RUN, **options).to_dict()
        return next(node for node in found["nodes"] if node["id"] == "charge")

    assert (of()["output"], of()["attempts"], of()["input"]) == (None, [], None)
    whole = of(include_history=True)
    assert whole["output"] == {"paid": 5, "api_key": "[REDACTED]"}
    assert whole["input"] == {"order_id": "o-1"}
    assert [each["status"] for each in whole["attempts"]] == ["completed"]
    assert whole["transition"] == {"from": "charge", "on": "ok", "to": "rest"}


def test_a_graph_is_json_with_stable_keys_and_can_be_seen_at_a_revision() -> None:
    told = scene(order()).do("charge")

    early = told.inspection().inspect_run_graph(RUN, at_revision=3)

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
        told.inspection().inspect_run_graph(RUN, at_revision=6)
    with pytest.raises(NotFound):
        told.inspection().inspect_run_graph("run-2")


def test_a_large_fan_is_drawn() -> None:
    workflow = Workflow("wide")
    for number in range(60):
        workflow.step(name=f"s{number}")(nothing)
    workflow.step(name="join", after=[f"s{number}" for number in range(60)])(nothing)

    found = _drawn(scene(workflow))

    assert len(found.edges) == 60
    assert found.to_svg().count("<g data-node") == 61
