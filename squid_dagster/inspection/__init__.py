"""Looking at runs and changing nothing: snapshot, explanation, graph, timeline, listing. All is shown redacted."""

from squid_dagster.inspection.case import QueueState
from squid_dagster.inspection.deadlines import DeadlineState, DeadlineView
from squid_dagster.inspection.edges import EdgeStatus, GraphEdge
from squid_dagster.inspection.explain import Explanation, explain_run
from squid_dagster.inspection.graph import RunGraph, inspect_run_graph
from squid_dagster.inspection.listing import RunPage, RunSummary, list_runs
from squid_dagster.inspection.nodes import GraphNode, NodeStatus
from squid_dagster.inspection.reasons import Action, RunReason
from squid_dagster.inspection.record import Evidence
from squid_dagster.inspection.snapshot import RunSnapshot, inspect_run
from squid_dagster.inspection.timeline import TimelineEvent, inspect_run_timeline
from squid_dagster.inspection.views import AnomalyView, AttemptView, ChildView, CommandView, ManualView, RunnableView

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
