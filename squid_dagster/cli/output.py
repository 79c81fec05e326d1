"""What commands print: JSON and nothing else, or text for people, with tables and colours where a terminal is."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, RenderableType
    from rich.table import Table

_WIDE = 200  # columns, where no terminal says how many there are


def emit(as_json: bool, facts: object, *shown: "RenderableType") -> None:
    """Print `facts` as one line of JSON, or else what is to be `shown` to people.

    Raises:
        BrokenPipeError: whoever read the output went away.
    """
    if as_json:
        click.echo(json.dumps(facts, default=_plain, ensure_ascii=False))
    else:
        printing = console()
        for each in shown:
            printing.print(each, markup=False, highlight=False) if isinstance(each, str) else printing.print(each)
    sys.stdout.flush()


def console() -> "Console":
    """Give a console on stdout: colours and its width on a terminal, neither elsewhere; NO_COLOR is heard."""
    from rich.console import Console

    class Printing(Console):
        def on_broken_pipe(self) -> None:
            raise

    return Printing(soft_wrap=False) if sys.stdout.isatty() else Printing(width=_WIDE, color_system=None)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], styles: "dict[str, str] | None" = None) -> "Table":
    """Give a table for people. A cell whose text is a key of `styles` is shown in that style."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(*headings, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    known = styles or STATUS_STYLES
    for row in rows:
        made.add_row(*(Text(text, style=known.get(text, "")) for text in map(show, row)))
    return made


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
    """Write one value for people: nothing for None, seconds for a time, yes and no."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S")
        case timedelta():
            return str(timedelta(seconds=round(value.total_seconds())))
        case _:
            return str(value)


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
