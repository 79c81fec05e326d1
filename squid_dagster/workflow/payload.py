"""The payload of a run: checked against the workflow's model once, when the run starts, and JSON ever after."""

from collections.abc import Mapping

from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from squid_dagster.protocol.errors import InvalidArgument, InvalidPayload
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.workflow.values import explain_types, json_copy

MAX_PAYLOAD_BYTES = 1024 * 1024


def is_payload_model(model: object) -> bool:
    """Tell whether this can be a payload's contract: a pydantic model with fields."""
    return isinstance(model, type) and issubclass(model, BaseModel) and not issubclass(model, RootModel)


def payload_fields(model: type[BaseModel] | None) -> frozenset[str]:
    """Give the names under which parameters and conditions find the fields of a payload."""
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
            raise InvalidPayload(f"workflow {workflow!r} takes no payload, but got {type(given).__name__}")
        return {}
    try:
        accepted = model.model_validate(given)
        dumped = json_copy(accepted.model_dump(mode="json", warnings="error"), "the payload")
        size = len(to_json(dumped))
    except ValidationError as error:
        raise InvalidPayload(f"payload of workflow {workflow!r}: {explain_types(error)}") from None
    except (PydanticSerializationError, InvalidArgument) as error:
        raise InvalidPayload(f"payload of workflow {workflow!r} cannot be written as JSON: {error}") from None
    assert isinstance(dumped, dict)  # noqa: S101  a model's fields are an object
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidPayload(
            f"payload of workflow {workflow!r} has {size:,} bytes, more than 1 MiB: store it and pass a reference"
        )
    return dumped
