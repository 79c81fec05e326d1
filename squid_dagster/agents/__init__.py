"""Agents: one queue, or one run, with the operations that workers and recovery ask of it. Thin: the journal decides."""

from squid_dagster.agents.dispatch_agent import AttemptResult, ClaimResult, DispatchAgent, HeartbeatResult
from squid_dagster.agents.workflow_agent import WorkflowAgent

__all__ = ["AttemptResult", "ClaimResult", "DispatchAgent", "HeartbeatResult", "WorkflowAgent"]
