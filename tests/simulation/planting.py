"""Planting a bug: one piece of a function's source is replaced while a block runs, wherever the function is used."""

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any, NamedTuple


class Bug(NamedTuple):
    """A bug: in the function that `place` names as "module:name", `text`, which stands there once, is replaced."""

    name: str
    place: str
    text: str
    replacement: str


def function_of(place: str) -> FunctionType:
    """Return the function that "module:Class.name" names."""
    module, _, path = place.partition(":")
    target: Any = import_module(f"squid_dagster.{module}")
    for part in path.split("."):
        target = inspect.getattr_static(target, part) if inspect.isclass(target) else getattr(target, part)
    target = inspect.unwrap(getattr(target, "fget", None) or getattr(target, "__func__", target))
    assert isinstance(target, FunctionType), place
    return target


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Replace a function by one with a bug, within the block."""
    function = function_of(bug.place)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(bug.text) == 1, f"{bug.name}: the text stands {source.count(bug.text)} times in {bug.place}"
    while source.startswith("@"):
        source = source.partition("\n")[2]
    made = compile(source.replace(bug.text, bug.replacement), f"<{bug.name}>", "exec")
    code = next(
        constant
        for constant in made.co_consts
        if isinstance(constant, CodeType) and constant.co_name == function.__name__
    )
    before = function.__code__
    assert code.co_freevars == before.co_freevars, bug.name
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before
