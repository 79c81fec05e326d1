"""The payload: a pydantic model that the author declared, or one made of what the steps' parameters name.

A payload is validated once, when its run starts, and is JSON from then on.
"""

from collections.abc import Mapping
from inspect import formatannotation

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from squid_dagster.protocol.errors import InvalidArgument, InvalidPayload
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.workflow.values import explain_types, json_copy

MAX_PAYLOAD_BYTES = 1024 * 1024
_MOST_NAMED = 20  # fields that a message lists


class ParameterPayload(BaseModel):
    """Base of the models that are made of parameters: one field for each name that steps take, and no other."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


def function_default() -> None:
    """Return nothing: marks an optional field that is left out of a payload, so that functions use their defaults."""


def is_payload_model(model: object) -> bool:
    """Return whether this can be a payload's contract: a pydantic model with fields."""
    return isinstance(model, type) and issubclass(model, BaseModel) and not issubclass(model, RootModel)


def payload_fields(model: type[BaseModel] | None) -> frozenset[str]:
    """Return the names under which parameters and conditions find the fields of a payload."""
    if model is None:
        return frozenset()
    return frozenset(name for name, field in model.model_fields.items() if not field.exclude)


def accept_payload(
    workflow: str, model: type[BaseModel] | None, values: Mapping[str, object] | BaseModel | None
) -> JsonObject:
    """Check a payload against a model, as `Definition.accept_payload` says."""
    given = {} if values is None else values
    if model is None:
        if not isinstance(given, Mapping) or len(given) > 0:
            keys = ", ".join(repr(key) for key in list(given)[:_MOST_NAMED]) if isinstance(given, Mapping) else ""
            remedy = f" with {keys}: name it as a parameter of a step, or declare payload=" if keys else ""
            raise InvalidPayload(f"workflow {workflow!r} takes no payload, but got {type(given).__name__}{remedy}")
        return {}
    try:
        accepted = model.model_validate(given)
        omitted = {
            name
            for name, field in model.model_fields.items()
            if field.default_factory is function_default and name not in accepted.model_fields_set
        }
        # As the steps will read it: a payload made of parameters is validated again by each of them.
        as_read = issubclass(model, ParameterPayload)
        values_json = accepted.model_dump(
            mode="json", warnings="error", exclude=omitted, by_alias=as_read, round_trip=as_read
        )
        dumped = json_copy(values_json, "the payload")
        size = len(to_json(dumped))
    except ValidationError as error:
        raise InvalidPayload(f"payload of workflow {workflow!r}: {explain_types(error)}{_remedy(model)}") from None
    except (PydanticSerializationError, InvalidArgument) as error:
        raise InvalidPayload(f"payload of workflow {workflow!r} cannot be written as JSON: {error}") from None
    assert isinstance(dumped, dict)  # noqa: S101  a model's fields are an object
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidPayload(
            f"payload of workflow {workflow!r} has {size:,} bytes, more than 1 MiB: store it and pass a reference"
        )
    return dumped


def _remedy(model: type[BaseModel]) -> str:
    """Return what the steps take, for a model that is made of parameters; a declared model can be looked up."""
    if not issubclass(model, ParameterPayload):
        return ""
    fields = [
        f"{name}: {formatannotation(field.annotation)}{'' if field.is_required() else ' (optional)'}"
        for name, field in model.model_fields.items()
    ]
    listed = ", ".join([*fields[:_MOST_NAMED], *(["..."] if len(fields) > _MOST_NAMED else [])])
    return f". The steps take {listed}: give these; other keys need payload= a model"
