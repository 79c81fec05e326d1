"""From state to input to call: errors name what is missing or does not fit by step, parameter and type."""

import asyncio
import logging
import pickle
from dataclasses import FrozenInstanceError
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field

from squid_dagster.protocol.errors import InvalidArgument, InvalidPayload
from squid_dagster.workflow import (
    Cancellation,
    Defer,
    Definition,
    Fail,
    InvalidInput,
    MissingResource,
    Resource,
    StepContext,
    Workflow,
    bind,
    bind_compensation,
    call_arguments,
    compensation_arguments,
)
from tests.workflow.drafts import Order, ship
from tests.workflow.future_annotations import later


class SlackClient:
    pass


class Line(BaseModel):
    model_config = ConfigDict(strict=True)
    sku: str
    at: datetime


CTX = StepContext(run_id="r", workflow="orders", step="take", runnable_key="r:take:1:1", idempotency_key="r:take:1")


def refund(order_id: str, take: dict[str, Any], slack: Annotated[SlackClient, Resource("slack")]) -> None:
    """Refund."""


def orders() -> Definition:
    workflow = Workflow("orders", payload=Order)

    @workflow.step(compensate=refund)
    async def take(
        ctx: StepContext,
        order_id: str,
        slack: Annotated[SlackClient, Resource("slack")],
        amount: Annotated[int, Field(gt=0)] = 5,
        colour: str = "red",
    ) -> None:
        """Receive an order."""

    @workflow.step
    def pack(take: list[Line], *, late: Annotated[bool, Resource("late")] = False) -> None:
        """Prepare an order."""

    workflow.log("note", "packed")
    return workflow.freeze()


def test_an_input_that_misses_a_value_is_refused_by_name() -> None:
    definition = orders()

    with pytest.raises(InvalidInput, match=r"step 'take' takes 'order_id', but the run has no .*; it has amount"):
        bind(definition.steps["take"], {"amount": 3})
    with pytest.raises(InvalidInput, match=r"step 'take' takes 'order_id', but its input has only amount"):
        call_arguments(definition.steps["take"], {"amount": 3}, CTX, {"slack": SlackClient()})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"order_id": ["s3cret"]},
            r"step 'take' cannot take 'order_id' of JSON type list: .*string \(got list\)",
        ),
        ({"order_id": "x", "amount": 0}, r"cannot take 'amount' of JSON type int: value: .*greater than 0 \(got int\)"),
        ({"order_id": None}, r"cannot take 'order_id' of JSON type NoneType"),
        ({"order_id": "\ud800"}, r"cannot take 'order_id' of JSON type str: it is not JSON"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_parameter_and_type(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        call_arguments(orders().steps["take"], values, CTX, {"slack": SlackClient()})

    assert "s3cret" not in str(refused.value)


def test_a_value_that_does_not_fit_is_located_inside() -> None:
    lines: Any = [{"sku": "a", "at": "2026-01-01T00:00:00Z"}, {"sku": 5, "at": "never"}]

    with pytest.raises(InvalidInput, match=r"'take' of JSON type list: 1\.sku: .*\(got int\); 1\.at: .*\(got str\)"):
        call_arguments(orders().steps["pack"], {"take": lines}, CTX, {})


def test_a_missing_resource_is_refused_by_key() -> None:
    message = r"step 'take' asks for resource 'slack' \(parameter 'slack'\), but the worker has mail: pass resources="
    with pytest.raises(MissingResource, match=message):
        call_arguments(orders().steps["take"], {"order_id": "x"}, CTX, {"mail": 1})


def test_a_step_without_a_compensation_has_nothing_to_bind() -> None:
    with pytest.raises(InvalidInput, match="step 'pack' declares no compensation"):
        bind_compensation(orders().steps["pack"], {})


def test_outputs_and_payload_become_an_input_and_the_input_becomes_the_call() -> None:
    definition, slack = orders(), SlackClient()
    step = definition.steps["take"]
    input_ = bind(step, {**definition.accept_payload({"order_id": "o-1"}), "pack": None})

    assert input_ == {"order_id": "o-1", "amount": 1}
    assert call_arguments(step, {**input_, "more": 1}, CTX, {"slack": slack, "x": 1}) == {
        "ctx": CTX,
        "order_id": "o-1",
        "slack": slack,
        "amount": 1,
    }
    assert call_arguments(step, {"order_id": "o-1"}, CTX, {"slack": slack}).keys() == {"ctx", "order_id", "slack"}


def test_values_are_read_as_json_whatever_the_model_demands() -> None:
    arguments = call_arguments(
        orders().steps["pack"], {"take": [{"sku": "a", "at": "2026-01-01T00:00:00Z"}]}, CTX, {"late": True}
    )

    assert arguments["take"][0].at.year == 2026
    assert arguments["late"] is True


def test_a_compensation_is_bound_like_its_step_and_takes_its_output() -> None:
    definition, slack = orders(), SlackClient()
    step = definition.steps["take"]
    input_ = bind_compensation(step, {"order_id": "o-1", "amount": 1, "take": {"id": 5}})

    assert input_ == {"order_id": "o-1", "take": {"id": 5}}
    assert compensation_arguments(step, input_, CTX, {"slack": slack}) == {**input_, "slack": slack}
    assert step.recovery()["compensated"] is True


def test_a_built_in_takes_nothing() -> None:
    step = orders().steps["note"]

    assert bind(step, {"order_id": "x"}) == {}
    assert call_arguments(step, {}, CTX, {}) == {}


def test_a_definition_says_what_a_worker_must_provide_and_how_to_call() -> None:
    definition = orders()
    take, pack = definition.steps["take"].task, definition.steps["pack"].task

    assert definition.resources == {"slack"}
    assert take is not None
    assert pack is not None
    assert (take.is_async, pack.is_async) == (True, False)
    assert take.takes == ("order_id", "amount")


class Money(BaseModel):
    id: UUID
    price: Decimal = Decimal("1.50")
    due: datetime | None = None


def money() -> Definition:
    workflow = Workflow("money", payload=Money)

    @workflow.step
    def pay(id: UUID, price: Decimal) -> None:  # noqa: A002  the field's name
        """Charge it."""

    return workflow.freeze()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "id: Field required"),
        ({"id": "nope"}, r"id: .*\(got str\)"),
        ("text", r"value: .*\(got str\)"),
        ({"id": UUID(int=1), "price": "NaN"}, "price"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_without_its_values(payload: Any, message: str) -> None:
    with pytest.raises(InvalidPayload, match=f"payload of workflow 'money': {message}") as refused:
        money().accept_payload(payload)

    assert "nope" not in str(refused.value)


def test_a_workflow_without_payload_takes_none() -> None:
    workflow = Workflow("orders")
    workflow.step(ship)
    definition = workflow.freeze()

    assert definition.accept_payload(None) == definition.accept_payload({}) == {}
    with pytest.raises(InvalidPayload, match="takes no payload"):
        definition.accept_payload({"a": 1})


def test_a_payload_is_json_with_defaults_and_comes_back_as_what_it_was() -> None:
    definition = money()
    payload = definition.accept_payload({"id": UUID(int=1)})
    arguments = call_arguments(definition.steps["pay"], bind(definition.steps["pay"], payload), CTX, {})

    assert payload == {"id": str(UUID(int=1)), "price": "1.50", "due": None}
    assert payload == definition.accept_payload(Money(id=UUID(int=1)))
    assert arguments == {"id": UUID(int=1), "price": Decimal("1.50")}


def test_a_number_that_json_cannot_mean_is_refused_in_a_payload() -> None:
    class Loose(BaseModel):
        ratio: float

    workflow = Workflow("loose", payload=Loose)
    workflow.step(ship)

    with pytest.raises(InvalidPayload, match="cannot be written as JSON"):
        workflow.freeze().accept_payload({"ratio": float("inf")})


def test_annotations_that_are_texts_are_resolved() -> None:
    definition = later.freeze()
    tell, slack = definition.steps["tell"], object()

    assert definition.resources == {"slack"}
    assert definition.steps["note"].after == ("tell",)
    assert call_arguments(tell, {"order_id": "o"}, CTX, {"slack": slack}) == {
        "ctx": CTX,
        "order_id": "o",
        "slack": slack,
    }


def test_a_step_stays_a_plain_function() -> None:
    workflow = Workflow("orders")

    @workflow.step(name="double", output="doubled")
    def double(x: int = 2) -> int:
        return 2 * x

    @workflow.step
    async def later() -> int:
        return 3

    assert double(4) == 8
    assert asyncio.run(later()) == 3


def test_a_context_is_frozen_and_its_cancellation_reads_as_a_bool() -> None:
    assert not CTX.cancelled
    with pytest.raises(FrozenInstanceError):
        CTX.attempt = 2  # type: ignore[misc]
    cancelled = Cancellation()
    cancelled.set()
    ctx = StepContext(run_id="r", workflow="w", step="s", runnable_key="k", idempotency_key="i", cancelled=cancelled)

    assert ctx.cancelled
    assert ctx.cancelled.wait(0)
    assert isinstance(CTX.log, logging.Logger)
    assert (CTX.attempt, CTX.fencing_token, dict(CTX.state)) == (1, 1, {})


def test_what_a_step_raises_crosses_a_process_border_whole() -> None:
    failed = pickle.loads(pickle.dumps(Fail("refused", {"code": 51})))  # noqa: S301  our own bytes
    deferred = pickle.loads(pickle.dumps(Defer("not yet", after=timedelta(seconds=5))))  # noqa: S301

    assert (str(failed), failed.details) == ("refused", {"code": 51})
    assert (str(deferred), deferred.reason, deferred.after) == ("not yet", "not yet", timedelta(seconds=5))


def test_details_of_a_failure_are_json() -> None:
    with pytest.raises(InvalidArgument, match="the details of Fail must be a JSON value"):
        Fail("refused", {"code": object()})  # type: ignore[dict-item]
