"""Agents: the operations of workers and recovery on one queue, or on one run. Thin: the journal decides."""

from squid_dagster.agents.dispatch_agent import AttemptResult, ClaimResult, DispatchAgent, HeartbeatResult
from squid_dagster.agents.workflow_agent import WorkflowAgent

__all__ = ["AttemptResult", "ClaimResult", "DispatchAgent", "HeartbeatResult", "WorkflowAgent"]
