"""Checks that every parameter has something to take, and the payload of a workflow that declares none.

A parameter takes an output that is certain to be there, or a field of the payload. Without a declared model, the
payload's fields are the names that no output has.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import AfterValidator, BaseModel, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from squid_dagster.protocol.argument_checks import text_problem
from squid_dagster.workflow.authoring.signature import Parameter, Source, Task
from squid_dagster.workflow.checks.references import did_you_mean
from squid_dagster.workflow.errors import Code, Path, Problems
from squid_dagster.workflow.payload import ParameterPayload, function_default
from squid_dagster.workflow.values import explain_types, shown


class StepTask(NamedTuple):
    """A function that a worker calls, and the path under which its problems are recorded."""

    task: Task
    path: Path


def check_parameters(
    step_task: StepTask,
    certain: frozenset[str],
    outputs: Mapping[str, str],
    fields: frozenset[str] | None,
    problems: Problems,
) -> None:
    """Record each parameter without a default that may have nothing to take when the function is called.

    `fields` are those of the payload; None where each name that is no output is one.
    """
    task = step_task.task
    for parameter in task.parameters:
        name = parameter.name
        if parameter.source is not Source.STATE or not parameter.required or name in certain:
            continue
        place = (*step_task.path, "parameters", name)
        if name in outputs and name not in (fields or ()):
            message = (
                f"{task.label} takes the output of step {outputs[name]!r}, which may not be there: a run can come here "
                "without it. Give the parameter a default, or let that step always come first"
            )
            problems.add(place, Code.UNCERTAIN_PARAMETER, message)
        elif fields is not None and name not in fields:
            known = dict.fromkeys(sorted({*fields, *certain, *outputs}))
            message = f"{task.label} takes {name!r}, but no payload field and no output is called so"
            problems.add(place, Code.UNPROVIDED_PARAMETER, message + did_you_mean(name, known))


class _Use(NamedTuple):
    """A parameter that takes a field of the payload."""

    label: str
    place: Path
    parameter: Parameter
    schema: dict[str, Any]


def payload_of_parameters(
    tasks: Iterable[StepTask], outputs: Mapping[str, str], problems: Problems
) -> type[BaseModel] | None:
    """Return a model of what the functions take that is no output; None if they take nothing else.

    A parameter with a default that cannot be a field is left out: it has its default, whatever a run is started with.
    """
    uses: dict[str, list[_Use]] = {}
    for task, path in tasks:
        for parameter in task.parameters:
            if parameter.source is Source.STATE and parameter.name not in outputs:
                use = _read_use(task.label, (*path, "parameters", parameter.name), parameter, problems)
                if use is not None:
                    uses.setdefault(parameter.name, []).append(use)
    fields: dict[str, Any] = {name: _field(same_name, problems) for name, same_name in uses.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a field called like a method of models that is not called
        return create_model("Payload", __base__=ParameterPayload, **fields) if fields else None


def _read_use(label: str, place: Path, parameter: Parameter, problems: Problems) -> _Use | None:
    name = parameter.name
    assert parameter.adapter is not None  # noqa: S101  every parameter from the state has one
    extras = get_args(parameter.annotation)[1:] if get_origin(parameter.annotation) is Annotated else ()
    if name.startswith("_") or (name.startswith("model_") and hasattr(BaseModel, name)) or text_problem(name):
        message = f"{name!r} cannot be the name of a payload field: give the parameter another one"
        code = Code.UNSUPPORTED_PARAMETER
    elif isinstance(parameter.default, FieldInfo):
        message = f"has a Field as its default: write '{name}: Annotated[int, Field(gt=0)] = 5'"
        problems.add(place, Code.UNSUPPORTED_PARAMETER, message)
        return None
    elif any(isinstance(extra, FieldInfo) and (extra.exclude or extra.validation_alias) for extra in extras):
        message = f"{name!r} has a Field with exclude or an alias: a payload has its value, by the parameter's name"
        code = Code.UNSUPPORTED_ANNOTATION
    else:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a default in an annotation that JSON cannot hold
                schema = parameter.adapter.json_schema()
            if not schema.get("writeOnly"):
                return _Use(label, place, parameter, schema)
            message = f"{name!r} is a secret, which a payload cannot keep: take it from a Resource"
            code = Code.UNSUPPORTED_ANNOTATION
        except Exception as error:  # noqa: BLE001  a type's own hooks run here and may raise anything
            reason = str(error).partition("\n")[0]
            message = (
                f"values of type {shown(parameter.annotation)} have no JSON schema ({reason}): use a type with one"
            )
            code = Code.UNSUPPORTED_ANNOTATION
    if parameter.required:
        problems.add(place, code, message)
    return None


def _field(uses: list[_Use], problems: Problems) -> tuple[Any, Any]:
    """Return annotation and default of a field that these parameters take; each of them must accept a value."""
    first, *others = uses
    required = any(use.parameter.required for use in uses)
    for use in others if required else ():  # else each has its own default, and no value need be given
        types = first.schema.get("type"), use.schema.get("type")
        if None not in types and len({"number" if name == "integer" else name for name in types}) > 1:
            message = (
                f"{use.label} takes {use.parameter.name!r} as {types[1]}, {first.label} as {types[0]}: "
                "give both parameters one type, or one of them another name"
            )
            problems.add(use.place, Code.CONFLICTING_PARAMETER, message)
    annotation = first.parameter.annotation
    readers = [first, *(use for use in others if use.parameter.annotation != annotation)]
    default = ... if required else _default([use.parameter for use in uses])
    return Annotated[annotation, AfterValidator(_accepted_by(readers))], default


def _accepted_by(readers: list[_Use]) -> Callable[[Any], Any]:
    """Return a validator that reads a value as every parameter will, from the JSON that is journalled."""

    def check(value: Any) -> Any:
        dump = readers[0].parameter.adapter.dump_json  # type: ignore[union-attr]  # read from the state
        text = dump(value, by_alias=True, round_trip=True)
        for use in readers:
            try:
                use.parameter.adapter.validate_json(text)  # type: ignore[union-attr]
            except ValidationError as error:
                raise ValueError(f"{use.label} cannot take it: {explain_types(error)}") from None
        return value

    return check


def _default(parameters: list[Parameter]) -> Any:
    """Return the default that all parameters have and that is the same once it was JSON; else the mark for none."""
    try:
        text = parameters[0].adapter.dump_json(parameters[0].default, warnings=False, by_alias=True)  # type: ignore[union-attr]
        values = [parameter.adapter.validate_json(text) for parameter in parameters]  # type: ignore[union-attr]
        if all(bool(parameter.default == value) for parameter, value in zip(parameters, values, strict=True)):
            return values[0]
    except Exception:  # noqa: BLE001, S110  a default is any object of the author's, and may raise anything
        pass
    return Field(default_factory=function_default)
