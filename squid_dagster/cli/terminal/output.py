"""Output of commands: one JSON document, or text for people, with tables, and with colours on a terminal."""

import codecs
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from squid_dagster.cli.terminal.printable_text import printable
from squid_dagster.cli.terminal.streams import on_terminal, stdout

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, RenderableType

    from squid_dagster.cli.terminal.tables import TerminalTable

_C1 = re.compile("[\x7f-\x9f]")  # control characters that JSON does not escape
_ENDLESS = 10**9  # columns, where neither a terminal nor COLUMNS says how many there are


def emit(as_json: bool, document: object, *parts: "RenderableType") -> None:
    """Print `document` as one line of JSON, or else `parts` for people.

    Raises:
        OutputClosed, OSError: it cannot be written.
    """
    if as_json:
        out = stdout()
        is_utf8 = codecs.lookup(out.encoding or "ascii").name == "utf-8"
        text = json.dumps(document, default=_json_value, ensure_ascii=not is_utf8)
        click.echo(_C1.sub(lambda match: f"\\u{ord(match.group()):04x}", text), file=out)
        out.flush()
    else:
        say(*parts)


def say(*parts: "RenderableType") -> None:
    """Print text, tables and trees for people. Except on a terminal, no line ends with blanks.

    Raises:
        OutputClosed, OSError: it cannot be written.
    """
    out, printing = stdout(), console()
    with printing.capture() as captured:
        for part in parts:
            printing.print(printable(part) if isinstance(part, str) else part)
    text = captured.get()
    out.write(text if on_terminal() else "\n".join(line.rstrip() for line in text.split("\n")))
    out.flush()


def console() -> "Console":
    """Return a console on stdout: with the colours and width of a terminal; elsewhere without colours, of any width.

    NO_COLOR and COLUMNS are obeyed. Text is printed literally: no markup, no names of emoji, no control characters.
    Raises `OutputClosed` if there is no stdout.
    """
    from rich.console import Console
    from rich.segment import Segment

    class LiteralConsole(Console):
        def on_broken_pipe(self) -> None:
            raise

        def render(self, renderable: Any, options: Any = None) -> "Iterator[Segment]":
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    settings: dict[str, Any] = {"file": stdout(), "markup": False, "emoji": False, "highlight": False}
    if on_terminal():
        return LiteralConsole(**settings, soft_wrap=False)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) else _ENDLESS
    return LiteralConsole(**settings, width=width, color_system=None)


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    styles: "dict[str, str] | None" = None,
    first_to_go: Sequence[str] = (),
) -> "TerminalTable":
    """Return a table for people. A cell whose text is a key of `styles` has that style.

    If the columns do not fit the width, those of `first_to_go` are left out, in this order.
    """
    from squid_dagster.cli.terminal.tables import TerminalTable

    return TerminalTable(headings, list(rows), show, styles or STATUS_STYLES, first_to_go)


STATUS_STYLES = {
    "completed": "green",
    "running": "cyan",
    "claimed": "cyan",
    "paused": "yellow",
    "failed": "red",
    "quarantined": "red",
    "dead_letter": "red",
    "dead_lettered": "red",
    "cancelled": "dim",
}


def show(value: object) -> str:
    """Format one value for people: nothing for None, a time in UTC to the second, yes and no."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        case timedelta():
            return str(timedelta(seconds=round(value.total_seconds())))
        case _:
            return printable(str(value))


@contextmanager
def progress(label: str, total: int | None = None) -> "Iterator[Callable[[int], None]]":
    """Show progress on stderr if it is a terminal; yield the function that takes the number done so far."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)


def _json_value(value: Any) -> Any:
    """Convert a value for which JSON has no form."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
