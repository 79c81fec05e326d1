"""A run's graph as a Mermaid flowchart. Whatever a name holds, it stays a label and never becomes a statement."""

from collections.abc import Sequence

from squid_dagster.inspection.graph.edges import EdgeStatus, GraphEdge
from squid_dagster.inspection.graph.nodes import GraphNode
from squid_dagster.inspection.graph.palette import COLOURS, edge_label, node_lines

_SAFE = frozenset(" _.,:/()-=·×")
_ARROWS = {
    EdgeStatus.CHOSEN: "==>",
    EdgeStatus.PENDING: "-->",
    EdgeStatus.SKIPPED: "-.->",
    EdgeStatus.BLOCKED: "--x",
}


def mermaid(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> str:
    """Write the flowchart, one statement a line. The same graph always gives the same text."""
    ids = {node.id: f"n{place}" for place, node in enumerate(nodes)}
    lines = ["flowchart TB"]
    for node in nodes:
        left, right = ("([", "])") if node.kind == "end" else ("{{", "}}") if node.manual else ("[", "]")
        label = "<br/>".join(_escaped(line) for line in node_lines(node))
        lines.append(f'    {ids[node.id]}{left}"{label}"{right}:::{node.status.value}')
    for edge in edges:
        label = _escaped(edge_label(edge))
        labelled = f'|"{label}"|' if label else ""
        lines.append(f"    {ids[edge.source]} {_ARROWS[edge.status]}{labelled} {ids[edge.target]}")
    for status in dict.fromkeys(node.status for node in nodes):
        colour = COLOURS[status]
        lines.append(f"    classDef {status.value} fill:{colour.fill},stroke:{colour.line},color:{colour.text}")
    current = [ids[node.id] for node in nodes if node.current]
    if current:
        lines.append(f"    style {','.join(current)} stroke-width:4px")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Return a text as a label: letters and digits as they are, all signs with a meaning as their numbers."""
    return "".join(
        sign if sign.isalnum() or sign in _SAFE else " " if not sign.isprintable() else f"#{ord(sign)};"
        for sign in text
    )
