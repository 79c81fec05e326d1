"""What a good workflow becomes: modes, edges, routes in order, and the example of the design."""

import pickle
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squid_dagster.protocol import definition_key
from squid_dagster.workflow import Code, Deadline, InvalidWorkflow, Mode, Retry, Route, StepKind, Workflow, path
from squid_dagster.workflow.reachability import Arrival, certain_after, certain_on_routes, cycles, reachable
from tests.workflow.drafts import Order, problems_of, routed, ship
from tests.workflow.payment_recovery import Recovery, check_gateway, load_invoice, payment_recovery

graphs = st.dictionaries(st.sampled_from("abcdefg"), st.lists(st.sampled_from("abcdefg"), max_size=4), max_size=7)


def test_a_definition_cannot_be_changed() -> None:
    definition = payment_recovery.freeze()
    steps: Any = definition.steps

    with pytest.raises(FrozenInstanceError):
        definition.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        steps["other"] = steps["settle"]


def test_what_is_declared_after_freezing_is_not_in_the_definition() -> None:
    workflow = routed("a")
    before = workflow.freeze()
    workflow.step(name="b")(ship)
    workflow.route("a", on="error", to="b")
    workflow.route("b", to="complete")

    assert list(before.steps) == ["a"]
    assert list(workflow.freeze().steps) == ["a", "b"]


def test_a_refusal_crosses_a_process_border_whole() -> None:
    with pytest.raises(InvalidWorkflow) as refused:
        Workflow("orders").check()
    copy = pickle.loads(pickle.dumps(refused.value))  # noqa: S301  our own bytes

    assert (copy.problems, str(copy)) == (refused.value.problems, str(refused.value))


def test_the_example_of_the_design_is_valid() -> None:
    payment_recovery.check()
    definition = payment_recovery.freeze()

    assert (definition.name, definition.version, definition.mode) == ("payment_recovery", "2026-11-16", Mode.ROUTES)
    assert definition.key == definition_key("payment_recovery", definition.fingerprint)
    assert definition.payload is Recovery
    assert definition.entry_steps == ("load_invoice",)
    assert [(step.name, step.kind, step.output) for step in definition.steps.values()] == [
        ("load_invoice", StepKind.STEP, "invoice"),
        ("check_gateway", StepKind.STEP, "gateway"),
        ("settle", StepKind.WAIT, None),
        ("review", StepKind.APPROVAL, "review"),
    ]
    assert definition.steps["check_gateway"].retry == Retry(5, timedelta(seconds=1), timedelta(seconds=30))
    assert definition.steps["settle"].duration == timedelta(hours=1)
    assert definition.steps["review"].is_manual
    assert definition.routes["check_gateway", "ok"] == (
        Route("check_gateway", "ok", "review", path("gateway.status_code") > 399),
        Route("check_gateway", "ok", "complete"),
    )
    assert definition.routes["review", "error"] == (Route("review", "error", "fail"),)
    task = definition.steps["load_invoice"].task
    assert task is not None
    assert task.function is load_invoice
    assert check_gateway.__name__ == "check_gateway"


def test_routes_take_functions_and_the_fallback_comes_last() -> None:
    workflow = Workflow("orders", payload=Order)
    workflow.step(ship)
    workflow.step(name="pack")(lambda: None)
    workflow.route(ship, to="complete")
    workflow.route(ship, to="pack", when=path("amount") > 10)
    workflow.route("ship", to="fail", when=path("amount") > 5)
    workflow.route("pack", to="complete")
    workflow.route("ship", on="error", to="pack", recovery="compensation")
    definition = workflow.freeze()

    assert [route.to for route in definition.routes["ship", "ok"]] == ["pack", "fail", "complete"]
    assert [route.ends_run for route in definition.routes["ship", "ok"]] == [False, True, True]
    assert definition.routes["ship", "ok"][0].decision() == {
        "from": "ship",
        "on": "ok",
        "to": "pack",
        "condition": {"path": ["amount"], "operator": ">", "value": 10},
    }
    assert definition.routes["ship", "error"][0].decision()["recovery"] == "compensation"


def test_one_step_alone_is_a_workflow() -> None:
    workflow = Workflow("orders")
    workflow.step(ship)
    definition = workflow.freeze()

    assert (definition.mode, definition.entry_steps, dict(definition.routes)) == (Mode.DEPENDENCIES, ("ship",), {})


def test_parameters_order_steps_where_nothing_else_does() -> None:
    workflow = Workflow("orders", payload=Order)

    @workflow.step
    def total(lines: list[int], tax: int = 0) -> int:
        return sum(lines) + tax

    @workflow.step
    def lines(order_id: str) -> list[int]:
        return [len(order_id)]

    @workflow.step(output="tax")
    def compute_tax(lines: list[int]) -> int:
        return len(lines)

    definition = workflow.freeze()

    assert definition.mode is Mode.DEPENDENCIES
    assert definition.entry_steps == ("lines",)
    assert {name: step.after for name, step in definition.steps.items()} == {
        "total": ("lines", "compute_tax"),
        "lines": (),
        "compute_tax": ("lines",),
    }
    assert dict(definition.dependents) == {
        "total": (),
        "lines": ("total", "compute_tax"),
        "compute_tax": ("total",),
    }


def test_after_orders_functions_waits_and_logs_by_name_or_function() -> None:
    workflow = Workflow("orders")
    workflow.step(ship)
    workflow.wait("settle", timedelta(hours=1), after=ship)
    workflow.log("note", "settled", "warning", after="settle")
    workflow.step(name="last", after=["note", ship, "ship"])(lambda: None)
    definition = workflow.freeze()

    assert {name: step.after for name, step in definition.steps.items()} == {
        "ship": (),
        "settle": ("ship",),
        "note": ("settle",),
        "last": ("note", "ship"),
    }
    assert (definition.steps["note"].message, definition.steps["note"].level) == ("settled", "warning")


def test_options_arrive_in_the_definition() -> None:
    workflow = Workflow("orders")
    workflow.step(
        name="a",
        irreversible=True,
        transactional=True,
        deadline=timedelta(hours=1),
        priority=-10,
        max_deliveries=1,
        max_visits=3,
    )(ship)
    workflow.step(name="b", isolate=True, deadline=Deadline(timedelta(2), due_soon=timedelta(1)))(ship)
    a, b = workflow.freeze().steps.values()

    assert (a.irreversible, a.transactional, a.priority, a.max_deliveries, a.max_visits) == (True, True, -10, 1, 3)
    assert a.deadline == Deadline(timedelta(hours=1))
    assert a.recovery()["replay"] == "manual_review_required"
    assert (b.isolate, b.priority, b.max_deliveries, b.deadline) == (
        True,
        None,
        5,
        Deadline(timedelta(2), timedelta(1)),
    )
    assert b.recovery() == {
        "irreversible": False,
        "compensated": False,
        "replay": "allowed",
        "recovery": "automatic",
    }


def test_a_long_workflow_is_frozen_in_whatever_order_it_was_declared() -> None:
    names = [f"step_{number}" for number in range(2_000)]

    workflow = Workflow("orders")
    for name, following in zip(reversed(names), ["complete", *reversed(names)], strict=False):
        workflow.step(name=name)(ship)
        workflow.route(name, to=following)

    assert workflow.freeze().fingerprint == routed(*names).freeze().fingerprint


def test_every_code_has_a_test() -> None:
    from pathlib import Path

    tests = "".join(file.read_text() for file in (Path(__file__).parent / "refusals").glob("test_*.py"))

    assert [code.name for code in Code if f"Code.{code.name}" not in tests] == []


@given(graphs)
def test_circles_are_real_and_none_is_left_unseen(graph: dict[str, list[str]]) -> None:
    circles = cycles(graph)
    turning = any(name in reachable(targets, graph) for name, targets in graph.items())

    assert bool(circles) == turning
    for circle in circles:
        assert all(target in graph[source] for source, target in zip(circle, circle[1:] + circle[:1], strict=True))


def outputs_on_every_way(entry: str, ways: list[tuple[str, str, bool]]) -> dict[str, frozenset[str]]:
    """Walk every path, recording outputs, and return what all walks to a step have in common."""
    seen = {(entry, frozenset[str]())}
    todo = list(seen)
    while todo:
        step, given_so_far = todo.pop()
        for source, target, gives in ways:
            after = (target, given_so_far | {source.upper()} if gives else given_so_far)
            if source == step and after not in seen:
                seen.add(after)
                todo.append(after)
    return {
        step: frozenset.intersection(*(arrived for reached, arrived in seen if reached == step))
        for step in {reached for reached, _ in seen}
    }


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from("abcde"), st.booleans()), max_size=12))
def test_what_is_certain_on_arrival_is_what_every_way_gives(ways: list[tuple[str, str, bool]]) -> None:
    arrivals = {
        step: [Arrival(source, source.upper() if gives else None) for source, target, gives in ways if target == step]
        for step in "abcde"
    }
    expected = outputs_on_every_way("a", ways)

    assert {step: certain_on_routes(["a"], arrivals)[step] for step in expected} == expected


@given(graphs)
def test_what_is_certain_after_a_step_is_the_output_of_every_step_before_it(graph: dict[str, list[str]]) -> None:
    outputs = {name: name.upper() for name in "abcdefg"}

    for name, certain in certain_after(graph, outputs).items():
        assert certain == {before.upper() for before in reachable(graph[name], graph) - {name}}


def test_the_first_step_may_be_its_own_loop() -> None:
    workflow = Workflow("orders", payload=Order)
    workflow.step(name="poll", max_visits=10)(ship)
    workflow.route("poll", to="poll", when=path("poll.again").exists())
    workflow.route("poll", to="complete")

    assert workflow.freeze().entry_steps == ("poll",)


def test_a_loop_with_a_limit_and_an_end_is_fine() -> None:
    workflow = Workflow("orders", payload=Order)
    workflow.step(name="begin")(ship)
    workflow.step(name="poll", max_visits=10)(ship)
    workflow.wait("rest", timedelta(seconds=5))
    workflow.route("begin", to="poll")
    workflow.route("poll", to="complete", when=path("poll.done") == True)  # noqa: E712  JSON's true
    workflow.route("poll", to="rest")
    workflow.route("rest", to="poll")

    assert problems_of(workflow) == {}
