"""What is refused of a function's parameters: what cannot be bound, read from JSON, or found in the run's state."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, Field

from squid_dagster.workflow import Code, Resource, StepContext, Workflow, path
from tests.workflow.drafts import Order, message_of, problems_of, ship

if TYPE_CHECKING:
    from decimal import Decimal


class Client:
    pass


class Unfinished(BaseModel):
    total: "Decimal"


def positional_only(order_id: str, /) -> None: ...
def many(*order_id: str) -> None: ...
def keywords(**order_id: str) -> None: ...
def bare(order_id) -> None: ...  # type: ignore[no-untyped-def]
def bare_with_default(order_id="x") -> None: ...  # type: ignore[no-untyped-def]
def client(order_id: Client) -> None: ...
def unfinished(order_id: Unfinished) -> None: ...
def resource_class(order_id: Annotated[Client, Resource]) -> None: ...
def resource_without_key(order_id: Annotated[Client, Resource("")]) -> None: ...
def two_resources(order_id: Annotated[Client, Resource("a"), Resource("b")]) -> None: ...
def optional_context(order_id: StepContext | None) -> None: ...


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (positional_only, Code.UNSUPPORTED_PARAMETER),
        (many, Code.UNSUPPORTED_PARAMETER),
        (keywords, Code.UNSUPPORTED_PARAMETER),
        (bare, Code.MISSING_ANNOTATION),
        (bare_with_default, Code.MISSING_ANNOTATION),
        (client, Code.UNSUPPORTED_ANNOTATION),
        (unfinished, Code.UNSUPPORTED_ANNOTATION),
        (resource_class, Code.UNSUPPORTED_ANNOTATION),
        (resource_without_key, Code.UNSUPPORTED_ANNOTATION),
        (two_resources, Code.UNSUPPORTED_ANNOTATION),
        (optional_context, Code.UNSUPPORTED_ANNOTATION),
    ],
)
def test_a_parameter_that_cannot_be_bound_is_refused(function: Any, code: Code) -> None:
    as_step = Workflow("orders", payload=Order)
    as_step.step(name="take")(function)
    as_compensation = Workflow("orders", payload=Order)
    as_compensation.step(compensate=function)(ship)

    assert problems_of(as_step) == {("steps", "take", "parameters", "order_id"): code}
    assert problems_of(as_compensation) == {("steps", "ship", "compensate", "parameters", "order_id"): code}


def unresolved(amount: "Decimal") -> None: ...
def misspelt(amount: "in t") -> None: ...  # type: ignore[valid-type]  # noqa: F722


@pytest.mark.parametrize("function", [unresolved, misspelt])
def test_annotations_that_cannot_be_resolved_are_refused_with_the_reason(function: Any) -> None:
    workflow = Workflow("orders", payload=Order)
    workflow.step(name="take")(function)

    assert problems_of(workflow) == {("steps", "take"): Code.UNRESOLVED_ANNOTATIONS}
    assert f"the annotations of {function.__name__} cannot be resolved" in message_of(workflow)


def test_an_unresolved_name_is_told() -> None:
    workflow = Workflow("orders", payload=Order)
    workflow.step(unresolved)

    assert "NameError: name 'Decimal' is not defined" in message_of(workflow)


def test_a_parameter_that_nothing_provides_is_refused_with_a_guess() -> None:
    workflow = Workflow("orders", payload=Order)

    @workflow.step
    def take(ordre_id: str, ctx: StepContext, slack: Annotated[Client, Resource("slack")], colour: str = "red") -> None:
        """Receive an order."""

    assert problems_of(workflow) == {("steps", "take", "parameters", "ordre_id"): Code.UNPROVIDED_PARAMETER}
    assert "did you mean 'order_id'?" in message_of(workflow)


def test_a_field_that_is_never_written_down_provides_nothing() -> None:
    class Login(Order):
        password: str = Field(exclude=True)

    workflow = Workflow("orders", payload=Login)

    @workflow.step
    def take(password: str) -> None:
        """Receive an order."""

    assert problems_of(workflow) == {("steps", "take", "parameters", "password"): Code.UNPROVIDED_PARAMETER}


def branching() -> Workflow:
    """Return a workflow in which `check` may or may not run before `last`."""
    workflow = Workflow("orders", payload=Order)
    workflow.step(name="first")(ship)
    workflow.step(name="check")(ship)
    workflow.route("first", to="check", when=path("amount") > 1)
    workflow.route("first", to="last")
    workflow.route("check", to="last")
    workflow.route("last", to="complete")
    return workflow


def test_an_output_that_only_some_ways_give_needs_a_default() -> None:
    without, with_default = branching(), branching()

    @without.step
    def last(first: None, check: dict[str, Any]) -> None:
        """Return nothing, as the last step."""

    @with_default.step(name="last")
    def last_with_default(first: None, check: dict[str, Any] | None = None) -> None:
        """Return nothing, as the last step."""

    assert problems_of(without) == {("steps", "last", "parameters", "check"): Code.UNCERTAIN_PARAMETER}
    assert "takes the output of step 'check', which may not be there" in message_of(without)
    assert problems_of(with_default) == {}


def test_a_failed_step_gives_no_output_but_a_rejection_does() -> None:
    workflow = Workflow("orders")

    @workflow.step
    def charge() -> None:
        """Charge."""

    @workflow.step
    def apologise(charge: None) -> None:
        """Send an apology."""

    @workflow.step
    def explain(review: dict[str, Any], charge: None) -> None:
        """Explain the rejection."""

    workflow.approval("review")
    workflow.route(charge, to="review")
    workflow.route(charge, on="error", to=apologise)
    workflow.route("review", to="complete")
    workflow.route("review", on="error", to=explain)
    workflow.route(apologise, to="complete")
    workflow.route(explain, to="fail")

    assert problems_of(workflow) == {("steps", "apologise", "parameters", "charge"): Code.UNCERTAIN_PARAMETER}


def test_what_a_loop_gives_is_not_there_on_the_first_visit() -> None:
    workflow = Workflow("orders", entry="poll")

    @workflow.step(max_visits=5)
    def poll(rest: int, poll: int | None = None) -> int:
        return rest

    @workflow.step
    def rest(poll: int) -> int:
        return poll

    workflow.route(poll, to="complete", when=path("poll") > 3)
    workflow.route(poll, to=rest)
    workflow.route(rest, to=poll)

    assert problems_of(workflow) == {("steps", "poll", "parameters", "rest"): Code.UNCERTAIN_PARAMETER}


def test_after_on_one_step_leaves_the_order_by_parameters_as_it_is() -> None:
    workflow = Workflow("orders")

    @workflow.step
    def invoice() -> int:
        return 1

    @workflow.step
    def mail(invoice: int) -> None:
        """Send it."""

    @workflow.step(after=invoice)
    def book(invoice: int) -> None:
        """Record it."""

    @workflow.step(after=[book])
    def archive(invoice: int, mail: None = None) -> None:
        """Archive what was booked."""

    after = {name: step.after for name, step in workflow.freeze().steps.items()}
    assert after == {"invoice": (), "mail": ("invoice",), "book": ("invoice",), "archive": ("book", "mail")}


def test_a_parameter_that_after_contradicts_needs_a_default() -> None:
    def workflow_of(first: Any) -> Workflow:
        workflow = Workflow("orders")
        workflow.step(name="first")(first)
        workflow.step(name="second", output="invoice", after=["first"])(lambda: 1)
        return workflow

    def requires(invoice: int) -> None: ...
    def defaults(invoice: int = 0, first: None = None) -> None: ...
    def takes_its_own(first: int) -> None: ...

    assert problems_of(workflow_of(requires)) == {("steps", "first", "after"): Code.DEPENDENCY_CYCLE}
    assert problems_of(workflow_of(takes_its_own)) == {("steps", "first", "parameters", "first"): Code.SELF_DEPENDENCY}
    definition = workflow_of(defaults).freeze()
    assert definition.entry_steps == ("first",)
    assert definition.fingerprint == "66377f782749fb05d7b4a0f303793480f294e959b168d78277440180473f5941"


def test_annotations_that_no_value_of_the_payload_fits_are_refused() -> None:
    def first(amount: int) -> None: ...
    def second(amount: dict[str, Any] = {}) -> None: ...  # noqa: B006
    def third(amount: float = 1) -> None: ...

    workflow = Workflow("orders")
    for function in (first, second, third):
        workflow.step(function)

    assert problems_of(workflow) == {("steps", "second", "parameters", "amount"): Code.CONFLICTING_PARAMETER}
    assert "step 'second' takes 'amount' as object, step 'first' as integer" in message_of(workflow)


@pytest.mark.parametrize("name", ["_order", "model_config", "model_dump"])
def test_a_name_that_no_field_of_a_payload_can_have_is_refused(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def take({name}: int) -> None: ...", scope)  # noqa: S102
    workflow = Workflow("orders")
    workflow.step(scope["take"])

    assert problems_of(workflow) == {("steps", "take", "parameters", name): Code.UNSUPPORTED_PARAMETER}
    assert f"{name!r} cannot be the name of a payload field: give the parameter another one" in message_of(workflow)


def test_a_payload_of_a_type_without_a_schema_is_refused() -> None:
    workflow = Workflow("orders")

    @workflow.step
    def call(hook: Callable[[], None]) -> None:
        """Call it."""

    assert problems_of(workflow) == {("steps", "call", "parameters", "hook"): Code.UNSUPPORTED_ANNOTATION}


def test_a_compensation_takes_what_its_step_could_and_the_step_s_own_output() -> None:
    workflow = Workflow("orders", payload=Order)

    def refund(order_id: str, charge: dict[str, Any], ship: None) -> None:
        """Refund."""

    @workflow.step(compensate=refund)
    def charge(order_id: str) -> None:
        """Charge."""

    workflow.step(ship)
    workflow.route(charge, to=ship)
    workflow.route(ship, to="complete")

    assert problems_of(workflow) == {("steps", "charge", "compensate", "parameters", "ship"): Code.UNCERTAIN_PARAMETER}
