"""A small layered layout: where the boxes and labels of a graph stand, and how its lines run. Pure and deterministic.

Every edge goes down from row to row; what would go up (a loop) is laid out the other way round and only drawn upwards.
A label, and a line that passes a row, take a place in that row like a box does: so nothing lies upon anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

BOX_WIDTH, BOX_HEIGHT = 220.0, 56.0
LABEL_HEIGHT = 20.0
GAP_X, GAP_Y = 28.0, 30.0
_LINE_WIDTH = 10.0
_LOOP_WIDTH = 44.0
_SWEEPS = 8

Point = tuple[float, float]


class Link(NamedTuple):
    """An edge to lay out, with the width of its label; 0 when it has none."""

    source: str
    target: str
    label_width: float = 0.0


class Line(NamedTuple):
    """How an edge runs, from its source to its target, and where its label's middle is."""

    points: list[Point]
    label: Point | None
    upwards: bool = False
    loop: bool = False


class Picture(NamedTuple):
    """The middles of all boxes, the lines in the order of the links, and the size of it all."""

    boxes: dict[str, Point]
    lines: list[Line]
    width: float
    height: float


@dataclass(slots=True)
class _Cell:
    """Something that takes a place in a row: a box, a label, or a line passing by."""

    width: float
    height: float
    x: float = 0.0
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Grid:
    cells: list[_Cell]
    rows: list[list[int]]
    chains: list[list[int]]  # by link: the cells that its line passes, from top to bottom; empty for a loop to itself


def lay_out(names: Sequence[str], links: Sequence[Link]) -> Picture:
    """Compute the places of boxes, labels and lines. Links must be between the names that are given."""
    back = _backward(names, links)
    rows = _rows(names, links, back)
    grid = _grid(names, links, back, rows)
    _untangle(grid)
    _spread(grid)
    return _draw(names, links, back, grid)


def _backward(names: Sequence[str], links: Sequence[Link]) -> set[int]:
    """Find the links that close a circle, going through the graph from the first name on."""
    leaving: dict[str, list[int]] = {name: [] for name in names}
    for place, link in enumerate(links):
        leaving[link.source].append(place)
    back: set[int] = set()
    done: set[str] = set()
    for name in names:
        path = {name: iter(leaving[name])} if name not in done else {}
        while path:  # a walk with a stack of its own: a chain may be longer than Python's
            here = next(reversed(path))
            leads = next(path[here], None)
            if leads is None:
                del path[here]
                done.add(here)
            elif (target := links[leads].target) in path:
                back.add(leads)
            elif target not in done:
                path[target] = iter(leaving[target])
    return back


def _ends(link: Link, *, turned: bool) -> tuple[str, str]:
    return (link.target, link.source) if turned else (link.source, link.target)


def _rows(names: Sequence[str], links: Sequence[Link], back: set[int]) -> dict[str, int]:
    """Return for every name the lowest row that all links into it allow; with labels, every other row is for these."""
    step = 2 if any(link.label_width for link in links) else 1
    downs = [_ends(link, turned=i in back) for i, link in enumerate(links) if link.source != link.target]
    waiting = dict.fromkeys(names, 0)
    following: dict[str, list[str]] = {name: [] for name in names}
    for upper, lower in downs:
        waiting[lower] += 1
        following[upper].append(lower)
    rows = dict.fromkeys(names, 0)
    ready = [name for name in names if not waiting[name]]
    for upper in ready:  # grows while it is walked through
        for lower in following[upper]:
            rows[lower] = max(rows[lower], rows[upper] + step)
            waiting[lower] -= 1
            if not waiting[lower]:
                ready.append(lower)
    return rows


def _grid(names: Sequence[str], links: Sequence[Link], back: set[int], rows: Mapping[str, int]) -> _Grid:
    loops = {link.source: link.label_width for link in links if link.source == link.target}
    cells = [_Cell(BOX_WIDTH + (2 * (_LOOP_WIDTH + loops[n]) if n in loops else 0), BOX_HEIGHT) for n in names]
    places = {name: place for place, name in enumerate(names)}
    grid = _Grid(cells, [[] for _ in range(max(rows.values(), default=0) + 1)], [])
    for name in names:
        grid.rows[rows[name]].append(places[name])
    for i, link in enumerate(links):
        if link.source == link.target:
            grid.chains.append([])
            continue
        upper, lower = _ends(link, turned=i in back)
        chain = [places[upper]]
        # The label stands next to where the line begins, for a line upwards too.
        label_row = rows[lower] - 1 if i in back else rows[upper] + 1
        for row in range(rows[upper] + 1, rows[lower]):
            labelled = bool(link.label_width) and row == label_row
            cells.append(_Cell(link.label_width if labelled else _LINE_WIDTH, LABEL_HEIGHT if labelled else 0.0))
            grid.rows[row].append(len(cells) - 1)
            chain.append(len(cells) - 1)
        chain.append(places[lower])
        for above, below in pairwise(chain):
            cells[above].below.append(below)
            cells[below].above.append(above)
        grid.chains.append(chain)
    return grid


def _untangle(grid: _Grid) -> None:
    """Order each row by the middle of its neighbours, back and forth, and keep the order with the fewest crossings."""
    best, least = [list(row) for row in grid.rows], _crossings(grid)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for near, row in pairwise(grid.rows if down else grid.rows[::-1]):
            place = {cell: i for cells in (near, row) for i, cell in enumerate(cells)}
            middles = {cell: _middle(grid, cell, place, down=down) for cell in row}
            row.sort(key=middles.__getitem__)
        if (crossings := _crossings(grid)) < least:
            best, least = [list(row) for row in grid.rows], crossings
    grid.rows = best


def _middle(grid: _Grid, cell: int, place: Mapping[int, int], *, down: bool) -> float:
    near = grid.cells[cell].above if down else grid.cells[cell].below
    return sum(place[neighbour] for neighbour in near) / len(near) if near else float(place[cell])


def _crossings(grid: _Grid) -> int:
    count = 0
    for row, next_row in pairwise(grid.rows):
        place = {cell: i for i, cell in enumerate(next_row)}
        ends = [place[below] for cell in row for below in sorted(grid.cells[cell].below, key=place.__getitem__)]
        count += sum(left > right for i, left in enumerate(ends) for right in ends[i + 1 :])
    return count


def _spread(grid: _Grid) -> None:
    """Compute every cell's x: side by side first, then moved towards its neighbours as far as the row has room."""
    for row in grid.rows:
        _push_apart(grid, row, [0.0] * len(row))
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in grid.rows if down else reversed(grid.rows):
            _push_apart(grid, row, [_wish(grid.cells, cell, down=down) for cell in row])
    left = min((cell.x - cell.width / 2 for cell in grid.cells), default=0.0)
    for cell in grid.cells:
        cell.x -= left


def _wish(cells: Sequence[_Cell], cell: int, *, down: bool) -> float:
    near = cells[cell].above if down else cells[cell].below
    return sum(cells[neighbour].x for neighbour in near) / len(near) if near else cells[cell].x


def _push_apart(grid: _Grid, row: Sequence[int], wishes: Sequence[float]) -> None:
    """Compute a row's x in its order, without overlap, as near to the wishes as one shift of each group allows."""
    groups: list[tuple[list[int], float, list[float]]] = []  # cells, the group's first middle, offsets in it
    for cell, wish in zip(row, wishes, strict=True):
        groups.append(([cell], wish, [0.0]))
        while len(groups) > 1:
            (left, x, offsets), (right, y, right_offsets) = groups[-2], groups[-1]
            room = (grid.cells[left[-1]].width + grid.cells[right[0]].width) / 2 + GAP_X
            if x + offsets[-1] + room <= y:
                break
            shift = offsets[-1] + room
            together = (x * len(left) + (y - shift) * len(right)) / (len(left) + len(right))
            groups[-2:] = [([*left, *right], together, [*offsets, *(shift + offset for offset in right_offsets)])]
    for members, x, offsets in groups:
        for cell, offset in zip(members, offsets, strict=True):
            grid.cells[cell].x = x + offset


def _draw(names: Sequence[str], links: Sequence[Link], back: set[int], grid: _Grid) -> Picture:
    middles: dict[int, Point] = {}  # by cell: the middle and the height of its row
    y = 0.0
    for row in grid.rows:
        height = max((grid.cells[cell].height for cell in row), default=0.0)
        middles |= dict.fromkeys(row, (y + height / 2, height))
        y += height + GAP_Y
    ports = _ports(grid)
    lines = []
    for i, (link, chain) in enumerate(zip(links, grid.chains, strict=True)):
        if not chain:
            cell = names.index(link.source)
            lines.append(_own_loop(grid.cells[cell].x, middles[cell][0], link.label_width))
            continue
        points: list[Point] = []
        label = None
        for place, cell in enumerate(chain):
            middle, height = middles[cell]
            x = grid.cells[cell].x
            if place == 0:
                points.append((x + ports[i, True], middle + BOX_HEIGHT / 2))
            elif place == len(chain) - 1:
                points.append((x + ports[i, False], middle - BOX_HEIGHT / 2))
            else:
                points += [(x, middle - height / 2), (x, middle + height / 2)]
                label = (x, middle) if grid.cells[cell].height else label
        lines.append(Line(points[::-1] if i in back else points, label, i in back))
    boxes = {name: (grid.cells[place].x, middles[place][0]) for place, name in enumerate(names)}
    width = max((cell.x + cell.width / 2 for cell in grid.cells), default=0.0)
    return Picture(boxes, lines, width, max(y - GAP_Y, 0.0))


def _ports(grid: _Grid) -> dict[tuple[int, bool], float]:
    """Return each line's own place on the lower (True) or upper side of a box, from left to right as they come."""
    sides: dict[tuple[int, bool], list[tuple[float, int]]] = {}
    for i, chain in enumerate(grid.chains):
        if chain:
            sides.setdefault((chain[0], True), []).append((grid.cells[chain[1]].x, i))
            sides.setdefault((chain[-1], False), []).append((grid.cells[chain[-2]].x, i))
    ports = {}
    for (_, lower), ends in sides.items():
        step = min(36.0, BOX_WIDTH * 0.8 / len(ends))
        for place, (_, i) in enumerate(sorted(ends)):
            ports[i, lower] = (place - (len(ends) - 1) / 2) * step
    return ports


def _own_loop(x: float, y: float, label_width: float) -> Line:
    right = x + BOX_WIDTH / 2
    points = [(right, y + 12), (right + _LOOP_WIDTH - 8, y + 12), (right + _LOOP_WIDTH - 8, y - 12), (right, y - 12)]
    return Line(points, (right + _LOOP_WIDTH - 4 + label_width / 2, y) if label_width else None, loop=True)
