"""Checks of values that several modules share: JSON, whole numbers, durations."""

import json
from datetime import timedelta
from typing import TypeGuard

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from squid_dagster.protocol import errors
from squid_dagster.protocol.errors import InvalidArgument, explain

# Times that a plan adds to the present must stay dates; no workflow waits for a century.
MAX_DURATION = timedelta(days=36_500)

_json = TypeAdapter[JsonValue](JsonValue, config=ConfigDict(strict=True, allow_inf_nan=False))


def json_copy(value: object, what: str) -> JsonValue:
    """Return a copy of a JSON value. Raises `InvalidArgument` that names `what` if JSON cannot hold it."""
    try:
        return _json.validate_python(value)
    except ValidationError as error:
        raise InvalidArgument(f"{what} must be a JSON value: {explain(error)}") from None
    except RecursionError:
        raise InvalidArgument(f"{what} must be a JSON value: it is nested too deeply") from None


def canonical(value: JsonValue) -> str:
    """Format a JSON value so that equal values have one text: sorted keys, no spaces, 1.0 as 1."""
    return json.dumps(_normal(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _normal(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_normal(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether this is a whole number; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether this is a number; a bool is none, and neither is NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def is_one_of(value: object, allowed: tuple[str, ...]) -> bool:
    """Return whether this is one of these texts, whatever was given."""
    return isinstance(value, str) and value in allowed


def is_duration(value: object, *, at_least: timedelta = timedelta(microseconds=1)) -> TypeGuard[timedelta]:
    """Return whether this is a `timedelta` that a plan can add to the present; by default it must be positive."""
    return isinstance(value, timedelta) and at_least <= value <= MAX_DURATION


def shown(value: object) -> str:
    """Return a value as messages show it: as `errors.shown`, up to 80 characters."""
    return errors.shown(value, 80)


def explain_types(error: ValidationError) -> str:
    """Format pydantic's errors as one line: paths, reasons and the types of values, but no values."""
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'value'}: {problem['msg']}"
        + ("" if problem["type"] == "missing" else f" (got {type(problem['input']).__name__})")
        for problem in error.errors(include_url=False, include_context=False)
    )
