"""The request for an external step: made of its journalled input, for a launcher. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.workflow.authoring.step_context import StepContext
from squid_dagster.workflow.definition import StepDefinition
from squid_dagster.workflow.errors import InvalidInput
from squid_dagster.workflow.external_step import External
from squid_dagster.workflow.planner.binding import call_arguments


@dataclass(frozen=True, slots=True)
class ExternalRequest:
    """The job or assets that a launcher requests, with config and partition."""

    external: External
    run_config: JsonObject
    partition_key: str | None


def request_of(step: StepDefinition, attempt: Attempt) -> ExternalRequest:
    """Build the request of an external attempt from its journalled input. Calls the author's function, if there is one.

    Raises:
        InvalidInput: the input does not fit the function's annotations, or what it returns is no JSON object.
        Exception: whatever the function raises.
    """
    external, task = step.external, step.task
    assert external is not None  # noqa: S101  asked for by the caller
    assert task is not None  # noqa: S101  every external step has one
    config: Any = external.run_config
    if callable(config):
        context = StepContext(
            run_id=attempt.run_id,
            workflow=attempt.workflow or "",
            step=attempt.step,
            runnable_key=attempt.runnable_key,
            idempotency_key=attempt.idempotency_key,
            attempt=attempt.attempt_number,
        )
        arguments = call_arguments(step, attempt.input or {}, context, {})
        if external.partition_key_from not in _parameters(config):
            arguments.pop(external.partition_key_from or "", None)
        config = config(**arguments)
    try:
        run_config = from_json(to_json({} if config is None else config), allow_inf_nan=False)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the run config of {task.label} is not JSON: {error}") from None
    if not isinstance(run_config, dict):
        raise InvalidInput(f"the run config of {task.label} must be a mapping, not a {type(config).__name__}")
    key = None if external.partition_key_from is None else str((attempt.input or {})[external.partition_key_from])
    return ExternalRequest(external, run_config, key)


def _parameters(function: Any) -> Collection[str]:
    code = function.__code__
    names: tuple[str, ...] = code.co_varnames
    return names[: code.co_argcount + code.co_kwonlyargcount]
