"""`--where`: which runs a bulk command is about, as pairs of name and value. Parses them, and lists the runs."""

import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from squid_dagster.cli.run.options import a_time, statuses

if TYPE_CHECKING:
    from squid_dagster.api import Squid
    from squid_dagster.inspection import RunSummary

_PAGE = 500  # runs that are asked for at a time


def _flag(text: str) -> bool:
    if text.lower() not in ("yes", "no", "true", "false"):
        raise ValueError(f"{text!r:.60} is neither yes nor no")
    return text.lower() in ("yes", "true")


# The names that may be used, what a listing calls them, and how their values are read.
_NAMES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "workflow": ("workflow", str),
    "status": ("status", statuses),
    "queue": ("queue", str),
    "trigger": ("trigger", str),
    "parent": ("parent_run_id", str),
    "version": ("definition_version", str),
    "started_after": ("started_after", a_time),
    "started_before": ("started_before", a_time),
    "open": ("open_only", _flag),
}


def parse_where(text: str) -> dict[str, Any]:
    """Read filters such as `status=paused workflow=orders` as arguments of a listing; a value may be quoted.

    Raises:
        click.BadParameter: nothing, an unknown name, a name twice, or a value that makes no sense.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _bad(f"{text!r:.80} cannot be read: {error}") from None
    filters: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise _bad(f"{word!r:.60} is not name=value")
        if name not in _NAMES:
            raise _bad(f"{name!r:.60} is no filter: use {', '.join(_NAMES)}")
        argument, read = _NAMES[name]
        if argument in filters:
            raise _bad(f"{name!r} is given twice")
        try:
            filters[argument] = read(value)
        except ValueError as error:
            raise _bad(f"{name}: {error}") from None
    if not filters:
        raise _bad(f"it would be about every run: name at least one of {', '.join(_NAMES)}")
    return filters


def where_option(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, Any] | None:
    """Read the value of `--where`. Raises as `parse_where`."""
    return None if text is None else parse_where(text)


def find_runs(squid: "Squid", wanted: dict[str, Any]) -> "Iterator[RunSummary]":
    """Yield all runs that fit, newest first. Raises `InvalidArgument` for a filter that makes no sense."""
    cursor: str | None = None
    while True:
        page = squid.list_runs(**wanted, limit=_PAGE, cursor=cursor)
        yield from page.runs
        cursor = page.next_cursor
        if cursor is None:
            return


def _bad(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint="--where")
