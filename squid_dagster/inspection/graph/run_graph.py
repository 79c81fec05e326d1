"""`RunGraph`: what was declared, what happened, and where the run is now. As data, as Mermaid and as SVG."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from squid_dagster.inspection.display import plain
from squid_dagster.inspection.explain.case import Case
from squid_dagster.inspection.graph.edges import GraphEdge, make_edges
from squid_dagster.inspection.graph.mermaid import mermaid
from squid_dagster.inspection.graph.nodes import GraphNode, current_steps, make_end, make_nodes, stories
from squid_dagster.inspection.graph.svg import svg
from squid_dagster.protocol.folds.plan_state import FAIL
from squid_dagster.workflow.authoring.draft import COMPLETE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGraph:
    """The graph of a run. `mode` is routes, dependencies or, when its definition is not registered, history: then
    there is only what its facts name.
    """

    run_id: str
    workflow: str | None
    definition_version: str | None
    status: str
    mode: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    current_node_ids: tuple[str, ...]
    as_of: datetime

    @property
    def title(self) -> str:
        """One line for the picture: which run this is, and how it stands."""
        return f"{self.workflow or 'unknown workflow'} · {self.run_id} · {self.status}"

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as JSON, always with the same keys."""
        whole: dict[str, Any] = plain(self)
        return whole

    def to_mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart."""
        return mermaid(self.nodes, self.edges)

    def to_svg(self) -> str:
        """Return the graph as an SVG image that reads on light and on dark ground."""
        return svg(self.title, self.nodes, self.edges)


def graph(case: Case, *, include_history: bool = False) -> RunGraph:
    """Return the run of a case as a graph. Pure, and never raises."""
    seen = stories(case)
    steps = make_nodes(case, seen, history=include_history)
    edges = make_edges(case, {node.id: node for node in steps}, seen)
    known = {node.id for node in steps}
    ends = [end for end in (COMPLETE, FAIL) if end not in known and any(edge.target == end for edge in edges)]
    nodes = [*steps, *(make_end(case, end) for end in ends)]
    here = {node.id for node in nodes}
    return RunGraph(
        run_id=case.record.run_id,
        workflow=case.run.start.workflow if case.run.start is not None else None,
        definition_version=case.run.start.definition_version if case.run.start is not None else None,
        status=case.status,
        mode=case.definition.mode.value if case.definition is not None else "history",
        nodes=tuple(nodes),
        # A fact may name a step that was never seen; an edge needs both of its ends.
        edges=tuple(edge for edge in edges if edge.source in here and edge.target in here),
        current_node_ids=current_steps(case),
        as_of=case.now,
    )
