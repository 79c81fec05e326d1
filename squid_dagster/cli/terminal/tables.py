"""Tables that fit the width of a terminal: an id, a time or a number is broken only if nothing else can give way.

If the width does not suffice, empty columns are left out and sentences wrapped; then times lose their year and seconds;
then the columns of `first_to_go` are left out; then the remaining columns are wrapped, beginning at the right.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from squid_dagster.cli.terminal.printable_text import printable_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_GAP = 3  # characters between two columns
_PROSE = 24  # the minimum width of a column of sentences
_WORD = 60  # a longer cell may be broken, even without a blank


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    values: list[object]
    cells: list[str]
    wraps: bool = False

    @property
    def natural_width(self) -> int:
        return max(map(cell_len, [self.heading, *self.cells]))

    @property
    def minimum_width(self) -> int:
        return min(self.natural_width, max(_PROSE, cell_len(self.heading))) if self.wraps else self.natural_width

    @property
    def is_empty(self) -> bool:
        return not any(self.cells)

    def wrapped(self) -> "_Column":
        return _Column(self.heading, self.values, self.cells, wraps=True)

    def with_short_times(self) -> "_Column":
        short = [
            f"{value.astimezone(UTC):%m-%dT%H:%MZ}" if isinstance(value, datetime) else cell
            for value, cell in zip(self.values, self.cells, strict=True)
        ]
        return _Column(self.heading, self.values, short, self.wraps)


@dataclass(frozen=True)
class TerminalTable:
    """A table that chooses its columns by the width that rich gives it."""

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    show: Callable[[object], str]
    styles: Mapping[str, str]
    first_to_go: Sequence[str] = field(default=())

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Yield the table, at most as wide as `options` allow."""
        columns = self._fitted(options.max_width)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for column in columns:
            table.add_column(column.heading, no_wrap=not column.wraps, overflow="fold")
        for cells in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*(Text(cell, style=self.styles.get(cell, "")) for cell in cells))
        yield table

    def _fitted(self, width: int) -> list[_Column]:
        columns = list(self._columns())
        if _width(column.natural_width for column in columns) <= width:
            return columns
        columns = [column for column in columns if not column.is_empty]
        if _fits(columns, width):
            return columns
        columns = [column.with_short_times() for column in columns]
        for heading in self.first_to_go:
            if _fits(columns, width):
                return columns
            columns = [column for column in columns if column.heading != heading]
        for at in reversed(range(len(columns))):
            if _fits(columns, width):
                break
            columns[at] = columns[at].wrapped()
        return columns

    def _columns(self) -> Iterable[_Column]:
        for heading, *values in zip(self.headings, *self.rows, strict=True):
            cells = [printable_line(self.show(value)) for value in values]
            yield _Column(heading, values, cells, wraps=any(map(_may_wrap, cells)))


def _may_wrap(cell: str) -> bool:
    return len(cell.split()) > 1 or cell_len(cell) > _WORD


def _fits(columns: Sequence[_Column], width: int) -> bool:
    return _width(column.minimum_width for column in columns) <= width


def _width(widths: Iterable[int]) -> int:
    return sum(width + _GAP for width in widths) - _GAP
