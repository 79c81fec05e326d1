"""A run's graph as SVG: no style sheet, no script, no font of its own. All text stands on a ground of its own colour,
so that the picture reads on a light page and on a dark one.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from unicodedata import east_asian_width
from xml.sax.saxutils import escape, quoteattr

from squid_dagster.inspection.display import brief
from squid_dagster.inspection.graph.edges import EdgeStatus, GraphEdge
from squid_dagster.inspection.graph.layout import (
    BOX_HEIGHT,
    BOX_WIDTH,
    LABEL_HEIGHT,
    Line,
    Link,
    Point,
    lay_out,
)
from squid_dagster.inspection.graph.nodes import GraphNode
from squid_dagster.inspection.graph.palette import COLOURS, edge_label, node_lines

_MARGIN, _HEAD = 20.0, 40.0
_BOLD_13 = 15  # bold letters of size 13 are as wide as plain ones of this size
_NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
_ROLE = 'role="img" aria-labelledby="title desc"'
_FONT = 'font-family="system-ui, sans-serif"'
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Colours that differ enough from white and from black; dashes say the same without colours.
_STROKES = {
    EdgeStatus.CHOSEN: ("#2563eb", 2.5, ""),
    EdgeStatus.PENDING: ("#64748b", 1.5, ""),
    EdgeStatus.SKIPPED: ("#8492a6", 1.5, "2 5"),
    EdgeStatus.BLOCKED: ("#dc2626", 2.0, "8 4"),
}


def svg(title: str, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> str:
    """Draw the graph. The same graph always gives the same text."""
    labels = [brief(edge_label(edge), 44) for edge in edges]
    links = [
        Link(edge.source, edge.target, _width(label, 11) + 16 if label else 0.0)
        for edge, label in zip(edges, labels, strict=True)
    ]
    picture = lay_out([node.id for node in nodes], links)
    head = _fit(title, _BOLD_13, max(picture.width, 600.0) - 24)
    width = max(picture.width, _width(head, _BOLD_13) + 24) + 2 * _MARGIN
    height = picture.height + 2 * _MARGIN + _HEAD
    left = (width - picture.width) / 2
    parts = [
        f"<svg {_NAMESPACE} {_size(width, height)} {_FONT} {_ROLE}>",
        f'<title id="title">{_text(title)}</title>',
        f'<desc id="desc">{_text(_described(nodes))}</desc>',
        _box((width / 2, _MARGIN + 13), (_width(head, _BOLD_13) + 24, 26), "#f8fafc", "#94a3b8", radius=6),
        _line_of_text((width / 2, _MARGIN + 17.5), head, 13, "#0f172a", bold=True),
        f'<g transform="translate({left:.1f} {_MARGIN + _HEAD:.1f})">',
        *(_edge(edge, line) for edge, line in zip(edges, picture.lines, strict=True)),
        *(_label(line.label, label) for line, label in zip(picture.lines, labels, strict=True)),
        *(_node(node, picture.boxes[node.id]) for node in nodes),
        "</g>",
        "</svg>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _size(width: float, height: float) -> str:
    return f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'


def _described(nodes: Iterable[GraphNode]) -> str:
    """Return a description of the picture."""
    return "; ".join(f"{node.id}: {node.status.value.replace('_', ' ')}" for node in nodes) or "no steps"


def _node(node: GraphNode, middle: Point) -> str:
    colour = COLOURS[node.status]
    first, *rest = node_lines(node)
    x, y = middle
    size = (BOX_WIDTH, BOX_HEIGHT)
    radius = 10.0 if rest else BOX_HEIGHT / 2
    dashes = "6 4" if node.kind == "compensation" else ""
    return "".join(
        [
            f"<g data-node={quoteattr(_clean(node.id))} data-status={quoteattr(node.status.value)}>",
            f"<title>{_text(' — '.join([first, *rest]))}</title>",
            _box(middle, (size[0] + 10, size[1] + 10), "none", colour.line, radius=radius + 4) if node.current else "",
            _box(middle, size, colour.fill, colour.line, radius=radius, stroke_width=2, dashes=dashes),
            _line_of_text((x, y - 4 if rest else y + 5), _fit(first, 14, size[0] - 20), 14, colour.text, bold=True),
            *(_line_of_text((x, y + 15), _fit(line, 11, size[0] - 16), 11, colour.text) for line in rest),
            "</g>",
        ]
    )


def _edge(edge: GraphEdge, line: Line) -> str:
    colour, weight, dashes = _STROKES[edge.status]
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f"<g data-edge={quoteattr(_clean(edge.id))} data-status={quoteattr(edge.status.value)}>"
        f'<path d="{_path(line)}" fill="none" stroke="{colour}" stroke-width="{weight}"{dashed}/>'
        f'<path d="{_arrow(line)}" fill="{colour}"/></g>'
    )


def _path(line: Line) -> str:
    """Draw soft curves between the rows, and straight down through them."""
    points = line.points
    if line.loop:
        return f"M{_at(points[0])} C{_at(points[1])} {_at(points[2])} {_at(points[3])}"
    drawn = [f"M{_at(points[0])}"]
    for (x, y), (to_x, to_y) in pairwise(points):
        half = (y + to_y) / 2
        drawn.append(f"V{to_y:.1f}" if x == to_x else f"C{_at((x, half))} {_at((to_x, half))} {_at((to_x, to_y))}")
    return " ".join(drawn)


def _arrow(line: Line) -> str:
    x, y = line.points[-1]
    if line.loop:
        return f"M{_at((x, y))} l9,-5 v10 z"
    return f"M{_at((x, y))} l-5,{9 if line.upwards else -9} h10 z"


def _label(middle: Point | None, label: str) -> str:
    if middle is None or not label:
        return ""
    x, y = middle
    return _box(middle, (_width(label, 11) + 12, LABEL_HEIGHT - 2), "#f8fafc", "#94a3b8", radius=5) + _line_of_text(
        (x, y + 4), label, 11, "#334155"
    )


def _box(
    middle: Point,
    size: Point,
    fill: str,
    line: str,
    *,
    radius: float,
    stroke_width: float = 1,
    dashes: str = "",
) -> str:
    (x, y), (width, height) = middle, size
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{radius:.0f}" fill="{fill}" stroke="{line}" stroke-width="{stroke_width:g}"{dashed}/>'
    )


def _line_of_text(at: Point, text: str, size: int, colour: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" font-size="{size}"{weight} text-anchor="middle" fill="{colour}">'
        f"{_text(text)}</text>"
    )


def _at(point: Point) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def _text(text: str) -> str:
    return escape(_clean(text))


def _width(text: str, size: int) -> float:
    """Estimate how wide a text is drawn; signs of the Far East take twice the room."""
    return sum(1.0 if east_asian_width(sign) in "WF" else 0.58 for sign in text) * size


def _fit(text: str, size: int, width: float) -> str:
    """Cut a text that is too wide, with a sign that says so."""
    line = brief(text, 1000)
    if _width(line, size) <= width:
        return line
    while line and _width(line, size) > width - size:
        line = line[:-1]
    return line.rstrip() + "…"
