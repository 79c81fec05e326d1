"""Read a journal: snapshot, explanation, graph, timeline, listing, queues. Writes nothing; all is redacted."""

from squid_dagster.inspection.deadlines import DeadlineState, DeadlineView
from squid_dagster.inspection.explain.case import QueueState
from squid_dagster.inspection.explain.explanation import Explanation
from squid_dagster.inspection.explain.reasons import Action, RunReason
from squid_dagster.inspection.graph.edges import EdgeStatus, GraphEdge
from squid_dagster.inspection.graph.nodes import GraphNode, NodeStatus
from squid_dagster.inspection.graph.run_graph import RunGraph
from squid_dagster.inspection.run_list import RunFilters, RunPage, RunSummary, list_runs
from squid_dagster.inspection.run_record import Evidence
from squid_dagster.inspection.snapshot.parts import (
    AnomalyView,
    AttemptView,
    ChildView,
    CommandView,
    ManualView,
    RunnableView,
)
from squid_dagster.inspection.snapshot.snapshot import RunSnapshot
from squid_dagster.inspection.timeline import TimelineEvent

__all__ = [
    "Action",
    "AnomalyView",
    "AttemptView",
    "ChildView",
    "CommandView",
    "DeadlineState",
    "DeadlineView",
    "EdgeStatus",
    "Evidence",
    "Explanation",
    "GraphEdge",
    "GraphNode",
    "ManualView",
    "NodeStatus",
    "QueueState",
    "RunFilters",
    "RunGraph",
    "RunPage",
    "RunReason",
    "RunSnapshot",
    "RunSummary",
    "RunnableView",
    "TimelineEvent",
    "list_runs",
]
