"""Workflows: their declaration, checks, fingerprints, crons and planner. Pure: no database, no clock, no randomness."""

from squid_dagster.protocol.folds.plan_state import FAIL
from squid_dagster.workflow.authoring.conditions import Condition, Operator, path
from squid_dagster.workflow.authoring.draft import COMPLETE, Deadline, StepKind
from squid_dagster.workflow.authoring.retry import Retry, delay
from squid_dagster.workflow.authoring.step_context import Cancellation, Resource, StepContext
from squid_dagster.workflow.authoring.step_outcomes import Defer, Fail
from squid_dagster.workflow.authoring.workflow import Workflow
from squid_dagster.workflow.cron.triggers import Cron, Manual
from squid_dagster.workflow.definition import Definition, Mode, Route, StepDefinition
from squid_dagster.workflow.errors import (
    Code,
    InvalidInput,
    InvalidWorkflow,
    MissingResource,
    Problem,
    WorkflowsNotLoaded,
)
from squid_dagster.workflow.loader import load_workflows
from squid_dagster.workflow.planner.binding import bind, bind_compensation, call_arguments, compensation_arguments

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
