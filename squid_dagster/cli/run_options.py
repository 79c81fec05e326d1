"""Options and values that the commands about runs and queues share: who says it, which runs, times and JSON."""

import functools
import getpass
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, cast

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Said:
    """What every command that writes records: who asked for it, why, and under which key it is done once."""

    actor: str
    comment: str | None = None
    metadata: dict[str, Any] | None = None
    idempotency_key: str | None = None

    def options(self, idempotency_key: str | None = None) -> dict[str, Any]:
        """Give it as arguments of a command of `Squid`, with a key of one's own if one is given."""
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
        **more: Any,
    ) -> Any:
        who = os_user() if actor is None else actor
        return command(*args, said=Said(who, comment, metadata, idempotency_key), **more)

    told = "Repeating a command with the same key does it once, and answers as the first time."
    placed: Any = click.option("--idempotency-key", metavar="KEY", callback=_text, help=told)(saying)
    kept = "More about it, as a JSON object that is recorded."
    placed = click.option("--metadata", metavar="JSON", callback=json_object, help=kept)(placed)
    placed = click.option("--comment", metavar="TEXT", help="Why, in words that are recorded.")(placed)
    who = "Who asks for it; the name of the user if not given."
    return cast("_Command", click.option("--actor", metavar="NAME", callback=_text, help=who)(placed))


def os_user() -> str:
    """Give the name of the user, or the number of one that has no name here."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def _text(_: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise click.BadParameter("it must not be empty", param=parameter)
    return text


def read_json(text: str) -> Any:
    """Read JSON as it is defined: without NaN and its like. Raises `ValueError`."""
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def json_object(_: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, Any] | None:
    """Read the value of an option as a JSON object.

    Raises:
        click.BadParameter: it is none.
    """
    if text is None:
        return None
    try:
        found = read_json(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"not JSON: {error}", param=parameter) from None
    if not isinstance(found, dict):
        raise click.BadParameter(f"a JSON object is needed, such as '{{\"a\": 1}}', not {text:.60}", param=parameter)
    return found


def a_time(text: str) -> datetime:
    """Read a time with a zone. Raises `ValueError` with a sentence that says what is needed."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ValueError(f"{text!r:.60} is no time with a zone, such as 2026-11-16T18:00:00Z")
    return found


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
    """Read one status, or several with commas. Raises `ValueError` when there is none."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise ValueError("a status is needed, such as paused, or several with commas")
    return found
