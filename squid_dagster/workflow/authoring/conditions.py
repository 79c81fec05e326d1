"""Conditions of routes: `path("gateway.status_code") > 399`. Data, not code, so that they can be stored and compared.

A path walks through the run's state: payload fields and outputs by name, then keys of objects and indexes of lists.
A path that is not there makes every condition false, `!=` too. Equality is that of JSON: 1 and 1.0 are equal, 1 and
true are not. Order is defined between two numbers and between two texts; anything else is false.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import ge, gt, le, lt
from typing import Any, NoReturn

from pydantic import JsonValue

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow.values import canonical, is_number, json_copy, shown


class Operator(StrEnum):
    """The comparisons that a condition can make with the value at its path."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    EXISTS = "exists"


_ORDER: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.LESS: lt,
    Operator.LESS_OR_EQUAL: le,
    Operator.GREATER: gt,
    Operator.GREATER_OR_EQUAL: ge,
}
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison with the run's state. Made by comparing a `path(...)`; never true or false by itself."""

    segments: tuple[str, ...]
    operator: Operator
    value: JsonValue = None

    def holds(self, state: Mapping[str, JsonValue]) -> bool:
        """Return whether the condition is true of this state. Never raises."""
        actual = _walk(state, self.segments)
        if actual is _MISSING:
            return False
        match self.operator:
            case Operator.EXISTS:
                return True
            case Operator.EQUAL:
                return _same(actual, self.value)
            case Operator.NOT_EQUAL:
                return not _same(actual, self.value)
            case order:
                return _comparable(actual, self.value) and _ORDER[order](actual, self.value)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the condition as JSON: path, operator and, except for `exists`, value."""
        value: dict[str, JsonValue] = {} if self.operator is Operator.EXISTS else {"value": self.value}
        return {"path": list(self.segments), "operator": self.operator.value, **value}

    def met(self) -> "Condition":
        """Return this condition as one that holds in every state."""
        return _MetCondition(self.segments, self.operator, self.value)

    def canonical(self) -> str:
        """Return the text that two conditions share exactly when they mean the same."""
        return canonical(self.to_json())

    def __str__(self) -> str:
        """Format the condition as its author wrote it."""
        place = ".".join(self.segments)
        return f"{place} exists" if self.operator is Operator.EXISTS else f"{place} {self.operator} {self.value!r}"

    def __bool__(self) -> NoReturn:
        """Refuse: the state is not known when a workflow is declared."""
        raise TypeError(
            f"the condition ({self}) is neither true nor false before a run reaches it: hand it to route(..., when=), "
            "and instead of 'and', 'or', 'not' or a chained comparison declare one route for each case"
        )


@dataclass(frozen=True, slots=True)
class _MetCondition(Condition):
    def holds(self, state: Mapping[str, JsonValue]) -> bool:
        return True


class StatePath:
    """A path into the run's state. Comparing it makes a `Condition`."""

    __slots__ = ("segments",)

    def __init__(self, segments: tuple[str, ...]) -> None:
        """Set the segments."""
        self.segments = segments

    def __eq__(self, value: object) -> Condition:  # type: ignore[override]  # a condition, as in query builders
        """Build the condition that the value equals this one."""
        return Condition(self.segments, Operator.EQUAL, json_copy(value, f"the value compared with {self}"))

    def __ne__(self, value: object) -> Condition:  # type: ignore[override]
        """Build the condition that there is a value that differs from this one."""
        return Condition(self.segments, Operator.NOT_EQUAL, json_copy(value, f"the value compared with {self}"))

    def __lt__(self, value: float | str) -> Condition:
        """Build the condition that the value is less than this one."""
        return self._ordered(Operator.LESS, value)

    def __le__(self, value: float | str) -> Condition:
        """Build the condition that the value is less than this one, or equal."""
        return self._ordered(Operator.LESS_OR_EQUAL, value)

    def __gt__(self, value: float | str) -> Condition:
        """Build the condition that the value is greater than this one."""
        return self._ordered(Operator.GREATER, value)

    def __ge__(self, value: float | str) -> Condition:
        """Build the condition that the value is greater than this one, or equal."""
        return self._ordered(Operator.GREATER_OR_EQUAL, value)

    __hash__ = None  # type: ignore[assignment]  # `==` makes a condition: there is no equality to hash by

    def exists(self) -> Condition:
        """Build the condition that there is anything at this place; null counts as something."""
        return Condition(self.segments, Operator.EXISTS)

    def __bool__(self) -> NoReturn:
        """Refuse: only a condition can be true or false, and only in a run."""
        raise TypeError(f"{self} is a place in a run's state, not a value: compare it, or ask {self}.exists()")

    def __repr__(self) -> str:
        """Format the path as its author wrote it."""
        return f"path({'.'.join(self.segments)!r})"

    def _ordered(self, operator: Operator, value: float | str) -> Condition:
        if not isinstance(value, str) and not is_number(value):
            raise InvalidArgument(f"{self} {operator} {shown(value)}: only numbers and texts have an order")
        return Condition(self.segments, operator, json_copy(value, f"the value compared with {self}"))


def path(place: str) -> StatePath:
    """Name a place in a run's state, such as `path("invoice.lines.0.amount")`, to be compared.

    Raises:
        InvalidArgument: the place is no text, or a segment of it is empty.
    """
    if not isinstance(place, str) or not all(place.split(".")):
        raise InvalidArgument(f"{shown(place)} is not a path: use names divided by dots, such as 'invoice.total'")
    return StatePath(tuple(place.split(".")))


def _walk(state: Mapping[str, JsonValue], segments: tuple[str, ...]) -> Any:
    value: Any = state
    for segment in segments:
        if isinstance(value, Mapping) and segment in value:
            value = value[segment]
        elif isinstance(value, list) and _is_index(segment) and int(segment) < len(value):
            value = value[int(segment)]
        else:
            return _MISSING
    return value


def _is_index(segment: str) -> bool:
    return segment.isascii() and segment.isdigit() and len(segment) <= 9


def _comparable(left: object, right: object) -> bool:
    return (is_number(left) and is_number(right)) or (isinstance(left, str) and isinstance(right, str))


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(_same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)
