"""Payloads in the launchpad: an example made from a workflow's model, and references to values in the environment."""

import json
import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from squid_dagster.inspection.display import shown
from squid_dagster.protocol.errors import InvalidArgument, NotFound
from squid_dagster.redaction import MIN_VALUE_LENGTH, VALUE_PREFIX

REFERENCE = "$env"

_DEEPEST = 6
_TEXTS = {
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "time": "12:00:00",
    "duration": "PT1H",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "email": "ada@example.com",
    "uri": "https://example.com",
}


def example_payload(model: type[BaseModel] | None) -> dict[str, Any]:
    """Return an example payload: a field's own example or default, else a value of its type. Redacted."""
    if model is None:
        return {}
    try:
        schema = model.model_json_schema()
    except PydanticInvalidForJsonSchema:  # a type without a JSON schema
        return {name: field.default for name, field in model.model_fields.items() if _plain(field.default)}
    example = shown(_example(schema, schema.get("$defs", {}), 0))
    return dict(example) if isinstance(example, dict) else {}


def _plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool)


def _example(schema: Any, known: dict[str, Any], depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    if isinstance(schema.get("examples"), list) and schema["examples"]:
        return schema["examples"][0]
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    if "$ref" in schema:
        return _example(known.get(schema["$ref"].rpartition("/")[2]), known, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _example(schema[key][0], known, depth + 1)
    return _of_type(schema, known, depth)


def _of_type(schema: dict[str, Any], known: dict[str, Any], depth: int) -> Any:
    match schema.get("type"):
        case "string":
            return _TEXTS.get(schema.get("format", ""), "text")
        case "integer" | "number":
            return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return False
        case "array":
            return [_example(schema["items"], known, depth + 1)] if "items" in schema else []
        case "object":
            required, fields = schema.get("required", ()), schema.get("properties", {})
            return {
                name: _example(field, known, depth + 1)
                for name, field in fields.items()
                if name in required or "default" in field or "examples" in field
            }
    return None


def example_text(model: type[BaseModel] | None) -> str:
    """Return the example on one line, as JSON, which is YAML too."""
    return json.dumps(example_payload(model), ensure_ascii=False, default=str)


def with_values(payload: dict[str, Any], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the payload with the value of `SQUID_PAYLOAD_NAME` in place of every `{"$env": "NAME"}` in it.

    Dagster stores what is typed into the launchpad; the value is read here, in the code location, and is written to the
    journal only. Only variables of that prefix can be named: a user who may launch a job may not read all others.

    Raises:
        NotFound: there is no such variable.
        InvalidArgument: a reference that names none, or a value too short to be hidden where the run is shown.
    """
    return {name: _with_values(value, environ) for name, value in payload.items()}


def _with_values(value: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_with_values(item, environ) for item in value]
    if not isinstance(value, dict):
        return value
    return _value(value[REFERENCE], environ) if value.keys() == {REFERENCE} else with_values(value, environ)


def _value(name: Any, environ: Mapping[str, str]) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f'{{"{REFERENCE}": ...}} in a payload takes the name of a variable, not {name!r:.80}')
    variable = VALUE_PREFIX + name.removeprefix(VALUE_PREFIX)
    if variable not in environ:
        raise NotFound(f"the payload names {name!r}, but the code location has no variable {variable}: set it there")
    if len(environ[variable]) < MIN_VALUE_LENGTH:
        raise InvalidArgument(
            f"{variable} holds fewer than {MIN_VALUE_LENGTH} characters, too few to be hidden where the run is shown"
        )
    return environ[variable]
