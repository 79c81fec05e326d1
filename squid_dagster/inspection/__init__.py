"""Looking at runs and changing nothing: snapshot, explanation, graph, timeline, listing. All is shown redacted."""

from squid_dagster.inspection.deadlines import DeadlineState, DeadlineView
from squid_dagster.inspection.explain.case import QueueState
from squid_dagster.inspection.explain.explanation import Explanation, explain_run
from squid_dagster.inspection.explain.reasons import Action, RunReason
from squid_dagster.inspection.graph.edges import EdgeStatus, GraphEdge
from squid_dagster.inspection.graph.nodes import GraphNode, NodeStatus
from squid_dagster.inspection.graph.run_graph import RunGraph, inspect_run_graph
from squid_dagster.inspection.run_list import RunPage, RunSummary, list_runs
from squid_dagster.inspection.run_record import Evidence
from squid_dagster.inspection.snapshot.parts import (
    AnomalyView,
    AttemptView,
    ChildView,
    CommandView,
    ManualView,
    RunnableView,
)
from squid_dagster.inspection.snapshot.snapshot import RunSnapshot, inspect_run
from squid_dagster.inspection.timeline import TimelineEvent, inspect_run_timeline

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
    "RunGraph",
    "RunPage",
    "RunReason",
    "RunSnapshot",
    "RunSummary",
    "RunnableView",
    "TimelineEvent",
    "explain_run",
    "inspect_run",
    "inspect_run_graph",
    "inspect_run_timeline",
    "list_runs",
]
