"""What is refused of routes and dependencies: what leads nowhere, never begins, never ends or turns for ever."""

from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.workflow import Code, Workflow, path
from tests.workflow.drafts import Order, message_of, nothing, problems_of, routed, ship, take_order


def other() -> None:
    """Return nothing, in no workflow."""


@pytest.mark.parametrize("reference", ["shop", other, 5, None, "complete"])
def test_a_route_begins_at_a_step(reference: Any) -> None:
    workflow = routed("a")
    workflow.route(reference, to="complete")

    assert problems_of(workflow) == {("routes", 1, "source"): Code.UNKNOWN_ROUTE_SOURCE}


@pytest.mark.parametrize("reference", ["shop", other, 5, None])
def test_a_route_leads_to_a_step_or_an_end(reference: Any) -> None:
    workflow = routed("a")
    workflow.route("a", on="error", to=reference)

    assert problems_of(workflow) == {("routes", 1, "to"): Code.UNKNOWN_ROUTE_TARGET}


def test_a_function_that_is_two_steps_must_be_named() -> None:
    workflow = routed("a", "b")
    workflow.route(nothing, on="error", to="fail")

    assert problems_of(workflow) == {("routes", 2, "source"): Code.UNKNOWN_ROUTE_SOURCE}
    assert "function nothing is several steps (a, b): use a name" in message_of(workflow)


def test_outcomes_and_recovery_markers_are_known_ones_and_recovery_is_from_errors() -> None:
    workflow = routed("a", "b", "c", "d")
    workflow.route("a", on="maybe", to="fail")  # type: ignore[arg-type]
    workflow.route("b", on="error", to="fail", recovery="prayer")  # type: ignore[arg-type]
    workflow.route("c", on="error", to="fail", recovery="undo")
    workflow.step(name="e")(ship)
    workflow.route("d", on="error", to="e")
    workflow.route("e", to="complete", recovery="compensation")

    assert problems_of(workflow) == {
        ("routes", 4, "on"): Code.INVALID_OUTCOME,
        ("routes", 5, "recovery"): Code.INVALID_RECOVERY,
        ("routes", 8, "recovery"): Code.INVALID_RECOVERY,
    }


@pytest.mark.parametrize("condition", [True, "a > 3", path("a"), lambda state: True])
def test_a_condition_is_a_compared_path(condition: Any) -> None:
    workflow = routed("a", "b")
    workflow.route("a", to="complete", when=condition)

    assert problems_of(workflow)["routes", 2, "when"] == Code.INVALID_CONDITION


def test_a_condition_begins_with_a_name_that_can_exist() -> None:
    workflow = routed("a", payload=Order)
    workflow.route("a", to="fail", when=path("a.code") == 1)
    workflow.route("a", to="fail", when=path("amount") > 1)
    workflow.route("a", to="fail", when=path("amuont") > 1)

    assert problems_of(workflow) == {("routes", 3, "when"): Code.UNKNOWN_CONDITION_PATH}


def test_a_payload_that_allows_anything_lets_conditions_begin_with_any_name() -> None:
    class Loose(Order, extra="allow"):
        pass

    workflow = routed("a", payload=Loose)
    workflow.route("a", to="fail", when=path("tenant") == "x")

    assert problems_of(workflow) == {}


def test_a_person_decides_without_conditions() -> None:
    workflow = Workflow("orders", payload=Order)
    workflow.approval("review")
    workflow.pause("rest")
    workflow.route("review", to="rest", when=path("amount") > 1)
    workflow.route("review", to="complete")
    workflow.route("review", on="error", to="fail")
    workflow.route("rest", to="complete", when=path("amount") > 1)
    workflow.route("rest", to="complete")

    assert problems_of(workflow) == {
        ("routes", 0, "when"): Code.MANUAL_STEP_CONDITION,
        ("routes", 3, "when"): Code.MANUAL_STEP_CONDITION,
    }


def test_two_routes_for_the_same_case_are_refused() -> None:
    workflow = routed("a", "b")
    workflow.route("a", to="complete")
    workflow.route("b", to="fail", when=path("a.n") == 1)
    workflow.route("b", to="complete", when=path("a.n") == 1.0)
    workflow.route("b", to="complete", when=path("a.n") == True)  # noqa: E712  another value in JSON

    assert problems_of(workflow) == {("routes", 2): Code.DUPLICATE_ROUTE, ("routes", 4): Code.DUPLICATE_ROUTE}


@pytest.mark.parametrize("outcome", ["ok", "error"])
def test_conditional_routes_need_a_fallback(outcome: Any) -> None:
    workflow = Workflow("orders", payload=Order)
    workflow.step(take_order)
    workflow.route(take_order, on=outcome, to="fail", when=path("amount") > 1)
    workflow.route(take_order, on="error" if outcome == "ok" else "ok", to="complete")

    assert problems_of(workflow) == {("steps", "take_order"): Code.MISSING_FALLBACK}


def test_every_step_says_what_follows_it() -> None:
    workflow = routed("a")
    workflow.step(ship)
    workflow.route("a", on="error", to=ship)

    assert problems_of(workflow) == {("steps", "ship"): Code.MISSING_OK_ROUTE}


@pytest.mark.parametrize("outcome", ["ok", "error"])
def test_an_approval_needs_a_route_for_each_decision(outcome: Any) -> None:
    workflow = Workflow("orders")
    workflow.approval("review")
    workflow.route("review", on=outcome, to="complete")

    assert problems_of(workflow) == {("steps", "review"): Code.MISSING_APPROVAL_ROUTES}


def test_a_pause_cannot_go_wrong() -> None:
    workflow = Workflow("orders")
    workflow.pause("rest")
    workflow.route("rest", to="complete")
    workflow.route("rest", on="error", to="fail")

    assert problems_of(workflow) == {("routes", 1): Code.IMPOSSIBLE_ROUTE}


def test_a_circle_without_a_beginning_must_name_one() -> None:
    workflow = Workflow("orders", payload=Order)
    workflow.step(name="poll", max_visits=10)(ship)
    workflow.wait("rest", timedelta(seconds=1))
    workflow.route("poll", to="complete", when=path("poll.done") == True)  # noqa: E712  JSON's true
    workflow.route("poll", to="rest")
    workflow.route("rest", to="poll")

    assert problems_of(workflow) == {("entry",): Code.MISSING_ENTRY}
    workflow.entry = "poll"
    assert problems_of(workflow) == {}
    assert workflow.freeze().entry_steps == ("poll",)


def test_a_workflow_begins_in_one_place() -> None:
    workflow = routed("a", "b")
    workflow.step(ship)
    workflow.route(ship, to="b")

    assert problems_of(workflow) == {("entry",): Code.SEVERAL_ENTRIES}
    assert "no route leads to a, ship" in message_of(workflow)


def test_the_entry_is_a_step_of_a_workflow_with_routes() -> None:
    with_routes, without = routed("a"), Workflow("orders", entry="ship")
    with_routes.entry = "b"
    without.step(ship)

    assert problems_of(with_routes) == {("entry",): Code.UNKNOWN_ENTRY}
    assert problems_of(without) == {("entry",): Code.UNKNOWN_ENTRY}


def test_a_step_that_nothing_leads_to_is_refused() -> None:
    workflow = routed("a")
    workflow.step(name="b", max_visits=2)(ship)
    workflow.step(name="c")(ship)
    workflow.route("b", to="c")
    workflow.route("c", to="b")
    workflow.route("c", on="error", to="complete")

    assert problems_of(workflow) == {
        ("steps", "b"): Code.UNREACHABLE_STEP,
        ("steps", "c"): Code.UNREACHABLE_STEP,
    }


def test_a_workflow_that_cannot_end_is_refused() -> None:
    workflow = routed("a", payload=Order)
    workflow.step(name="b", max_visits=3)(ship)
    workflow.route("a", to="b", when=path("amount") > 1)
    workflow.route("b", to="b")

    assert problems_of(workflow) == {("steps", "b"): Code.CANNOT_END}


def test_a_loop_needs_a_limit_on_every_circle() -> None:
    workflow = Workflow("orders", payload=Order)
    workflow.step(name="a")(ship)
    workflow.step(name="b")(ship)
    workflow.step(name="c", max_visits=3)(ship)
    workflow.route("a", to="b")
    workflow.route("b", to="c", when=path("amount") > 1)
    workflow.route("b", to="b", when=path("amount") > 2)
    workflow.route("b", to="complete")
    workflow.route("c", to="b")

    assert problems_of(workflow) == {("steps", "b", "max_visits"): Code.LOOP_WITHOUT_MAX_VISITS}
    assert "b -> b may turn for ever" in message_of(workflow)


def test_a_longer_loop_is_told_in_the_direction_of_its_routes() -> None:
    workflow = routed("a", "b", "c", "d", payload=Order)
    workflow.route("d", to="b", when=path("amount") > 1)

    assert "b -> c -> d -> b may turn for ever" in message_of(workflow)


def test_routes_and_after_do_not_mix() -> None:
    workflow = routed("a")
    workflow.step(after=["a"])(ship)
    workflow.route("a", on="error", to=ship)
    workflow.route(ship, to="complete")

    assert problems_of(workflow)["steps", "ship", "after"] == Code.ROUTES_AND_AFTER


def test_dependencies_are_other_steps() -> None:
    after: Any = ["a", "ship", other, 5, "shp", "complete"]
    workflow = Workflow("orders")
    workflow.step(name="a")(nothing)
    workflow.step(after=after)(ship)

    assert problems_of(workflow) == {
        ("steps", "ship", "after", 1): Code.SELF_DEPENDENCY,
        ("steps", "ship", "after", 2): Code.UNKNOWN_DEPENDENCY,
        ("steps", "ship", "after", 3): Code.INVALID_AFTER,
        ("steps", "ship", "after", 4): Code.UNKNOWN_DEPENDENCY,
        ("steps", "ship", "after", 5): Code.UNKNOWN_DEPENDENCY,
    }
    assert "there is no step 'shp': did you mean 'ship'?" in message_of(workflow)


def test_dependencies_do_not_turn_in_a_circle() -> None:
    workflow = Workflow("orders")
    for name, after in [("a", ["c"]), ("b", ["a"]), ("c", ["b"]), ("d", []), ("x", ["y"]), ("y", ["x"])]:
        workflow.step(name=name, after=after)(ship)

    assert problems_of(workflow) == {
        ("steps", "a", "after"): Code.DEPENDENCY_CYCLE,
        ("steps", "x", "after"): Code.DEPENDENCY_CYCLE,
    }
    assert "a after c after b after a" in message_of(workflow)


def test_a_step_cannot_take_its_own_output_to_begin() -> None:
    workflow = Workflow("orders")

    @workflow.step
    def total(total: int) -> int:
        return total

    assert problems_of(workflow) == {("steps", "total", "parameters", "total"): Code.SELF_DEPENDENCY}


def test_parameters_do_not_turn_in_a_circle() -> None:
    workflow = Workflow("orders")

    @workflow.step
    def left(right: int) -> int:
        return right

    @workflow.step
    def right(left: int) -> int:
        return left

    assert problems_of(workflow) == {("steps", "left", "after"): Code.DEPENDENCY_CYCLE}


def test_people_decide_only_where_there_are_routes() -> None:
    workflow = Workflow("orders")
    workflow.step(ship)
    workflow.pause("rest")
    workflow.approval("review")

    assert problems_of(workflow) == {
        ("steps", "rest"): Code.MANUAL_STEP_IN_DEPENDENCY_MODE,
        ("steps", "review"): Code.MANUAL_STEP_IN_DEPENDENCY_MODE,
    }


def test_a_wait_that_nothing_waits_for_is_refused() -> None:
    workflow = Workflow("orders")
    workflow.step(ship)
    workflow.wait("settle", timedelta(hours=1))

    assert problems_of(workflow) == {("steps", "settle"): Code.DETACHED_WAIT}
