"""The fingerprint: one hash over everything that changes what a run does, and over nothing else.

In: steps with kind, output, what they and their compensations take from the state, waits, recovery markers, external
targets; edges and routes with conditions; the payload's contract. Out: function bodies, retries, priorities, caps,
deadlines, log texts, triggers, versions, and the order of declarations that are not ordered.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any, cast

from pydantic import BaseModel, JsonValue
from pydantic.json_schema import GenerateJsonSchema

from squid_dagster.workflow.authoring.draft import Outcome
from squid_dagster.workflow.definition import Mode, Route, StepDefinition
from squid_dagster.workflow.payload import ParameterPayload
from squid_dagster.workflow.values import canonical

FORMAT = 1  # raise it only with an alias for runs of the old format

_COMPENSATION_TAKES = "compensation_takes"

# Prose; and defaults, which a run's payload holds already.
_NO_CONTRACT = frozenset({"title", "description", "examples", "deprecated", "default"})
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "dependentSchemas"})
_WITHOUT_ORDER = frozenset({"required", "enum"})


def fingerprint(
    mode: Mode,
    steps: Mapping[str, StepDefinition],
    entry_steps: Sequence[str],
    routes: Mapping[tuple[str, Outcome], tuple[Route, ...]],
    payload: type[BaseModel] | None,
) -> str:
    """Return the SHA-256, in hex, of a definition's meaning. The same in every process."""
    return _digest(mode, {name: _step(step) for name, step in steps.items()}, entry_steps, routes, payload)


def former_fingerprints(
    mode: Mode,
    steps: Mapping[str, StepDefinition],
    entry_steps: Sequence[str],
    routes: Mapping[tuple[str, Outcome], tuple[Route, ...]],
    payload: type[BaseModel] | None,
) -> tuple[str, ...]:
    """Return what earlier releases computed for this definition: runs that they started go on with it.

    Two things were added: what compensations take, and payloads made of parameters. A parameter that nothing gave was
    left out before, if it had a default; without one, there was no such definition. All others have one fingerprint. A
    definition whose order of steps changed since has no former one: its open runs are held.
    """
    meanings = {name: _step(step) for name, step in steps.items()}
    former: list[str] = []
    if payload is not None and issubclass(payload, ParameterPayload):
        if any(field.is_required() for field in payload.model_fields.values()):
            return ()
        for meaning in meanings.values():
            for taking in {"takes", _COMPENSATION_TAKES} & meaning.keys():
                meaning[taking] = [name for name in meaning[taking] if name not in payload.model_fields]
        payload = None
        former.append(_digest(mode, meanings, entry_steps, routes, payload))
    if any(step.compensation is not None for step in steps.values()):
        for meaning in meanings.values():
            meaning.pop(_COMPENSATION_TAKES, None)
        former.append(_digest(mode, meanings, entry_steps, routes, payload))
    return tuple(former)


def _digest(
    mode: Mode,
    steps: Mapping[str, dict[str, Any]],
    entry_steps: Sequence[str],
    routes: Mapping[tuple[str, Outcome], tuple[Route, ...]],
    payload: type[BaseModel] | None,
) -> str:
    meaning: dict[str, Any] = {
        "format": FORMAT,
        "mode": mode.value,
        "entry_steps": sorted(entry_steps),
        "steps": dict(steps),
        "routes": {
            f"{source}:{outcome}": [_route(route) for route in group] for (source, outcome), group in routes.items()
        },
        "payload": None if payload is None else payload_contract(payload),
    }
    return sha256(canonical(meaning).encode()).hexdigest()


def _step(step: StepDefinition) -> dict[str, Any]:
    # Only where there is one: definitions without external steps keep their fingerprint.
    external = {} if step.external is None else {"external": step.external.meaning()}
    undoing = {} if step.compensation is None else {_COMPENSATION_TAKES: sorted(step.compensation.takes)}
    return (
        external
        | undoing
        | {
            "kind": step.kind.value,
            "output": step.output,
            "takes": [] if step.task is None else sorted(step.task.takes),
            "after": sorted(step.after),
            "irreversible": step.irreversible,
            "compensated": step.compensation is not None,
            "wait_us": None if step.duration is None else step.duration // timedelta(microseconds=1),
        }
    )


def _route(route: Route) -> dict[str, JsonValue]:
    return {
        "to": route.to,
        "when": None if route.when is None else route.when.to_json(),
        "recovery": route.recovery,
    }


class _QuietSchema(GenerateJsonSchema):
    """A generator that omits a default that JSON cannot hold without a warning."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  as the base class has it


def payload_contract(model: type[BaseModel]) -> JsonValue:
    """Return a model's JSON schema without prose, defaults, order, and the names of classes.

    What is optional is part of the contract; what it defaults to is not.

    Raises:
        Exception: whatever pydantic raises for a model that has no JSON schema.
    """
    schema = model.model_json_schema(mode="validation", schema_generator=_QuietSchema)
    return _Contract(cast("dict[str, Any]", schema.pop("$defs", {}))).of(schema)


class _Contract:
    """A walk through a schema in sorted order, in which shared parts are numbered as they are met."""

    def __init__(self, shared: dict[str, Any]) -> None:
        self._shared = shared
        self._numbers: dict[str, int] = {}

    def of(self, schema: dict[str, Any]) -> JsonValue:
        main = self._walk(schema)
        parts: list[JsonValue] = []
        while len(parts) < len(self._numbers):  # walking a part may number further ones
            parts.append(self._walk(self._shared.get(list(self._numbers)[len(parts)])))
        return {"schema": main, "shared": parts}

    def _walk(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        return {key: self._member(key, node[key]) for key in sorted(node) if key not in _NO_CONTRACT}

    def _member(self, key: str, value: Any) -> Any:
        if key == "$ref" and isinstance(value, str):
            return self._number(value)
        if key == "mapping" and isinstance(value, dict):  # of a discriminator
            return {tag: self._number(str(value[tag])) for tag in sorted(value)}
        if key in _NAMED_SCHEMAS and isinstance(value, dict):
            return {name: self._walk(value[name]) for name in sorted(value)}
        if key in _WITHOUT_ORDER and isinstance(value, list):
            return sorted(value, key=canonical)
        return value if key == "const" else self._walk(value)

    def _number(self, reference: str) -> int:
        return self._numbers.setdefault(reference.removeprefix("#/$defs/"), len(self._numbers))
