"""Plots as SVG, without a library: no style sheet, no script, a background of their own, small enough for an event log.

Pure. No information is in colours alone: every series is named, lines and bars over time with their latest value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from squid_dagster.inspection.display import brief

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 52, 34
_COLOURS = ("#2563eb", "#d97706", "#16a34a", "#dc2626")
_TEXT, _GRID, _GROUND = "#0f172a", "#cbd5e1", "#f8fafc"
_LABELS, _LINES = 8, 4
_NAMES, _ROW = 200, 22  # of horizontal bars: the width of their names, and the height of a bar
_FONT = 'font-family="system-ui, sans-serif" font-size="11"'


@dataclass(frozen=True, slots=True)
class Series:
    """One row of values, by label; None where there is none."""

    name: str
    values: Sequence[float | None]


def bars(title: str, labels: Sequence[str], series: Sequence[Series], unit: str = "") -> str:
    """Draw values as bars, those of one label on top of each other."""
    top = _ceiling(max((sum(one.values[i] or 0 for one in series) for i in range(len(labels))), default=0))
    slot = _inner_width() / max(1, len(labels))
    drawn = []
    for index in range(len(labels)):
        below = 0.0
        for number, one in enumerate(series):
            value = one.values[index] or 0
            if not value:
                continue
            high = value / top * _inner_height()
            drawn.append(
                f'<rect x="{_LEFT + index * slot + slot * 0.1:.1f}" y="{_base() - below - high:.1f}" '
                f'width="{slot * 0.8:.1f}" height="{high:.1f}" fill="{_COLOURS[number]}"/>'
            )
            below += high
    return _framed(title, labels, series, top, unit, drawn, centred=True)


def lines(title: str, labels: Sequence[str], series: Sequence[Series], unit: str = "") -> str:
    """Draw values as lines; a gap where there is no value."""
    top = _ceiling(max((value for one in series for value in one.values if value is not None), default=0))
    drawn = []
    for number, one in enumerate(series):
        colour = _COLOURS[number]
        points = [
            (_x(i, len(labels)), _y(value, top)) if value is not None else None for i, value in enumerate(one.values)
        ]
        drawn += [_line(part, colour) for part in _pieces(points)]
    return _framed(title, labels, series, top, unit, drawn, centred=False)


def ranks(title: str, labels: Sequence[str], series: Sequence[Series]) -> str:
    """Draw values as horizontal bars, those of one label in a row, with their sum."""
    sums = [sum(one.values[i] or 0 for one in series) for i in range(len(labels))]
    top, height = max(sums, default=0) or 1, _TOP + _ROW * max(2, len(labels)) + 10
    wide = WIDTH - _NAMES - 60
    drawn = []
    for index, label in enumerate(labels):
        x, y = float(_NAMES), _TOP + index * _ROW
        drawn.append(f'<text x="{_NAMES - 8}" y="{y + 13}" text-anchor="end" fill="{_TEXT}">{_text(label, 30)}</text>')
        for number, one in enumerate(series):
            width = (one.values[index] or 0) / top * wide
            drawn.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="16" fill="{_COLOURS[number]}"/>')
            x += width
        drawn.append(f'<text x="{x + 6:.1f}" y="{y + 13}" fill="{_TEXT}">{_number(sums[index])}</text>')
    return _boxed(title, height, [*_legend(series, None), *drawn], empty=not labels)


def _framed(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    top: float,
    unit: str,
    drawn: Sequence[str],
    *,
    centred: bool,
) -> str:
    framed = [*_legend(series, unit), *_grid(top, unit), *drawn, *_axis(labels, centred)]
    return _boxed(title, HEIGHT, framed, empty=not drawn)


def _boxed(title: str, height: int, drawn: Sequence[str], *, empty: bool) -> str:
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_FONT} role="img">',
        f"<title>{_text(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="{_GROUND}" stroke="{_GRID}"/>',
        f'<text x="12" y="20" font-size="13" font-weight="bold" fill="{_TEXT}">{_text(title)}</text>',
        *drawn,
    ]
    if empty:
        parts.append(f'<text x="{WIDTH / 2}" y="{height / 2}" text-anchor="middle" fill="{_TEXT}">nothing yet</text>')
    return "\n".join([*parts, "</svg>"])


def _legend(series: Sequence[Series], unit: str | None) -> list[str]:
    elements, x = [], 12.0
    for number, one in enumerate(series):
        name = one.name if unit is None else _with_latest(one, unit)
        elements.append(f'<rect x="{x:.0f}" y="30" width="10" height="10" fill="{_COLOURS[number]}"/>')
        elements.append(f'<text x="{x + 14:.0f}" y="39" fill="{_TEXT}">{_text(name)}</text>')
        x += 30 + 5.8 * len(name)
    return elements


def _with_latest(series: Series, unit: str) -> str:
    latest = next((value for value in reversed(series.values) if value is not None), None)
    return series.name if latest is None else f"{series.name}: {_number(latest)}{unit}"


def _grid(top: float, unit: str) -> list[str]:
    elements = []
    for step in range(_LINES + 1):
        value = top * step / _LINES
        y = _y(value, top)
        elements.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>')
        elements.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="{_TEXT}">{_number(value)}{unit}</text>'
        )
    return elements


def _axis(labels: Sequence[str], centred: bool) -> list[str]:
    every = -(-len(labels) // _LABELS) or 1
    slot = _inner_width() / max(1, len(labels))
    return [
        f'<text x="{_LEFT + (i + 0.5) * slot if centred else _x(i, len(labels)):.1f}" y="{HEIGHT - 14}" '
        f'text-anchor="middle" fill="{_TEXT}">{_text(labels[i])}</text>'
        for i in range(0, len(labels), every)
    ]


def _line(points: Sequence[tuple[float, float]], colour: str) -> str:
    if len(points) == 1:
        return f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3" fill="{colour}"/>'
    coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{coordinates}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _pieces(points: Sequence[tuple[float, float] | None]) -> list[list[tuple[float, float]]]:
    """Split points where one is missing."""
    parts: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            parts.append([])
        else:
            parts[-1].append(point)
    return [part for part in parts if part]


def _ceiling(value: float) -> float:
    """Return a round number at or above the value, so that the lines of the grid are at round numbers."""
    if value <= 0:
        return 1.0
    scale = 1.0
    while scale * 10 < value:
        scale *= 10
    while scale >= value:
        scale /= 10
    return next(scale * step for step in (1, 2, 4, 6, 8, 10) if scale * step >= value)


def _x(index: int, count: int) -> float:
    return _LEFT + (_inner_width() / 2 if count < 2 else index * _inner_width() / (count - 1))


def _y(value: float, top: float) -> float:
    return _base() - value / top * _inner_height()


def _base() -> float:
    return HEIGHT - _BOTTOM


def _inner_width() -> float:
    return WIDTH - _LEFT - _RIGHT


def _inner_height() -> float:
    return HEIGHT - _TOP - _BOTTOM


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _text(value: str, limit: int = 80) -> str:
    return escape(brief(value, limit))
