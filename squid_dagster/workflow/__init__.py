"""Authoring: what a workflow is, whether it makes sense, and what it means. Pure: no database, no clock, no chance."""

from squid_dagster.protocol.folds.plan_state import FAIL
from squid_dagster.workflow.authoring import Workflow
from squid_dagster.workflow.binding import bind, bind_compensation, call_arguments, compensation_arguments
from squid_dagster.workflow.conditions import Condition, Operator, path
from squid_dagster.workflow.context import Cancellation, Resource, StepContext
from squid_dagster.workflow.declared import COMPLETE, Deadline, StepKind
from squid_dagster.workflow.definition import Definition, Mode, Route, StepDefinition
from squid_dagster.workflow.errors import (
    Code,
    InvalidInput,
    InvalidWorkflow,
    MissingResource,
    Problem,
    WorkflowsNotLoaded,
)
from squid_dagster.workflow.loading import load_workflows
from squid_dagster.workflow.outcomes import Defer, Fail
from squid_dagster.workflow.retry import Retry, delay
from squid_dagster.workflow.triggers import Cron, Manual

__all__ = [
    "COMPLETE",
    "FAIL",
    "Cancellation",
    "Code",
    "Condition",
    "Cron",
    "Deadline",
    "Defer",
    "Definition",
    "Fail",
    "InvalidInput",
    "InvalidWorkflow",
    "Manual",
    "MissingResource",
    "Mode",
    "Operator",
    "Problem",
    "Resource",
    "Retry",
    "Route",
    "StepContext",
    "StepDefinition",
    "StepKind",
    "Workflow",
    "WorkflowsNotLoaded",
    "bind",
    "bind_compensation",
    "call_arguments",
    "compensation_arguments",
    "delay",
    "load_workflows",
    "path",
]
