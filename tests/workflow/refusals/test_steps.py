"""What is refused of a workflow itself, of its steps and of their options; each problem with its path and code."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, RootModel

from squid_dagster.protocol.errors import SquidError
from squid_dagster.workflow import Code, Cron, Deadline, InvalidWorkflow, Manual, Retry, Workflow
from squid_dagster.workflow.errors import Path
from tests.workflow.drafts import Order, message_of, problems_of, routed, ship, take_order

ODD_NAMES: list[Any] = ["", "a b", "a:b", "-a", "_a", "ä", "a\n", "a" * 201, None, 5, ["a"]]


def with_step(**options: Any) -> Workflow:
    workflow = Workflow("orders")
    workflow.step(**options)(ship)
    return workflow


def test_all_problems_are_told_at_once_each_with_path_code_and_message() -> None:
    class Parcel(BaseModel):
        parcel_id: str = "p-1"

    triggers = [Cron("61 * * * *", timezone="Mars/Olympus")]
    workflow = Workflow("or ders", payload=Parcel, version="", triggers=triggers)
    workflow.step(name="take", priority=11)(take_order)
    workflow.wait("settle", timedelta(0))
    workflow.route("take", to="setle")

    with pytest.raises(InvalidWorkflow) as refused:
        workflow.check()

    assert isinstance(refused.value, SquidError)
    assert {(problem.path, problem.code) for problem in refused.value.problems} >= {
        (("name",), Code.INVALID_WORKFLOW_NAME),
        (("version",), Code.INVALID_VERSION),
        (("triggers", 0, "expression"), Code.INVALID_CRON_EXPRESSION),
        (("triggers", 0, "timezone"), Code.INVALID_CRON_TIMEZONE),
        (("steps", "take", "priority"), Code.INVALID_PRIORITY),
        (("steps", "settle", "duration"), Code.INVALID_WAIT_DURATION),
        (("routes", 0, "to"), Code.UNKNOWN_ROUTE_TARGET),
        (("steps", "take", "parameters", "order_id"), Code.UNPROVIDED_PARAMETER),
    }
    message = str(refused.value)
    assert message.startswith("workflow 'or ders' has ")
    assert "steps.take.priority: must be a whole number from -10 to 10, not 11 [invalid_priority]" in message
    assert "there is no step 'setle': did you mean 'settle'?" in message


def test_an_empty_workflow_is_refused() -> None:
    assert problems_of(Workflow("orders")) == {("steps",): Code.MISSING_STEPS}


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_that_cannot_stand_in_keys_is_refused(name: Any) -> None:
    workflow = Workflow(name)
    workflow.step(ship)
    workflow.log(name, "hello")

    problems = problems_of(workflow)

    assert problems == {
        ("name",): Code.INVALID_WORKFLOW_NAME,
        ("steps", name if isinstance(name, str) else 1, "name"): Code.INVALID_STEP_NAME,
    }


@pytest.mark.parametrize("name", ["complete", "fail"])
def test_a_step_cannot_be_called_like_an_end(name: str) -> None:
    assert problems_of(with_step(name=name))["steps", name, "name"] == Code.RESERVED_STEP_NAME


def test_two_steps_of_one_name_are_refused() -> None:
    workflow = routed("a", "b")
    workflow.step(name="a")(ship)

    assert problems_of(workflow) == {("steps", "a", "name"): Code.DUPLICATE_STEP_NAME}


def test_a_lambda_needs_a_name() -> None:
    workflow = Workflow("orders")
    workflow.step(lambda: None)

    assert problems_of(workflow) == {("steps", "<lambda>", "name"): Code.INVALID_STEP_NAME}


def test_a_name_in_place_of_a_function_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"write step\(name='take'\)"):
        Workflow("orders").step("take")  # type: ignore[call-overload]  # that is the mistake


@pytest.mark.parametrize("version", ["", 5, "x" * 1001])
def test_a_version_is_a_text(version: Any) -> None:
    workflow = Workflow("orders", version=version)
    workflow.step(ship)

    assert problems_of(workflow) == {("version",): Code.INVALID_VERSION}


class Bare:
    pass


class Numbers(RootModel[list[int]]):
    pass


class Unwritable(BaseModel, arbitrary_types_allowed=True):
    thing: Bare


@pytest.mark.parametrize("payload", [dict, Bare, Numbers, Unwritable, Order(order_id="x")])
def test_a_payload_contract_is_a_model_with_fields_and_a_schema(payload: Any) -> None:
    workflow = Workflow("orders", payload=payload, triggers=Cron("@daily", payload={"order_id": "x"}))
    workflow.step(take_order)

    assert problems_of(workflow) == {("payload",): Code.INVALID_PAYLOAD_MODEL}


OPTIONS: list[tuple[dict[str, Any], Path, Code]] = [
    ({"retry": 5}, ("retry",), Code.INVALID_RETRY),
    ({"retry": Retry(max_attempts=0)}, ("retry", "max_attempts"), Code.INVALID_RETRY),
    ({"retry": Retry(max_attempts=True)}, ("retry", "max_attempts"), Code.INVALID_RETRY),
    ({"retry": Retry(max_attempts=2.0)}, ("retry", "max_attempts"), Code.INVALID_RETRY),  # type: ignore[arg-type]
    ({"retry": Retry(initial=timedelta(-1))}, ("retry", "initial"), Code.INVALID_RETRY),
    ({"retry": Retry(initial=5)}, ("retry", "initial"), Code.INVALID_RETRY),  # type: ignore[arg-type]
    ({"retry": Retry(initial=timedelta(1), maximum=timedelta(0))}, ("retry", "maximum"), Code.INVALID_RETRY),
    ({"retry": Retry(maximum=timedelta.max)}, ("retry", "maximum"), Code.INVALID_RETRY),
    ({"retry": Retry(factor=0.5)}, ("retry", "factor"), Code.INVALID_RETRY),
    ({"retry": Retry(factor=float("nan"))}, ("retry", "factor"), Code.INVALID_RETRY),
    ({"retry": Retry(factor=10**400)}, ("retry", "factor"), Code.INVALID_RETRY),
    ({"retry": Retry(jitter=1.5)}, ("retry", "jitter"), Code.INVALID_RETRY),
    ({"retry": Retry(jitter=-0.1)}, ("retry", "jitter"), Code.INVALID_RETRY),
    ({"priority": -11}, ("priority",), Code.INVALID_PRIORITY),
    ({"priority": "high"}, ("priority",), Code.INVALID_PRIORITY),
    ({"priority": True}, ("priority",), Code.INVALID_PRIORITY),
    ({"max_deliveries": 0}, ("max_deliveries",), Code.INVALID_MAX_DELIVERIES),
    ({"max_deliveries": None}, ("max_deliveries",), Code.INVALID_MAX_DELIVERIES),
    ({"max_visits": 0}, ("max_visits",), Code.INVALID_MAX_VISITS),
    ({"deadline": 5}, ("deadline",), Code.INVALID_DEADLINE),
    ({"deadline": timedelta(0)}, ("deadline", "within"), Code.INVALID_DEADLINE),
    ({"deadline": Deadline(timedelta(1), due_soon=timedelta(1))}, ("deadline", "due_soon"), Code.INVALID_DEADLINE),
    ({"deadline": Deadline(timedelta(1), due_soon=timedelta(0))}, ("deadline", "due_soon"), Code.INVALID_DEADLINE),
    (
        {"deadline": Deadline(timedelta(1), escalate_after=timedelta(-1))},
        ("deadline", "escalate_after"),
        Code.INVALID_DEADLINE,
    ),
    ({"irreversible": 1}, ("irreversible",), Code.INVALID_MARKER),
    ({"transactional": "yes"}, ("transactional",), Code.INVALID_MARKER),
    ({"isolate": None}, ("isolate",), Code.INVALID_MARKER),
    ({"irreversible": True, "compensate": ship}, ("compensate",), Code.CONFLICTING_COMPENSATION),
    ({"transactional": True, "isolate": True}, ("isolate",), Code.CONFLICTING_EXECUTION),
    ({"compensate": "undo"}, ("compensate",), Code.NOT_A_FUNCTION),
    ({"output": "two words"}, ("output",), Code.INVALID_OUTPUT),
    ({"output": "class"}, ("output",), Code.INVALID_OUTPUT),
    ({"output": ""}, ("output",), Code.INVALID_OUTPUT),
    ({"output": 5}, ("output",), Code.INVALID_OUTPUT),
]


@pytest.mark.parametrize(("options", "path", "code"), OPTIONS)
def test_a_bad_option_of_a_step_is_refused(options: dict[str, Any], path: Path, code: Code) -> None:
    assert problems_of(with_step(**options)) == {("steps", "ship", *path): code}


def test_a_step_whose_name_is_no_identifier_names_its_output() -> None:
    assert problems_of(with_step(name="ship-it")) == {("steps", "ship-it", "output"): Code.INVALID_OUTPUT}
    assert problems_of(with_step(name="ship-it", output="shipped")) == {}


def test_an_output_cannot_be_called_like_a_field_of_the_payload() -> None:
    workflow = Workflow("orders", payload=Order)
    workflow.step(output="amount")(take_order)

    assert problems_of(workflow) == {("steps", "take_order", "output"): Code.OUTPUT_HIDES_PAYLOAD}


def test_two_outputs_cannot_have_one_name() -> None:
    workflow = Workflow("orders")
    workflow.step(name="first")(ship)
    workflow.step(name="second", output="first")(ship)

    assert problems_of(workflow) == {("steps", "second", "output"): Code.DUPLICATE_OUTPUT}


@pytest.mark.parametrize("duration", [timedelta(0), timedelta(-1), timedelta.max, 5, None])
def test_a_wait_lasts_for_a_positive_time(duration: Any) -> None:
    workflow = Workflow("orders")
    workflow.wait("settle", duration)

    assert problems_of(workflow) == {("steps", "settle", "duration"): Code.INVALID_WAIT_DURATION}


def test_a_log_has_a_text_and_a_level() -> None:
    workflow = Workflow("orders")
    workflow.log("note", "", "loud")  # type: ignore[arg-type]  # that is the mistake

    assert problems_of(workflow) == {
        ("steps", "note", "message"): Code.INVALID_LOG_MESSAGE,
        ("steps", "note", "level"): Code.INVALID_LOG_LEVEL,
    }


def test_built_ins_take_no_way_of_execution() -> None:
    with pytest.raises(TypeError, match="transactional"):
        Workflow("orders").wait("settle", timedelta(1), transactional=True)  # type: ignore[call-arg]


class Called:
    def __call__(self) -> None: ...


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("function", [Called(), Order, len, generator])
def test_a_step_is_a_function(function: Any) -> None:
    workflow = Workflow("orders")
    workflow.step(name="step")(function)

    assert problems_of(workflow) == {("steps", "step"): Code.NOT_A_FUNCTION}


CRONS: list[tuple[Cron, str, Code]] = [
    (Cron("* * * *"), "expression", Code.INVALID_CRON_EXPRESSION),
    (Cron(None), "expression", Code.INVALID_CRON_EXPRESSION),  # type: ignore[arg-type]
    (Cron("@daily", timezone="Europe"), "timezone", Code.INVALID_CRON_TIMEZONE),
    (Cron("@daily", timezone=""), "timezone", Code.INVALID_CRON_TIMEZONE),
    (Cron("@daily", timezone="../etc/passwd"), "timezone", Code.INVALID_CRON_TIMEZONE),
    (Cron("@daily", timezone=None), "timezone", Code.INVALID_CRON_TIMEZONE),  # type: ignore[arg-type]
    (Cron("@daily", catch_up="some"), "catch_up", Code.INVALID_CRON_CATCH_UP),  # type: ignore[arg-type]
    (Cron("@daily", idempotency="maybe"), "idempotency", Code.INVALID_CRON_IDEMPOTENCY),  # type: ignore[arg-type]
    (Cron("@daily", name="a b"), "name", Code.INVALID_TRIGGER_NAME),
    (Cron("@daily", payload={"order_id": "x"}), "payload", Code.INVALID_CRON_PAYLOAD),
]


@pytest.mark.parametrize(("cron", "field", "code"), CRONS)
def test_a_bad_cron_trigger_is_refused(cron: Cron, field: str, code: Code) -> None:
    workflow = Workflow("orders", triggers=[cron])
    workflow.step(ship)

    assert problems_of(workflow) == {("triggers", 0, field): code}


def test_the_clock_must_be_able_to_fill_the_payload() -> None:
    workflow = Workflow("orders", payload=Order, triggers=Cron("@daily"))
    workflow.step(take_order)
    filled = Workflow("orders", payload=Order, triggers=Cron("@daily", payload={"order_id": "nightly"}))
    filled.step(take_order)

    assert problems_of(workflow) == {("triggers", 0, "payload"): Code.INVALID_CRON_PAYLOAD}
    assert "order_id: Field required" in message_of(workflow)
    assert problems_of(filled) == {}


def test_triggers_are_triggers_with_names_of_their_own() -> None:
    triggers: Any = [Manual(), Cron("@daily"), Cron("@hourly"), "nightly", None]
    workflow = Workflow("orders", triggers=triggers)
    workflow.step(ship)

    assert problems_of(workflow) == {
        ("triggers", 2, "name"): Code.DUPLICATE_TRIGGER_NAME,
        ("triggers", 3): Code.INVALID_TRIGGER,
        ("triggers", 4): Code.INVALID_TRIGGER,
    }
