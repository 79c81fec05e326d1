"""Wrong values of every kind. A call must accept them, or refuse them by an error of ours and write nothing."""

import enum
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin, get_type_hints
from uuid import UUID

from squid_dagster.protocol.errors import SquidError

Kwargs = dict[str, Any]


class Hostile:
    """An object whose own code raises, whatever is asked of it."""

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError("hostile")

    __str__ = __repr__ = __eq__ = __hash__ = __bool__ = _refuse
    __lt__ = __gt__ = __le__ = __ge__ = __int__ = __float__ = __index__ = __format__ = _refuse


class Named(str):
    """A text of a class of its own."""


class Colour(enum.Enum):
    """An enumeration that is no text."""

    RED = "red"


def _deep() -> Any:
    value: Any = 1
    for _ in range(20_000):
        value = [value]
    return {"a": value}


# Made once: they are large, and nothing changes them.
DEEP, MUCH, HUGE = _deep(), {"a": "x" * 1_200_000}, "x" * 200_000


def _loop() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def _loop_list() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "0": lambda: 0,
    "7": lambda: 7,
    "-1": lambda: -1,
    "2**63": lambda: 2**63,
    "10**5000": lambda: 10**5000,
    "True": lambda: True,
    "1.5": lambda: 1.5,
    "1e15": lambda: 1e15,
    "10**15": lambda: 10**15,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "Decimal": lambda: Decimal("1.5"),
    "complex": lambda: 1j,
    "empty text": lambda: "",
    "blank": lambda: "  ",
    "long text": lambda: "x" * 3_000,
    "huge text": lambda: HUGE,
    "NUL": lambda: "a\0b",
    "surrogate": lambda: "a\ud800",
    "newline": lambda: "a\nb",
    "unknown": lambda: "no-such-thing",
    "text of a class": lambda: Named("a"),
    "bytes": lambda: b"a",
    "list": lambda: [1],
    "list of texts": lambda: ["a\ud800"],
    "empty list": list,
    "tuple": lambda: (None, Hostile()),
    "set": lambda: {1},
    "endless list": _loop_list,
    "empty dict": dict,
    "dict of int keys": lambda: {1: 2},
    "dict of None keys": lambda: {None: 1},
    "dict of mixed keys": lambda: {"a": 1, 2: 3},
    "dict of surrogate": lambda: {"a\ud800": "\ud800"},
    "dict of NUL": lambda: {"a": "\0"},
    "dict of nan": lambda: {"a": math.nan},
    "dict of huge": lambda: {"a": 10**5000},
    "dict of object": lambda: {"a": object()},
    "dict of hostile": lambda: {"a": Hostile()},
    "dict of much": lambda: MUCH,
    "deep": lambda: DEEP,
    "endless": _loop,
    "naive time": lambda: datetime(2026, 1, 1),  # noqa: DTZ001
    "first time": lambda: datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
    "last time": lambda: datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))),
    "date": lambda: date(2026, 1, 1),
    "no time": lambda: timedelta(0),
    "negative time": lambda: timedelta(days=-1),
    "much time": lambda: timedelta.max,
    "uuid": lambda: UUID(int=1),
    "path": lambda: Path("/no/such/place"),
    "class": lambda: int,
    "our class": lambda: SquidError,
    "function": lambda: lambda *a, **k: None,
    "generator": lambda: (item for item in ("a", 1)),
    "enum": lambda: Colour.RED,
    "error": lambda: ValueError("x"),
    "module": lambda: inspect,
    "object": object,
    "hostile": Hostile,
    "time": lambda: datetime(2026, 1, 1, tzinfo=UTC),
}


@dataclass(frozen=True)
class Call:
    """A call that works: what is called, with which arguments, and which of its parameters are not tried, and why."""

    called: Callable[..., Any]
    kwargs: Kwargs = field(default_factory=dict)
    untried: Mapping[str, str] = field(default_factory=dict)
    close: bool = False  # the answer is closed afterwards
    called_back: frozenset[str] = frozenset()  # parameters that are called: what such code raises is its own
    on_record: frozenset[str] = frozenset()  # parameters whose refusal is itself written down


Make = Callable[[Any], Call]  # from a fixture for which it works


def parameters(call: Call) -> Iterator[str]:
    """Yield the names of parameters: of the signature, with the keys of typed options, and of the table."""
    signature = inspect.signature(call.called).parameters.values()
    plain = [p.name for p in signature if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY, p.POSITIONAL_ONLY)]
    typed = [p.annotation for p in signature if p.kind is p.VAR_KEYWORD and get_origin(p.annotation) is Unpack]
    options = [name for annotation in typed for name in get_type_hints(get_args(annotation)[0])]
    yield from (name for name in dict.fromkeys((*plain, *options, *call.kwargs)) if name not in call.untried)


def do(call: Call, **changed: Any) -> Any:
    """Call it, with some arguments changed."""
    parameters = inspect.signature(call.called).parameters
    kwargs = {**call.kwargs, **changed}
    args = [kwargs.pop(p.name) for p in parameters.values() if p.kind is p.POSITIONAL_ONLY and p.name in kwargs]
    answer = call.called(*args, **kwargs)
    if call.close:
        answer.close()
    return answer


def complaints(
    name: str,
    make: Make,
    world: Callable[[], Any],
    facts: Callable[[Any], int],
    refusals: tuple[type[Exception], ...] = (SquidError,),
) -> Iterator[str]:
    """Try each wrong value for each parameter; yield those neither executed nor refused as they should be."""
    at_hand = world()
    before = facts(at_hand)
    first = make(at_hand)
    try:
        do(first)
    except Exception as error:  # noqa: BLE001  whatever it is, the table is wrong
        yield f"{name}: the call of the table does not work: {type(error).__name__}: {error}"
        return
    for parameter in parameters(first):
        for kind, value in WRONG.items():
            if parameter in first.called_back and callable(value()):
                continue
            if facts(at_hand) != before:
                at_hand = world()
                before = facts(at_hand)
            call = make(at_hand)
            start = facts(at_hand)
            before = start
            try:
                do(call, **{parameter: value()})
            except refusals as error:
                if facts(at_hand) != start and parameter not in call.on_record:
                    yield f"{name}({parameter}={kind}): refused, but something was written"
                yield from _complaint(f"{name}({parameter}={kind})", error)
            except BaseException as error:  # noqa: BLE001  the point of the test
                yield f"{name}({parameter}={kind}): {type(error).__name__}: {str(error)[:150]}"


def _complaint(what: str, error: Exception) -> Iterator[str]:
    said = str(error)
    if not said.strip() or len(said) > 10_000:
        yield f"{what}: {type(error).__name__} says {len(said)} characters: {said[:100]}"
