"""The words and colours of a graph, the same in every picture. What a colour says, a word says too."""

from typing import NamedTuple

from squid_dagster.inspection.graph.edges import GraphEdge
from squid_dagster.inspection.graph.nodes import GraphNode, NodeStatus


class Colour(NamedTuple):
    """The colours of a box. Text stands on the box's own ground, so that it reads on any page."""

    fill: str
    line: str
    text: str = "#0f172a"


_GREY, _BLUE, _GREEN = Colour("#e2e8f0", "#64748b"), Colour("#bfdbfe", "#2563eb"), Colour("#bbf7d0", "#16a34a")
_AMBER, _VIOLET, _RED = Colour("#fde68a", "#d97706"), Colour("#ddd6fe", "#7c3aed"), Colour("#fecaca", "#dc2626")
_FADED = Colour("#f1f5f9", "#94a3b8", "#475569")

COLOURS: dict[NodeStatus, Colour] = {
    NodeStatus.WAITING: _FADED,
    NodeStatus.PENDING: _GREY,
    NodeStatus.SCHEDULED: _GREY,
    NodeStatus.DEFERRED: _GREY,
    NodeStatus.RETRYING: _AMBER,
    NodeStatus.RUNNING: _BLUE,
    NodeStatus.EXPIRED: _AMBER,
    NodeStatus.COMPLETING: _BLUE,
    NodeStatus.COMPLETED: _GREEN,
    NodeStatus.PAUSED: _VIOLET,
    NodeStatus.REJECTED: _RED,
    NodeStatus.FAILED: _RED,
    NodeStatus.DEAD_LETTER: _RED,
    NodeStatus.CANCELLED: _FADED,
    NodeStatus.SKIPPED: _FADED,
}


def node_lines(node: GraphNode) -> list[str]:
    """Return the two lines of a box: its name, and its kind, status and counts."""
    if node.kind == "end":
        return [node.id]
    status = node.status.value.replace("_", " ")
    visits = f" ×{node.visits}" if node.visits > 1 else ""
    attempts = f" · {node.attempt_count} attempts" if node.attempt_count > max(node.visits, 1) else ""
    late = f" · {node.deadline.state.value.replace('_', ' ')}" if node.late and node.deadline is not None else ""
    kind = "" if node.kind == "unknown" else f"{node.kind} · "
    return [node.id, f"{kind}{status}{visits}{attempts}{late}"]


def edge_label(edge: GraphEdge) -> str:
    """Return the label of an edge: its outcome if not `ok`, its condition, and how often it was taken."""
    if edge.type == "compensation":
        return "undo"
    parts = [
        edge.outcome if edge.outcome not in (None, "ok") else "",
        edge.condition,
        f"({edge.recovery})" if edge.recovery is not None else "",
        f"×{edge.times}" if edge.times > 1 else "",
    ]
    return " ".join(part for part in parts if part)
