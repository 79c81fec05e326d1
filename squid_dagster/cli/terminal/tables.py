"""Tables for people, in the width that there is: an id, a time or a number is never cut, and never broken in two while
anything else can give way.

Where the width does not suffice, empty columns are left out and sentences folded; then times lose their year and
seconds; then columns go that were named as the first to go; then whatever is left is folded from the right on.
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

_GAP = 3  # columns of the terminal between two of ours
_PROSE = 24  # a column of sentences is not made narrower than this
_WORD = 60  # what is longer may be broken, even if there is no blank in it


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    values: list[object]
    cells: list[str]
    folds: bool = False

    @property
    def wants(self) -> int:
        return max(map(cell_len, [self.heading, *self.cells]))

    @property
    def needs(self) -> int:
        return min(self.wants, max(_PROSE, cell_len(self.heading))) if self.folds else self.wants

    @property
    def is_empty(self) -> bool:
        return not any(self.cells)

    def folding(self) -> "_Column":
        return _Column(self.heading, self.values, self.cells, folds=True)

    def with_short_times(self) -> "_Column":
        short = [
            f"{value.astimezone(UTC):%m-%dT%H:%MZ}" if isinstance(value, datetime) else cell
            for value, cell in zip(self.values, self.cells, strict=True)
        ]
        return _Column(self.heading, self.values, short, self.folds)


@dataclass(frozen=True)
class FittingTable:
    """A table that chooses what to show when it is told how wide it may be."""

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    show: Callable[[object], str]
    styles: Mapping[str, str]
    first_to_go: Sequence[str] = field(default=())

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Give the table as wide as there is room, at most."""
        columns = self._fitted(options.max_width)
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for each in columns:
            made.add_column(each.heading, no_wrap=not each.folds, overflow="fold")
        for cells in zip(*(each.cells for each in columns), strict=True):
            made.add_row(*(Text(cell, style=self.styles.get(cell, "")) for cell in cells))
        yield made

    def _fitted(self, width: int) -> list[_Column]:
        columns = list(self._columns())
        if _width(each.wants for each in columns) <= width:
            return columns
        columns = [each for each in columns if not each.is_empty]
        if _fits(columns, width):
            return columns
        columns = [each.with_short_times() for each in columns]
        for heading in self.first_to_go:
            if _fits(columns, width):
                return columns
            columns = [each for each in columns if each.heading != heading]
        for at in reversed(range(len(columns))):
            if _fits(columns, width):
                break
            columns[at] = columns[at].folding()
        return columns

    def _columns(self) -> Iterable[_Column]:
        for heading, *values in zip(self.headings, *self.rows, strict=True):
            cells = [printable_line(self.show(value)) for value in values]
            yield _Column(heading, values, cells, folds=any(map(_may_fold, cells)))


def _may_fold(cell: str) -> bool:
    return len(cell.split()) > 1 or cell_len(cell) > _WORD


def _fits(columns: Sequence[_Column], width: int) -> bool:
    return _width(each.needs for each in columns) <= width


def _width(widths: Iterable[int]) -> int:
    return sum(each + _GAP for each in widths) - _GAP
