"""A workflow without `payload=` takes what its steps' parameters name."""

import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, cast
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, Json, PlainSerializer, SecretStr, TypeAdapter

from squid_dagster.protocol.errors import InvalidPayload
from squid_dagster.workflow import Code, Cron, Definition, Resource, StepContext, Workflow, bind, path
from tests.workflow.drafts import message_of, problems_of


class SlackClient:
    pass


def definition_of(*functions: Callable[..., Any]) -> Definition:
    workflow = Workflow("orders")
    for number, function in enumerate(functions):
        workflow.step(name=f"step_{number}")(function)
    return workflow.freeze()


def take(
    ctx: StepContext,
    order_id: UUID,
    slack: Annotated[SlackClient, Resource("slack")],
    amount: Annotated[int, Field(gt=0, description="How many")] = 1,
) -> None:
    """Receive an order."""


def test_what_steps_name_is_the_payload_with_defaults_and_annotations() -> None:
    definition = definition_of(take)
    order_id = UUID(int=7)

    assert definition.accept_payload({"order_id": str(order_id)}) == {"order_id": str(order_id), "amount": 1}
    assert definition.accept_payload({"order_id": order_id, "amount": "3"}) == {"order_id": str(order_id), "amount": 3}
    assert definition.payload is not None
    schema = definition.payload.model_json_schema()
    assert schema["required"] == ["order_id"]
    assert schema["properties"]["order_id"]["format"] == "uuid"
    assert (schema["properties"]["amount"]["description"], schema["properties"]["amount"]["default"]) == ("How many", 1)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({}, "order_id: Field required"),
        (None, "order_id: Field required"),
        ({"order_id": "x"}, r"order_id: Input should be a valid UUID.*\(got str\)"),
        ({"order_id": str(UUID(int=1)), "amount": 0}, "amount: Input should be greater than 0"),
        ({"order_id": str(UUID(int=1)), "amuont": 3}, r"amuont: Extra inputs are not permitted \(got int\)"),
        ("text", "value: Input should be a valid dictionary"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_by_key_with_what_the_steps_take(payload: Any, said: str) -> None:
    remedy = (
        r"The steps take order_id: uuid.UUID, amount: int \(optional\): give these; other keys need payload= a model"
    )
    with pytest.raises(InvalidPayload, match=f"payload of workflow 'orders': {said}.*{remedy}"):
        definition_of(take).accept_payload(payload)


def test_outputs_resources_and_the_context_are_no_part_of_the_payload() -> None:
    workflow = Workflow("orders")

    @workflow.step(output="invoice")
    def write(ctx: StepContext, order_id: str, slack: Annotated[SlackClient, Resource("slack")]) -> dict[str, Any]:
        return {}

    @workflow.step
    def send(invoice: dict[str, Any], address: str) -> None:
        """Send it."""

    definition = workflow.freeze()
    payload = {"order_id": "o", "address": "a"}
    assert definition.accept_payload(payload) == payload
    assert definition.steps["send"].after == ("write",)
    with pytest.raises(InvalidPayload, match="invoice: Extra inputs are not permitted"):
        definition.accept_payload({**payload, "invoice": {}})


def test_compensations_and_external_steps_take_from_the_payload_too() -> None:
    workflow = Workflow("orders")

    def refund(charge: int, reason: str = "none") -> None:
        """Refund."""

    def config(region: str) -> dict[str, Any]:
        return {"region": region}

    @workflow.step(compensate=refund)
    def charge() -> int:
        return 1

    workflow.external("train", "dagster_job", job="train", run_config=config, partition_key_from="day")
    definition = workflow.freeze()

    assert definition.accept_payload({"region": "eu", "day": "2026-01-01"}) == {
        "reason": "none",
        "region": "eu",
        "day": "2026-01-01",
    }
    with pytest.raises(InvalidPayload, match=r"region: Field required; day: Field required"):
        definition.accept_payload({})


def test_a_workflow_whose_steps_take_nothing_takes_no_payload() -> None:
    definition = definition_of(lambda: None)

    assert definition.payload is None
    assert definition.accept_payload({}) == {}
    with pytest.raises(InvalidPayload, match=r"takes no payload, but got dict with 'account': name it as a parameter"):
        definition.accept_payload({"account": 1})


def test_a_name_that_one_step_requires_is_required() -> None:
    def first(amount: int = 5) -> None: ...
    def second(amount: int) -> None: ...

    with pytest.raises(InvalidPayload, match="amount: Field required"):
        definition_of(first, second).accept_payload({})


def test_steps_with_different_defaults_each_use_their_own() -> None:
    def first(amount: int = 5) -> None: ...
    def second(amount: int = 6) -> None: ...

    definition = definition_of(first, second)
    assert definition.accept_payload({}) == {}
    assert bind(definition.steps["step_0"], {}) == {}
    assert definition.accept_payload({"amount": 7}) == {"amount": 7}


class Address(BaseModel):
    street: str


def test_a_value_must_fit_the_annotation_of_every_step_that_takes_it() -> None:
    def first(address: dict[str, Any]) -> None: ...
    def second(address: Address) -> None: ...

    definition = definition_of(first, second)
    assert definition.accept_payload({"address": {"street": "s", "floor": 1}}) == {
        "address": {"street": "s", "floor": 1}
    }
    with pytest.raises(InvalidPayload, match=r"address: Value error, step 'step_1' cannot take it: street: Field requ"):
        definition.accept_payload({"address": {}})


@pytest.mark.parametrize("name", ["schema", "json", "copy", "model_name", "model_fields_of"])
def test_a_name_that_models_have_too_is_a_name_like_any_other(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        definition = definition_of(named(name))
    assert definition.accept_payload({name: 3}) == {name: 3}


def named(name: str) -> Callable[..., Any]:
    """Return a function with one parameter of that name."""
    scope: dict[str, Any] = {}
    exec(f"def take({name}: int) -> None: ...", scope)  # noqa: S102
    return cast("Callable[..., Any]", scope["take"])


# --- definitions that earlier releases accepted ---------------------------------------------------------------------


def unfitting(
    limit: int = None,  # type: ignore[assignment]  # noqa: RUF013
    since: datetime = datetime(2026, 1, 1),  # noqa: DTZ001
    price: Decimal = Decimal("1.50"),
    pair: Any = (1, 2),
    token: SecretStr = SecretStr("s3cret"),  # noqa: B008
    ratio: float = float("inf"),
    sentinel: Any = object(),  # noqa: B008
    hook: Callable[[], None] = lambda: None,
    _private: int = 3,
    model_config: int = 4,
    flag: bool = 1,  # type: ignore[assignment]
) -> None:
    """Receive defaults of every kind."""


def test_a_default_that_json_cannot_hold_stays_with_the_function() -> None:
    accepted = definition_of(unfitting).accept_payload({})

    assert accepted == {"since": "2026-01-01T00:00:00", "price": "1.50", "flag": True}
    assert definition_of(unfitting).accept_payload({"limit": 3})["limit"] == 3


def old() -> Workflow:
    workflow = Workflow("old", triggers=[Cron("@daily")])

    def undo(first: int, reason: str = "none") -> None:
        """Undo."""

    @workflow.step(compensate=undo)
    def first(limit: int = 5) -> int:
        return limit

    @workflow.step
    def second(first: int, limit: str = "x") -> None:
        """Return nothing, as the second step."""

    return workflow


def test_what_earlier_releases_accepted_is_accepted_and_their_runs_go_on() -> None:
    definition = old().freeze()

    assert definition.accept_payload({}) == {"reason": "none"}
    # Of the releases in which parameters with a default that nothing gave were left out, and compensations were not.
    assert definition.former_fingerprints == (
        "02486d24febf0a42e45d8af00eec76c3a88f8ad114ddacc3a2bd24788e39bdf8",
        "b1b988d0b88156a059d65617959a5157824ec687f8fcbbaaf62ade85bfcb8d83",
    )
    assert bind(definition.steps["second"], {"first": 1}) == {"first": 1}


def test_only_what_earlier_releases_accepted_has_a_former_fingerprint() -> None:
    assert definition_of(lambda: None).former_fingerprints == ()
    assert definition_of(take).former_fingerprints == ()


def test_the_fingerprint_covers_what_the_payload_must_be_but_not_its_defaults() -> None:
    def plain(amount: int) -> None: ...
    def text(amount: str) -> None: ...
    def optional(amount: int = 5) -> None: ...
    def other_default(amount: int = 6) -> None: ...

    prints = [definition_of(variant).fingerprint for variant in (plain, text, optional, other_default)]
    assert len(set(prints)) == 3
    assert prints[2] == prints[3]


# --- crons and conditions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [{}, {"region": 5}, {"region": "eu", "regoin": "us"}])
def test_the_clock_must_give_what_the_steps_take(payload: Any) -> None:
    workflow = Workflow("orders", triggers=[Cron("@daily", payload=payload)])

    @workflow.step
    def report(region: str) -> None:
        """Report."""

    assert problems_of(workflow) == {("triggers", 0, "payload"): Code.INVALID_CRON_PAYLOAD}
    assert "The steps take region: str" in message_of(workflow)


def test_the_clock_gives_what_the_steps_take() -> None:
    workflow = Workflow("orders", triggers=[Cron("@daily", payload={"region": "eu"})])

    @workflow.step
    def report(region: str) -> None:
        """Report."""

    workflow.check()


def test_one_mistake_in_a_function_is_no_second_one_in_a_trigger() -> None:
    workflow = Workflow("orders", triggers=[Cron("@daily", payload={"region": "eu"})])

    @workflow.step
    def report(region) -> None:  # type: ignore[no-untyped-def]
        """Report."""

    assert problems_of(workflow) == {("steps", "report", "parameters", "region"): Code.MISSING_ANNOTATION}


def test_a_condition_may_ask_about_what_a_step_takes_and_about_nothing_else() -> None:
    workflow = Workflow("orders")

    @workflow.step
    def report(region: str, limit: int = 5) -> None:
        """Report."""

    workflow.wait("rest", timedelta(hours=1))
    workflow.route(report, to="complete", when=path("limit") > 3)
    workflow.route(report, to="complete", when=path("tenant") == "x")
    workflow.route(report, to="rest")
    workflow.route("rest", to="complete")

    assert problems_of(workflow) == {("routes", 1, "when"): Code.UNKNOWN_CONDITION_PATH}


def test_a_time_of_the_payload_comes_to_the_step_as_one() -> None:
    def report(at: datetime) -> None: ...

    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert definition_of(report).accept_payload({"at": at}) == {"at": "2026-01-01T00:00:00Z"}


class Line(BaseModel):
    sku: str
    count: int = Field(1, alias="n")
    owner: str = Field(alias="ownedBy")


def test_what_is_stored_is_what_the_step_reads() -> None:
    def pack(line: Line, note: Json[dict[str, int]]) -> None: ...

    payload = {"line": {"sku": "s", "n": 7, "ownedBy": "ada"}, "note": '{"a": 1}'}
    stored = definition_of(pack).accept_payload(payload)

    assert stored["line"] == payload["line"]
    assert TypeAdapter(Line).validate_python(stored["line"]).count == 7
    assert TypeAdapter(Json[dict[str, int]]).validate_python(stored["note"]) == {"a": 1}


def test_a_value_that_its_step_could_not_read_again_is_refused() -> None:
    def wait(amount: Annotated[int, PlainSerializer(lambda value: f"{value} pieces")]) -> None: ...

    with pytest.raises(InvalidPayload, match="step 'step_0' cannot take it"):
        definition_of(wait).accept_payload({"amount": 3})


def pay(token: SecretStr) -> None: ...


def hide(amount: Annotated[int, Field(exclude=True)]) -> None: ...


def rename(amount: Annotated[int, Field(validation_alias="n")]) -> None: ...


def limit(amount: int = Field(5, gt=0)) -> None: ...


@pytest.mark.filterwarnings("ignore")  # of pydantic, about fields in annotations
@pytest.mark.parametrize(
    ("function", "code", "expected"),
    [
        (pay, Code.UNSUPPORTED_ANNOTATION, "take it from a Resource"),
        (hide, Code.UNSUPPORTED_ANNOTATION, "exclude or an alias"),
        (rename, Code.UNSUPPORTED_ANNOTATION, "exclude or an alias"),
        (limit, Code.UNSUPPORTED_PARAMETER, "Annotated[int, Field(gt=0)] = 5"),
    ],
)
def test_a_parameter_that_a_payload_cannot_give_is_an_error(
    function: Callable[..., Any], code: Code, expected: str
) -> None:
    workflow = Workflow("orders")
    workflow.step(function)

    ((place, actual),) = problems_of(workflow).items()

    assert (place[:3], actual) == (("steps", function.__name__, "parameters"), code)
    assert expected in message_of(workflow)
