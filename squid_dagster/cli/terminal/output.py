"""What commands print: JSON and nothing else, or text for people, with tables and colours where a terminal is."""

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

    from squid_dagster.cli.terminal.tables import FittingTable

_C1 = re.compile("[\x7f-\x9f]")  # control characters that JSON may hold as they are
_ENDLESS = 10**9  # columns, where neither a terminal nor COLUMNS says how many there are


def emit(as_json: bool, facts: object, *shown: "RenderableType") -> None:
    """Print `facts` as one line of JSON, or else what is to be `shown` to people.

    Raises:
        OutputClosed, OSError: it cannot be written.
    """
    if as_json:
        out = stdout()
        is_utf8 = codecs.lookup(out.encoding or "ascii").name == "utf-8"
        text = json.dumps(facts, default=_plain, ensure_ascii=not is_utf8)
        click.echo(_C1.sub(lambda found: f"\\u{ord(found.group()):04x}", text), file=out)
        out.flush()
    else:
        say(*shown)


def say(*shown: "RenderableType") -> None:
    """Print text, tables and trees for people. Elsewhere than on a terminal no line ends with blanks.

    Raises:
        OutputClosed, OSError: it cannot be written.
    """
    out, printing = stdout(), console()
    with printing.capture() as captured:
        for each in shown:
            printing.print(printable(each) if isinstance(each, str) else each)
    text = captured.get()
    out.write(text if on_terminal() else "\n".join(line.rstrip() for line in text.split("\n")))
    out.flush()


def console() -> "Console":
    """Give a console on stdout: colours and its width on a terminal; elsewhere none, and all the width one wants.

    NO_COLOR and COLUMNS are heard. Text is shown as it is: no markup, no names of emoji, nothing that steers a
    terminal. Raises `OutputClosed` if there is no stdout.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Printing(Console):
        def on_broken_pipe(self) -> None:
            raise

        def render(self, renderable: Any, options: Any = None) -> "Iterator[Segment]":
            for each in super().render(renderable, options):
                yield each if each.control else Segment(printable(each.text), each.style)

    plain: dict[str, Any] = {"file": stdout(), "markup": False, "emoji": False, "highlight": False}
    if on_terminal():
        return Printing(**plain, soft_wrap=False)
    asked = os.environ.get("COLUMNS", "")
    width = int(asked) if asked.isdecimal() and int(asked) else _ENDLESS
    return Printing(**plain, width=width, color_system=None)


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    styles: "dict[str, str] | None" = None,
    first_to_go: Sequence[str] = (),
) -> "FittingTable":
    """Give a table for people. A cell whose text is a key of `styles` is shown in that style.

    Where there is no room for all columns, those named `first_to_go` are left out, in this order.
    """
    from squid_dagster.cli.terminal.tables import FittingTable

    return FittingTable(headings, list(rows), show, styles or STATUS_STYLES, first_to_go)


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
    """Write one value for people: nothing for None, a time in UTC to the second, yes and no."""
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
    """Show how far long work has come, on stderr and on a terminal only; give what is to be told the number so far."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)


def _plain(value: Any) -> Any:
    """Spell what JSON has no form for."""
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
