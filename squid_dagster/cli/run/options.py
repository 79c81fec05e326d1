"""Options and values that the commands about runs and queues share: who says it, which runs, times and JSON."""

import functools
import getpass
import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import click

from squid_dagster.cli.app import is_text
from squid_dagster.cli.option_types import name_option

_Command = TypeVar("_Command", bound=Callable[..., Any])

LONGEST_SECONDS = 10 * 365 * 86_400
_DEEPEST = 150  # what a journal keeps is a little deeper: a payload is within a fact


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """What is recorded with a command: who asked for it, why, and under which key it is done once."""

    actor: str
    comment: str | None = None
    metadata: dict[str, Any] | None = None
    idempotency_key: str | None = None

    def options(self, idempotency_key: str | None = None) -> dict[str, Any]:
        """Return it as arguments of a command of `Squid`, with another key if one is given."""
        return {
            "actor": self.actor,
            "comment": self.comment,
            "metadata": self.metadata,
            "idempotency_key": self.idempotency_key if idempotency_key is None else idempotency_key,
        }


def with_said(command: _Command) -> _Command:
    """Add `--actor`, `--comment`, `--metadata` and `--idempotency-key`; the command is called with a `said`."""

    @functools.wraps(command)
    def saying(
        *args: Any,
        actor: str | None,
        comment: str | None,
        metadata: dict[str, Any] | None,
        idempotency_key: str | None,
        **options: Any,
    ) -> Any:
        who = os_user() if actor is None else actor
        return command(*args, said=CommandRecord(who, comment, metadata, idempotency_key), **options)

    key_help = "Repeating a command with the same key does it once, and answers as the first time."
    placed: Any = click.option("--idempotency-key", metavar="KEY", callback=name_option, help=key_help)(saying)
    metadata_help = "More about it, as a JSON object that is recorded."
    placed = click.option("--metadata", metavar="JSON", callback=json_object, help=metadata_help)(placed)
    placed = click.option("--comment", metavar="TEXT", help="Why, in words that are recorded.")(placed)
    who = "Who asks for it; the name of the user if not given."
    return cast("_Command", click.option("--actor", metavar="NAME", callback=name_option, help=who)(placed))


def os_user() -> str:
    """Return the name of the user, or the number of one that has no name here."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


class InvalidValue(ValueError):
    """JSON, but none that a journal can hold."""


def read_json(text: str) -> Any:
    """Read JSON as it is defined: without NaN and its like.

    Raises:
        InvalidValue: it is nested too deeply, or holds a character that cannot be stored.
        ValueError: it is none, and why.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep() from None
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _within(outer)]
        if not level:
            return value
    raise _too_deep()


def _within(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return [*value, *value.values()]
        case list():
            return value
        case str() if not is_text(value):
            raise InvalidValue(f"{value!r:.60} holds a character that cannot be stored: remove it")
        case _:
            return ()


def _too_deep() -> InvalidValue:
    return InvalidValue(f"it is nested more than {_DEEPEST} deep")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def json_value(_: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    """Read the value of an option as JSON.

    Raises:
        click.BadParameter: it is none.
    """
    if text is None:
        return None
    try:
        return read_json(text)
    except InvalidValue as error:
        raise click.BadParameter(str(error), param=parameter) from None
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param=parameter) from None


def json_object(context: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, Any] | None:
    """Read the value of an option as a JSON object.

    Raises:
        click.BadParameter: it is none.
    """
    if text is None:
        return None
    value = json_value(context, parameter, text)
    if not isinstance(value, dict):
        raise click.BadParameter(f"a JSON object is needed, such as '{{\"a\": 1}}', not {text:.60}", param=parameter)
    return value


class Seconds(click.FloatRange):
    """A number of seconds within bounds, by default from zero to ten years. Unlike click's, it is always a number."""

    def __init__(self, least: float = 0, most: float = LONGEST_SECONDS, *, min_open: bool = False) -> None:
        """Set the bounds, both included but for `min_open`."""
        super().__init__(least, most, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it. Raises `click.BadParameter`."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):  # no comparison with a bound tells
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return seconds


def a_time(text: str) -> datetime:
    """Read a time with a zone, and return it in UTC. Raises `ValueError` with a sentence that says what is needed."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(f"{text!r:.60} is no time with a zone, such as 2026-11-16T18:00:00Z")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r:.60} is a time that UTC cannot express") from None


def time_option(_: click.Context, parameter: click.Parameter, text: str | None) -> datetime | None:
    """Read the value of an option as a time with a zone.

    Raises:
        click.BadParameter: it is none.
    """
    if text is None:
        return None
    try:
        return a_time(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


def statuses(text: str) -> tuple[str, ...]:
    """Read one status of runs, or several with commas. Raises `ValueError` when there is none, or an unknown one."""
    from squid_dagster.inspection.run_list import LISTED_STATUSES

    words = tuple(part.strip() for part in text.split(",") if part.strip())
    if not words:
        raise ValueError("a status is needed, such as paused, or several with commas")
    for word in words:
        if word not in LISTED_STATUSES:
            raise ValueError(f"status {word!r:.80} is unknown: take one of {', '.join(LISTED_STATUSES)}")
    return words


def status_option(_: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Read the value of an option as statuses of runs.

    Raises:
        click.BadParameter: there is none, or an unknown one.
    """
    try:
        return None if text is None else statuses(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None
