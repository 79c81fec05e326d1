"""A step's input, made of a run's state, and the arguments of the call, made of the input.

The input is JSON and is journalled with the attempt; the arguments are what the function's annotations make of it.
Messages name the step, the parameter and the type of the value, never the value: it may be a secret.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.workflow.authoring.signature import Parameter, Source, Task
from squid_dagster.workflow.authoring.step_context import StepContext
from squid_dagster.workflow.definition import StepDefinition
from squid_dagster.workflow.errors import InvalidInput, MissingResource
from squid_dagster.workflow.values import explain_types


def bind(step: StepDefinition, values: Mapping[str, JsonValue]) -> JsonObject:
    """Return a step's input: what its parameters name, from outputs over payload. A built-in's input is empty.

    A parameter with a default is left out where nothing provides it.

    Raises:
        InvalidInput: a parameter without a default has nothing to take.
    """
    return {} if step.task is None else _gather(step.task, values)


def bind_compensation(step: StepDefinition, values: Mapping[str, JsonValue]) -> JsonObject:
    """Return the input of a step's compensation, as `bind` does; the step's own output must be among `values`.

    Raises:
        InvalidInput: the step declares no compensation, or a parameter without a default has nothing to take.
    """
    return _gather(_compensation(step), values)


def call_arguments(
    step: StepDefinition, values: Mapping[str, JsonValue], ctx: StepContext, resources: Mapping[str, object]
) -> dict[str, Any]:
    """Return the keyword arguments for a step's function: validated values, the context, and resources by their keys.

    `values` is the input that `bind` returned, as journalled; fields that the function does not take are ignored.

    Raises:
        InvalidInput: a value is missing, or does not fit its parameter's annotation.
        MissingResource: the worker was not given a resource that the step asks for.
    """
    return {} if step.task is None else _arguments(step.task, values, ctx, resources)


def compensation_arguments(
    step: StepDefinition, values: Mapping[str, JsonValue], ctx: StepContext, resources: Mapping[str, object]
) -> dict[str, Any]:
    """Return the keyword arguments for a step's compensation, as `call_arguments` does for the step."""
    return _arguments(_compensation(step), values, ctx, resources)


def _compensation(step: StepDefinition) -> Task:
    if step.compensation is None:
        raise InvalidInput(f"step {step.name!r} declares no compensation")
    return step.compensation


def _gather(task: Task, values: Mapping[str, JsonValue]) -> JsonObject:
    taken: JsonObject = {}
    for parameter in task.parameters:
        if parameter.source is not Source.STATE:
            continue
        if parameter.name in values:
            taken[parameter.name] = values[parameter.name]
        elif parameter.required:
            raise InvalidInput(
                f"{task.label} takes {parameter.name!r}, but the run has no such output or payload field; "
                f"it has {', '.join(sorted(values)) or 'none'}"
            )
    return taken


def _arguments(
    task: Task, values: Mapping[str, JsonValue], ctx: StepContext, resources: Mapping[str, object]
) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for parameter in task.parameters:
        name = parameter.name
        if parameter.source is Source.CONTEXT:
            arguments[name] = ctx
        elif parameter.source is Source.CONNECTION:
            continue  # passed by the executor that opens the transaction
        elif parameter.source is Source.RESOURCE:
            if parameter.resource is not None and parameter.resource in resources:
                arguments[name] = resources[parameter.resource]
            elif parameter.required:
                raise MissingResource(_missing_resource(task, parameter, resources))
        elif name in values:
            arguments[name] = _validated(task, parameter, values[name])
        elif parameter.required:
            raise InvalidInput(f"{task.label} takes {name!r}, but its input has only {', '.join(values) or 'nothing'}")
    return arguments


def _validated(task: Task, parameter: Parameter, value: JsonValue) -> Any:
    assert parameter.adapter is not None  # noqa: S101  every parameter from the state has one
    try:
        return parameter.adapter.validate_json(to_json(value))
    except ValidationError as error:
        reason = explain_types(error)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        reason = f"it is not JSON: {error}"
    raise InvalidInput(
        f"{task.label} cannot take {parameter.name!r} of JSON type {type(value).__name__}: {reason}"
    ) from None


def _missing_resource(task: Task, parameter: Parameter, resources: Mapping[str, object]) -> str:
    return (
        f"{task.label} asks for resource {parameter.resource!r} (parameter {parameter.name!r}), but the worker has "
        f"{', '.join(sorted(resources)) or 'none'}: pass resources={{{parameter.resource!r}: ...}}"
    )
