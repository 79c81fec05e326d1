"""Facts to stored columns and back. What every fact has (type, run, time) is a column; the rest is one JSON object.

Promises that a fact reads back as it was written, and that an unreadable one comes back as a value, never as an error.
"""

import json
import math
import re
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, cast

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from squid_dagster.protocol.entries import MalformedFact, StoredFact, UnknownFact
from squid_dagster.protocol.errors import InvalidFact, explain
from squid_dagster.protocol.facts import FACT_TYPES, RUN_FACT_TYPES, Fact
from squid_dagster.protocol.redaction import redact

DEFAULT_MAX_FACT_BYTES = 16 * 1024 * 1024  # results and payloads have a tighter limit of their own

_ENVELOPE = {"type", "run_id", "occurred_at"}
_QUEUE_ENVELOPE = {"type", "occurred_at"}
_OPTIONAL = {
    model: tuple(
        name for name, field in model.model_fields.items() if not field.is_required() and field.default is None
    )
    for model in FACT_TYPES.values()
}
_REDACTED = frozenset({"metadata", "error", "actor"})
_PAYLOAD_NAMES = ("input", "result", "payload", "context", "transition", "execution_opts", "child_input", "acceptance")
_PAYLOADS = {
    model: tuple(name for name in (*_PAYLOAD_NAMES, *_REDACTED) if name in model.model_fields)
    for model in FACT_TYPES.values()
}
_json = TypeAdapter(JsonValue, config=ConfigDict(strict=True, allow_inf_nan=False))
# An escaped NUL after an even number of backslashes is a real one, and Postgres cannot store it.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+\Z")
# Numbers that may not be finite; hex digits in quotes do not match.
_HUGE = re.compile(r"[:,\[\s-][0-9.]+[eE]\+?[0-9]{3}")
_LONG = re.compile(r"[0-9]{300}")
_DEEP = 100  # brackets; fewer than these are never nested too deep for a reader
_adapter: TypeAdapter[Fact] = TypeAdapter(Fact)


class EncodedFact(NamedTuple):
    """A fact as it is stored."""

    type: str
    run_id: str | None
    occurred_at: datetime
    data: str


def parse_fact(value: object) -> Fact:
    """Build a fact from a mapping with a `type`, or from its JSON text. Raises `InvalidFact`."""
    try:
        if isinstance(value, bytes):
            value = value.decode()
        if isinstance(value, str):
            _check_finite(value)
            return _adapter.validate_json(value)
        return _adapter.validate_python(value)
    except ValidationError as error:
        raise InvalidFact(explain(error)) from None
    except (ValueError, RecursionError) as error:
        raise InvalidFact(f"not the JSON of a fact: {error}") from None


def encode(fact: Fact, max_bytes: int = DEFAULT_MAX_FACT_BYTES) -> EncodedFact:
    """Return a fact's stored columns.

    Raises:
        InvalidFact: it is no fact, has a wrong shape (however it was built), or is larger than `max_bytes`.
    """
    if type(fact) not in _OPTIONAL:
        raise _no_fact(fact)
    try:
        _check_payload(fact)
        data = _data(fact)
        # Not only payloads: a number in any field has no limit, and a nested model has fields of its own.
        if _is_strange(data) or "\ufffd" in data or data.count("[") + data.count("{") > _DEEP:
            _check_readable(fact, data)
    except ValidationError as error:
        raise InvalidFact(f"{fact.type}: {explain(error)}") from None
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise InvalidFact(f"{fact.type} cannot be written as JSON: {error}") from None
    if "\\u0000" in data and _NUL.search(data):
        raise InvalidFact(f"{fact.type} holds a NUL character, which Postgres cannot store: remove it")
    size = len(data) if data.isascii() else len(data.encode())
    if size > max_bytes:
        raise InvalidFact(
            f"{fact.type} takes {size:,} bytes, more than the {max_bytes:,} allowed: "
            "store it elsewhere and record a reference"
        )
    return EncodedFact(fact.type, _run_id(fact), fact.occurred_at, data)


def is_plain(text: str, max_bytes: int) -> bool:
    """Return whether `encode` certainly accepts a fact that holds this JSON text a few times: most texts are plain."""
    return (
        not _is_strange(text)
        and "\ufffd" not in text
        and "\\u0000" not in text
        and 2 * (text.count("[") + text.count("{")) < _DEEP
        and 8 * len(text) + 10_000 < max_bytes
    )


def _run_id(fact: Fact) -> str | None:
    return fact.run_id if fact.type in RUN_FACT_TYPES else None  # type: ignore[union-attr]  # these types have one


def _data(fact: Fact) -> str:
    """Return a fact's own fields as JSON. Raises if a payload was changed since the fact was validated."""
    left_out = _ENVELOPE if fact.type in RUN_FACT_TYPES else _QUEUE_ENVELOPE
    empty = [name for name in _OPTIONAL[type(fact)] if getattr(fact, name) is None]
    return fact.model_dump_json(exclude={*left_out, *empty} if empty else left_out, warnings="error")


def _check_payload(fact: Fact) -> None:
    """Raise if a payload was changed after the fact was built: what is folded must be what is written."""
    for name in _PAYLOADS[type(fact)]:
        value = getattr(fact, name)
        if value:
            _json.validate_python(value)
            if name in _REDACTED and redact(value) != value:
                raise ValueError(f"{name} was given a secret after the fact was made")
    for runnable in fact.runnables if fact.type == "runnables_planned" else ():
        _json.validate_python(runnable.input)
        if runnable.external is not None:
            _json.validate_python(runnable.external)
    if fact.__pydantic_extra__:
        _json.validate_python(fact.__pydantic_extra__)


def _check_readable(fact: Fact, data: str) -> None:
    """Raise unless the JSON reads back the same: a number may be too large, nesting too deep, a character invalid."""
    _check_finite(data)
    if type(fact).model_validate_json(_full_json(_run_id(fact), fact.occurred_at, data)) != fact:
        raise ValueError("it does not read the same afterwards: check its values")


def decode(thread: str, type_name: str, run_id: str | None, occurred_at: datetime, data: str) -> StoredFact:
    """Read a stored fact. Never raises: what cannot be read comes back as `MalformedFact` or `UnknownFact`."""
    model = FACT_TYPES.get(type_name)
    try:
        if model is None:
            values = _loads(data)
            if not isinstance(values, dict):
                raise ValueError("not a JSON object")
            return UnknownFact(type_name, run_id, occurred_at, values)
        fact = cast("Fact", model.model_validate_json(_full_json(run_id, occurred_at, data)))
        if not _is_finite(fact):
            _loads(data)  # raises with the number
            raise ValueError("a number in it is not finite")
    except ValidationError as error:
        return MalformedFact(type_name, run_id, occurred_at, explain(error), data)
    except (ValueError, RecursionError) as error:
        return MalformedFact(type_name, run_id, occurred_at, str(error), data)
    if fact.thread != thread:
        return MalformedFact(type_name, run_id, occurred_at, f"belongs on thread {fact.thread!r}", data)
    return fact


class StoredColumns(NamedTuple):
    """The arguments of `decode`, as storage has them."""

    thread: str
    type: str
    run_id: str | None
    occurred_at: datetime
    data: str


def decode_many(stored: Iterable[StoredColumns]) -> list[StoredFact]:
    """Read stored facts as `decode` does, those of one type in one call: calling the validator costs most.

    The data of each must be JSON, as that of a json column is.
    """
    rows = list(stored)
    by_type: dict[str, list[int]] = {}
    for i, columns in enumerate(rows):
        by_type.setdefault(columns.type, []).append(i)
    decoded: dict[int, StoredFact] = {}
    for type_name, places in by_type.items():
        facts = _decode_list(type_name, [rows[i] for i in places]) if len(places) > 1 else None
        decoded.update(zip(places, facts or [decode(*rows[i]) for i in places], strict=True))
    return [decoded[i] for i in range(len(rows))]


def _decode_list(type_name: str, rows: list[StoredColumns]) -> list[StoredFact] | None:
    """Read facts of one type at once; None if one of them is invalid: then each is read alone."""
    if type_name not in FACT_TYPES:
        return None
    try:
        text = ",".join([_full_json(run_id, occurred_at, data) for _, _, run_id, occurred_at, data in rows])
        facts = _list_of(type_name).validate_json(f"[{text}]")
    except (ValueError, RecursionError):
        return None
    valid = len(facts) == len(rows) and all(
        fact.thread == row.thread and _is_finite(fact) for fact, row in zip(facts, rows, strict=True)
    )
    return cast("list[StoredFact]", facts) if valid else None


@cache
def _list_of(type_name: str) -> TypeAdapter[list[Fact]]:
    return TypeAdapter(list[FACT_TYPES[type_name]])  # type: ignore[valid-type]  # looked up by name


def to_json(fact: Fact | UnknownFact) -> str:
    """Return a fact as one JSON object, for export, as `parse_fact` reads it. Raises `InvalidFact` for other values."""
    if isinstance(fact, UnknownFact):
        head = {"type": fact.type, "run_id": fact.run_id, "occurred_at": fact.occurred_at.isoformat()}
        return json.dumps({**head, **fact.data})
    if type(fact) not in _OPTIONAL:
        raise _no_fact(fact)
    return fact.model_dump_json()


def _no_fact(value: object) -> InvalidFact:
    name = type(value).__name__
    return InvalidFact(f"{name} is not a fact: build one from squid_dagster.protocol, or with parse_fact()")


def _full_json(run_id: str | None, occurred_at: datetime, data: str) -> str:
    """Add the columns to the JSON object, last, so that they override a field of the same name."""
    body = data.strip()
    if body[:1] != "{" or body[-1:] != "}":
        raise ValueError("not a JSON object")
    quoted = f'"{run_id}"' if run_id is not None and _PLAIN.match(run_id) else json.dumps(run_id)
    run = "" if run_id is None else f',"run_id":{quoted}'
    comma = "" if body[1:-1].isspace() or body == "{}" else ","
    return f'{body[:-1]}{comma}"occurred_at":"{occurred_at.isoformat()}"{run}}}'


def _is_finite(fact: Fact) -> bool:
    """Return whether all numbers in a fact's payloads are finite: JSON text can hold others, JSON values cannot."""
    for name in _PAYLOADS[type(fact)]:
        value = getattr(fact, name)
        if value and not _finite_within(value):
            return False
    for runnable in fact.runnables if fact.type == "runnables_planned" else ():
        payloads = (runnable.input, runnable.recovery, runnable.deadline, runnable.external)
        if not all(map(_finite_within, (*payloads, runnable.__pydantic_extra__))):
            return False
    if fact.type == "child_run_started" and not _finite_within(fact.origin.__pydantic_extra__):
        return False
    return not fact.__pydantic_extra__ or _finite_within(fact.__pydantic_extra__)


def _finite_within(value: JsonValue) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite_within, value.values()))
    return not isinstance(value, list) or all(map(_finite_within, value))


def _is_strange(text: str) -> bool:
    return "NaN" in text or "Infinity" in text or (len(text) > 300 and _LONG.search(text) is not None)


def _check_finite(text: str) -> None:
    """Raise `ValueError` for a number that is not finite; most texts are only searched, not parsed."""
    if _is_strange(text) or _HUGE.search(text):
        _loads(text)


def _loads(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse_number, parse_float=_finite)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_number(text)


def _refuse_number(text: str) -> float:
    raise ValueError(f"{text[:40]} is not a finite number")
