"""Checks of public functions' arguments against their annotations, before the call.

`checked` wraps a function, `checks_arguments` all public methods of a class. An error names the call, the parameter,
the expected type and the actual value. Only types are checked here, and texts, numbers, times and JSON that cannot be
stored; ranges and names are checked by the functions themselves.
"""

import functools
import inspect
import math
import types
import typing
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeVar, Union, Unpack

from pydantic import JsonValue

from squid_dagster.protocol.errors import InvalidArgument, InvalidPayload, InvalidThread, SquidError, shown

MAX_INTEGER = 2**63 - 1
_MAX_DEPTH = 200  # of JSON; no fact can hold a deeper value
_HIDDEN_CATEGORIES = frozenset({"Cc", "Zl", "Zp"})  # control characters, and separators of lines and paragraphs
_MAX_JSON_BITS = 4_000  # of an integer in JSON: Python converts no integer of more than 4,300 digits to text

_UNCHECKED = "__takes_anything__"

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[Any], str | None]  # what a value must be, as an error message says it; None: the value is fine

# Parameters whose errors have a class of their own.
_ERRORS: dict[str, type[SquidError]] = {
    "run_id": InvalidThread,
    "queue": InvalidThread,
    "thread": InvalidThread,
    "payload": InvalidPayload,
}
_FACTS = 10  # a union of at least so many classes is that of all facts, which are checked when they are encoded


def checks_arguments(cls: C) -> C:
    """Check the arguments of the constructor and of all public methods that a class defines itself."""
    for name, member in list(vars(cls).items()):
        if (name != "__init__" and name.startswith("_")) or hasattr(member, _UNCHECKED):
            continue
        if isinstance(member, classmethod):
            setattr(cls, name, classmethod(checked(member.__func__)))
        elif inspect.isfunction(member) and member.__code__.co_argcount + member.__code__.co_kwonlyargcount > 1:
            setattr(cls, name, checked(member))
    return cls


def unchecked(function: F) -> F:
    """Exclude a method of a checked class: it accepts objects that only behave like its annotations."""
    setattr(function, _UNCHECKED, True)
    return function


def checked(function: F) -> F:
    """Check the arguments of a function against its annotations before each call.

    Raises:
        InvalidArgument, InvalidThread, InvalidPayload: a value of another type, or one that cannot be stored.
    """
    signature = inspect.signature(function)
    positional = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    taken: _Taken | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal taken
        if taken is None:  # on the first call: an annotation may name a class that is defined later
            taken = _taken_by(function, signature)
        if taken.keywords is not None and not taken.keywords.issuperset(kwargs):
            raise _unknown_keyword(function, kwargs, taken.keywords)
        for name, value in (*zip(positional, args, strict=False), *kwargs.items()):
            check = taken.checks.get(name)
            if check is not None and (problem := check(value)) is not None:
                raise _refusal(function, args, name, problem, value)
        return function(*args, **kwargs)

    return typing.cast("F", call)


class _Taken(NamedTuple):
    """What a function takes: the check of each parameter, and all keywords if its `**options` are a `TypedDict`."""

    checks: dict[str, Check]
    keywords: frozenset[str] | None


def _unknown_keyword(function: Callable[..., Any], given: Collection[str], taken: Collection[str]) -> TypeError:
    name = next(name for name in given if name not in taken)
    return TypeError(
        f"{function.__qualname__}() got an unexpected keyword argument {name!r}: it takes {', '.join(sorted(taken))}"
    )


def _refusal(
    function: Callable[..., Any], args: tuple[object, ...], name: str, problem: str, value: object
) -> SquidError:
    owner, dot, called = function.__qualname__.rpartition(".")
    if args and owner in (cls.__qualname__ for cls in type(args[0]).__mro__):
        owner = type(args[0]).__qualname__  # of an inherited method
    where = owner if called == "__init__" else f"{owner}.{called}"
    where = f"{where}: " if dot and not owner.endswith("<locals>") else ""
    text, type_name = shown(value), type(value).__name__
    actual = type_name if text == type_name else f"{text} ({type_name})"
    return _ERRORS.get(name, InvalidArgument)(f"{where}{name} must be {problem}, not {actual}")


def _taken_by(function: Callable[..., Any], signature: inspect.Signature) -> _Taken:
    hints = typing.get_type_hints(function)
    named: dict[str, Any] = {}
    keywords = None
    for name, parameter in signature.parameters.items():
        hint = hints.get(name)
        if parameter.kind is parameter.VAR_KEYWORD and typing.get_origin(hint) is Unpack:
            options = typing.get_type_hints(typing.get_args(hint)[0])
            keywords = frozenset(options).union(signature.parameters) - {name, "self", "cls"}
            named |= options
        elif name in hints and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            named[name] = hint
    checks = {name: check for name, hint in named.items() if (check := check_of(hint)) is not None}
    return _Taken(checks, keywords)


# --- checks by annotation -------------------------------------------------------------------------------------------


@functools.cache
def check_of(hint: Any) -> Check | None:
    """Return the check of an annotation; None if it allows anything."""
    if hint is JsonValue:
        return json_problem
    hint = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _any_of(args)
    if origin is Literal:
        return _literal(args)
    if origin is not None:
        return _generic(origin, args)
    if isinstance(hint, type) and hint is not object:
        return _instance(hint)
    return None


def _any_of(hints: tuple[Any, ...]) -> Check | None:
    checks = [check_of(hint) for hint in hints]
    if None in checks or len(checks) >= _FACTS:
        return None

    def check(value: Any) -> str | None:
        problems = []
        for one_check in typing.cast("list[Check]", checks):
            problem = one_check(value)
            if problem is None:
                return None
            problems.append(problem)
        return " or ".join(dict.fromkeys(problems))

    return check


def _literal(values: tuple[Any, ...]) -> Check:
    def check(value: Any) -> str | None:
        known = isinstance(value, str | int) and any(type(value) is type(one) and value == one for one in values)
        return None if known else "one of " + ", ".join(map(repr, values))

    return check


def _instance(cls: type) -> Check | None:
    if getattr(cls, "_is_protocol", False):
        return _protocol(cls)

    def check(value: Any) -> str | None:
        return None if isinstance(value, cls) else f"of class {cls.__name__}"

    return check


def _protocol(cls: type) -> Check:
    needed = [name for name in dir(cls) if not name.startswith("_") or name == "__call__"]

    def check(value: Any) -> str | None:
        try:
            fits = not isinstance(value, type) and all(hasattr(value, name) for name in needed)
        except Exception:  # noqa: BLE001  a value's own code
            fits = False
        return None if fits else f"a {cls.__name__}"

    return check


def _generic(origin: Any, args: tuple[Any, ...]) -> Check | None:
    if origin is type:
        return lambda value: None if isinstance(value, type) else "a class"
    if origin is Callable or origin is types.FunctionType:
        return lambda value: None if callable(value) else "a function"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(origin, *args)
    if origin is tuple and args[-1:] != (Ellipsis,):
        return _tuple(args)
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return _iterable(origin, args[0] if args else Any)
    return _instance(origin) if isinstance(origin, type) else None


def _mapping(origin: type, key: Any = Any, item: Any = Any) -> Check:
    key_check, item_check = check_of(key), check_of(item)

    def check(value: Any) -> str | None:
        if not isinstance(value, origin) or not isinstance(value, Mapping):
            return "a mapping"
        if item is JsonValue:
            return json_problem(value)
        for entry_key, entry_value in value.items():
            if key_check is not None and (problem := key_check(entry_key)) is not None:
                return f"a mapping whose keys are {problem}"
            if item_check is not None and (problem := item_check(entry_value)) is not None:
                return f"a mapping whose values are {problem}"
        return None

    return check


def _tuple(hints: tuple[Any, ...]) -> Check:
    checks = [check_of(hint) for hint in hints]

    def check(value: Any) -> str | None:
        if not isinstance(value, tuple) or len(value) != len(checks):
            return f"a tuple of {len(checks)}"
        problems = (item_check(item) for item_check, item in zip(checks, value, strict=True) if item_check is not None)
        problem = next((problem for problem in problems if problem is not None), None)
        return None if problem is None else f"a tuple of {len(checks)}, each of them {problem}"

    return check


def _iterable(origin: type, item: Any) -> Check:
    item_check = check_of(item)

    def check(value: Any) -> str | None:
        # A text is a sequence of texts, too, but no caller means it so.
        if not isinstance(value, origin) or isinstance(value, str | bytes | Mapping):
            return "a list"
        if item_check is not None and isinstance(value, Sequence | Collection) and not isinstance(value, Iterator):
            problem = next((problem for one in value if (problem := item_check(one)) is not None), None)
            return None if problem is None else f"a list whose items are {problem}"
        return None

    return check


# --- values ---------------------------------------------------------------------------------------------------------


def text_problem(value: object) -> str | None:
    """Return what a text must be: one that UTF-8 can encode, without lone surrogates."""
    if not isinstance(value, str):
        return "a text"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "a text in UTF-8"
    return None


def name_problem(text: str) -> str | None:
    """Return why a text cannot be a displayed name: it is blank, or holds a character that one line cannot show."""
    if not text.strip():
        return "it must not be empty"
    hidden = next((character for character in text if unicodedata.category(character) in _HIDDEN_CATEGORIES), None)
    return None if hidden is None else f"it must not hold {hidden!r}"


def number_problem(value: object) -> str | None:
    """Return what an integer must be: no bool, and one of up to 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool):
        return "a whole number"
    return None if -MAX_INTEGER - 1 <= value <= MAX_INTEGER else "a whole number of 64 bits"


def _float_problem(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "a number"
    return None if -MAX_INTEGER <= value <= MAX_INTEGER else "a finite number"


def _bool_problem(value: object) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def _none_problem(value: object) -> str | None:
    return None if value is None else "None"


def _span_problem(value: object) -> str | None:
    return None if isinstance(value, timedelta) else "a timedelta"


def time_problem(value: object) -> str | None:
    """Return what a time must be: one with a zone, that UTC can express."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return "a datetime with a zone"
    try:
        value.astimezone(UTC)
    except (OverflowError, ValueError):
        return "a time that UTC can express"
    return None


def json_problem(value: object, depth: int = 0) -> str | None:
    """Return what a JSON value must be, at any depth."""
    match value:
        case None | bool():
            return None
        case str():
            return text_problem(value)
        case int():
            return None if value.bit_length() <= _MAX_JSON_BITS else "JSON, with numbers that can be spelled"
        case float():
            return None if math.isfinite(value) else "JSON, with finite numbers"
        case dict() | list():
            return _nested_problem(value, depth)
    return "JSON"


def _nested_problem(value: Any, depth: int) -> str | None:
    if depth >= _MAX_DEPTH:
        return "JSON that is not nested too deep"
    if isinstance(value, list):
        return next((problem for item in value if (problem := json_problem(item, depth + 1)) is not None), None)
    for key, item in value.items():
        if text_problem(key) is not None:
            return f"JSON, whose keys are each {text_problem(key)}"
        problem = json_problem(item, depth + 1)
        if problem is not None:
            return problem
    return None


_PLAIN: dict[Any, Check | None] = {
    Any: None,
    object: None,
    None: _none_problem,
    types.NoneType: _none_problem,
    str: text_problem,
    int: number_problem,
    float: _float_problem,
    bool: _bool_problem,
    datetime: time_problem,
    timedelta: _span_problem,
}
