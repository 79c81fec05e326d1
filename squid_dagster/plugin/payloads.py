"""An example of a workflow's payload, made from its model: for the launchpad to show, never to start a run with."""

import json
from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from squid_dagster.inspection.shown import shown

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
    """Give a payload of the right shape: a field's own example or default, else a value of its type. Redacted."""
    if model is None:
        return {}
    try:
        schema = model.model_json_schema()
    except PydanticInvalidForJsonSchema:  # a type that JSON Schema has no word for
        return {name: field.default for name, field in model.model_fields.items() if _plain(field.default)}
    made = shown(_example(schema, schema.get("$defs", {}), 0))
    return dict(made) if isinstance(made, dict) else {}


def _plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool)


def _example(schema: Any, known: dict[str, Any], depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    for key in ("examples", "enum"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
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
            fields = schema.get("properties", {})
            return {name: _example(each, known, depth + 1) for name, each in fields.items()}
    return None


def example_text(model: type[BaseModel] | None) -> str:
    """Give the example on one line, as JSON: that is YAML, too."""
    return json.dumps(example_payload(model), ensure_ascii=False, default=str)
