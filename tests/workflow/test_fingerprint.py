"""The fingerprint changes with the meaning of a workflow, with nothing else, and is the same in every process."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model

from squid_dagster.workflow import Cron, Resource, Retry, StepContext, Workflow, path
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.fingerprint import payload_contract
from tests.workflow.drafts import Order, ship
from tests.workflow.payment_recovery import payment_recovery

Change = Callable[[dict[str, Any]], None]


class Tagged(BaseModel):
    """A payload whose schema could come out in another order in another process."""

    tags: set[str] = {"a", "b", "c", "d", "e", "f"}
    many: dict[str, set[str]] = {"x": {"a", "b", "c", "d", "e", "f"}}
    level: Literal["low", "high"] = "low"
    order: Order | None = None


def tagged() -> Workflow:
    workflow = Workflow("tagged", payload=Tagged)
    workflow.step(ship)
    return workflow


def base() -> dict[str, Any]:
    """Return the parts of a workflow, to be changed one at a time."""
    return {
        "version": "1",
        "payload": Order,
        "triggers": (),
        "charge": {"output": "charge", "retry": Retry(2)},
        "function": ship,
        "wait": timedelta(hours=1),
        "text": "done",
        "manual": "approval",
        "when": path("amount") > 5,
        "other": path("amount") < 2,
        "recovery": None,
        "target": "fail",
    }


def build(parts: dict[str, Any]) -> Workflow:
    workflow = Workflow("orders", version=parts["version"], payload=parts["payload"], triggers=parts["triggers"])
    workflow.step(name="charge", **parts["charge"])(parts["function"])
    workflow.wait("rest", parts["wait"])
    workflow.log("note", parts["text"])
    getattr(workflow, parts["manual"])("review")
    workflow.route("charge", to="rest", when=parts["when"])
    workflow.route("charge", to="note", when=parts["other"])
    workflow.route("charge", to="review")
    workflow.route("charge", on="error", to=parts["target"], recovery=parts["recovery"])
    workflow.route("rest", to="complete")
    workflow.route("note", to="complete")
    workflow.route("review", to="complete")
    if parts["manual"] == "approval":
        workflow.route("review", on="error", to="fail")
    return workflow


def fingerprint(**changes: Any) -> str:
    return build({**base(), **changes}).freeze().fingerprint


class Reordered(BaseModel):
    """The same contract in other words."""

    amount: int = Field(1, title="How much", description="In cents", examples=[5])
    order_id: str


class OtherDefault(Order):
    amount: int = 2


class OptionalId(Order):
    order_id: str = "none"


def takes_amount(amount: int) -> None:
    """Receive one more value of the state."""


def takes_a_context(ctx: StepContext, colour: str = "red") -> int:
    return 5


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": OptionalId},
        {"payload": create_model("Order", order_id=(int, ...), amount=(int, 1))},
        {"charge": {"output": "other"}},
        {"charge": {"irreversible": True}},
        {"charge": {"compensate": ship}},
        {"function": takes_amount},
        {"wait": timedelta(hours=1, microseconds=1)},
        {"manual": "pause"},
        {"when": path("amount") > 6},
        {"when": path("amount") >= 5},
        {"when": path("order_id") > "5"},
        {"when": path("amount").exists()},
        {"when": path("amount") < 2, "other": path("amount") > 5},
        {"recovery": "compensation"},
        {"recovery": "undo"},
        {"target": "complete"},
    ],
)
def test_a_change_of_meaning_changes_the_fingerprint(changes: dict[str, Any]) -> None:
    assert fingerprint(**changes) != fingerprint()


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "2"},
        {"version": None},
        {"payload": Reordered},
        {"payload": OtherDefault},
        {"triggers": Cron("@daily", payload={"order_id": "x"})},
        {"charge": {}},
        {"charge": {"retry": Retry(9, jitter=0.5)}},
        {"charge": {"priority": 3, "max_deliveries": 9, "max_visits": 4, "deadline": timedelta(1)}},
        {"charge": {"isolate": True}},
        {"charge": {"transactional": True}},
        {"function": takes_a_context},
        {"text": "other words"},
        {"when": path("amount") > 5.0},
    ],
)
def test_what_does_not_change_the_meaning_does_not_change_the_fingerprint(changes: dict[str, Any]) -> None:
    assert fingerprint(**changes) == fingerprint()


ROUTES: list[dict[str, Any]] = [
    {"source": "a", "to": "b", "when": path("amount") > 5},
    {"source": "a", "to": "c"},
    {"source": "b", "to": "c"},
    {"source": "b", "to": "fail", "on": "error"},
    {"source": "c", "to": "complete"},
    {"source": "c", "to": "complete", "on": "error", "recovery": "undo"},
]


@given(st.permutations("abc"), st.permutations(ROUTES))
def test_the_order_of_unrelated_declarations_does_not_matter(names: list[str], routes: list[dict[str, Any]]) -> None:
    def declared(names: list[str], routes: list[dict[str, Any]]) -> Workflow:
        workflow = Workflow("orders", payload=Order)
        for name in names:
            workflow.step(name=name)(ship)
        for route in routes:
            workflow.route(**route)
        return workflow

    assert declared(names, routes).freeze().fingerprint == declared(list("abc"), ROUTES).freeze().fingerprint


def left() -> int:
    return 1


def right() -> int:
    return 2


def join(left: int, right: int) -> int:
    return left + right


@given(st.permutations([left, right, join]), st.permutations([left, right]))
def test_edges_mean_the_same_declared_or_by_parameters(steps: list[Any], after: list[Any]) -> None:
    by_parameters, declared = Workflow("orders"), Workflow("orders")
    for function in steps:
        by_parameters.step(function)
        declared.step(after=after if function is join else ())(function)

    assert by_parameters.freeze().fingerprint == declared.freeze().fingerprint


@given(st.permutations([left, right, join]))
def test_the_order_of_steps_does_not_matter_where_parameters_order_them(steps: list[Any]) -> None:
    declared, first = Workflow("orders"), Workflow("orders")
    for function in steps:
        declared.step(function)
    for function in (left, right, join):
        first.step(function)

    assert declared.freeze().fingerprint == first.freeze().fingerprint


def test_the_order_of_parameters_does_not_matter() -> None:
    def turned(right: int, left: int) -> int:
        return left + right

    def declared(function: Any) -> str:
        workflow = Workflow("orders")
        for name, task in (("left", left), ("right", right), ("join", function)):
            workflow.step(name=name)(task)
        return workflow.freeze().fingerprint

    assert declared(turned) == declared(join)


def test_another_edge_is_another_meaning() -> None:
    def declared(*after: Any) -> str:
        workflow = Workflow("orders")
        workflow.step(left)
        workflow.step(name="right", after=after)(right)
        workflow.step(after=[left, right])(join)
        return workflow.freeze().fingerprint

    assert declared() != declared(left)


def test_names_of_classes_are_no_part_of_a_contract() -> None:
    def model(name: str) -> type[BaseModel]:
        inner = create_model(name, title=(str, ...), description=(int, 5))
        return create_model(f"Outer{name}", one=(inner, ...), many=(list[inner], ...))

    assert payload_contract(model("First")) == payload_contract(model("Second"))
    assert "'title': {'type': 'string'}" in str(payload_contract(model("First")))


def test_the_parts_of_a_contract_are_told_apart() -> None:
    one, two = create_model("One", a=(int, ...)), create_model("Two", a=(str, ...))
    pairs = [(one, one), (one, two), (two, one), (two, two)]
    contracts = [str(payload_contract(create_model("Pair", x=(x, ...), y=(y, ...)))) for x, y in pairs]

    assert len(set(contracts)) == 4


def test_a_recursive_contract_has_an_end() -> None:
    assert payload_contract(Tree) == payload_contract(Tree)


class Tree(BaseModel):
    children: list["Tree"] = []
    label: str = Field("x", description="shown")


@pytest.mark.parametrize("seed", ["0", "1", "2", "3"])
def test_the_fingerprint_is_the_same_in_every_process(seed: str) -> None:
    program = (
        "from tests.workflow.payment_recovery import payment_recovery as a\n"
        "from tests.workflow.test_fingerprint import tagged\n"
        "print(a.freeze().fingerprint, tagged().freeze().fingerprint)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )

    assert answer.stdout.split() == [payment_recovery.freeze().fingerprint, tagged().freeze().fingerprint]


def test_a_fingerprint_is_a_sha256_that_no_release_changes_by_accident() -> None:
    workflow = Workflow("orders")
    workflow.step(ship)

    assert workflow.freeze().fingerprint == "b6ed462aa9452373e70d4a807119f5bdbe7b929fbdab07671de9936870f9b581"


def test_a_resource_is_no_part_of_the_meaning() -> None:
    from typing import Annotated

    def with_resource(slack: Annotated[object, Resource("slack")]) -> None:
        """Ship with a word about it."""

    assert fingerprint(function=with_resource) == fingerprint()


class Booking(BaseModel):
    room: str
    nights: int = 1


def book(room: str) -> str:
    return room


def pay(book: str, nights: int) -> int:
    return nights


def cancel(book: str) -> None:
    """Undo a booking."""


def cancel_nights(book: str, nights: int) -> None:
    """Undo a booking, told how long it was."""


def cancel_with_resource(
    ctx: StepContext, book: str, desk: Annotated[object, Resource("desk")], colour: str = "red"
) -> None:
    """Undo a booking with more than the run's state has."""


def booking(undo: Any = None) -> Definition:
    workflow = Workflow("booking", payload=Booking)
    workflow.step(name="book", compensate=undo)(book)
    workflow.step(pay)
    return workflow.freeze()


def test_the_fingerprint_covers_what_a_compensation_takes_and_nothing_else_of_it() -> None:
    assert booking(cancel).fingerprint != booking(cancel_nights).fingerprint
    assert booking(cancel).fingerprint != booking(lambda: None).fingerprint
    assert booking(cancel).fingerprint == booking(cancel_with_resource).fingerprint


def test_what_earlier_releases_computed_is_known_and_only_differs_where_something_is_compensated() -> None:
    plain = booking()
    assert plain.fingerprint == "2571b075752b3085494d1bff08fa11b900fca7d0844c3bde4dcf562ff75eee83"
    assert plain.former_fingerprints == ()
    for undo in (cancel, cancel_nights):
        then = ("5817d2be095c0e812e1a22361b8a1ebfa104978109e535efd1ef6336f927562e",)
        assert booking(undo).former_fingerprints == then
    assert booking(cancel).fingerprint == "46c91ee7903028c29d30a8f47961a34aff445e8491a1f64a408666273eb0ac97"
