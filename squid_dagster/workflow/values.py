"""Small rules about values that several modules of this room share: JSON, whole numbers, lengths of time."""

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
    """Give an independent copy of a JSON value; raise `InvalidArgument` naming `what` if JSON cannot hold it."""
    try:
        return _json.validate_python(value)
    except ValidationError as error:
        raise InvalidArgument(f"{what} must be a JSON value: {explain(error)}") from None
    except RecursionError:
        raise InvalidArgument(f"{what} must be a JSON value: it is nested too deeply") from None


def canonical(value: JsonValue) -> str:
    """Spell a JSON value in the one way that equal values share: sorted keys, no spaces, 1.0 as 1."""
    return json.dumps(_normal(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _normal(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_normal(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_whole(value: object) -> TypeGuard[int]:
    """Tell whether this is a whole number; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Tell whether this is a number; a bool is none, and neither is NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def is_one_of(value: object, allowed: tuple[str, ...]) -> bool:
    """Tell whether this is one of these texts, whatever was given."""
    return isinstance(value, str) and value in allowed


def is_duration(value: object, *, at_least: timedelta = timedelta(microseconds=1)) -> TypeGuard[timedelta]:
    """Tell whether this is a `timedelta` that a plan can add to the present; by default it must be positive."""
    return isinstance(value, timedelta) and at_least <= value <= MAX_DURATION


def shown(value: object) -> str:
    """Return how a value reads in a message, as `errors.shown`, a little longer."""
    return errors.shown(value, 80)


def explain_types(error: ValidationError) -> str:
    """Say in one line what pydantic found: paths, reasons and the types of values, but no values."""
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'value'}: {problem['msg']}"
        + ("" if problem["type"] == "missing" else f" (got {type(problem['input']).__name__})")
        for problem in error.errors(include_url=False, include_context=False)
    )
