"""What can be wrong with a workflow, with the input of a step, or with a module that should hold workflows.

A definition's problems are values: a path to what is wrong, a code for programs and a sentence for people. They are
collected, so that a workflow is refused once, with everything that is wrong about it.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from squid_dagster.protocol.errors import SquidError, shown

Path = tuple[str | int, ...]


class Code(StrEnum):
    """What can be wrong with a definition."""

    # the workflow
    INVALID_WORKFLOW_NAME = "invalid_workflow_name"
    INVALID_VERSION = "invalid_version"
    INVALID_PAYLOAD_MODEL = "invalid_payload_model"
    MISSING_STEPS = "missing_steps"
    # triggers
    INVALID_TRIGGER = "invalid_trigger"
    INVALID_TRIGGER_NAME = "invalid_trigger_name"
    DUPLICATE_TRIGGER_NAME = "duplicate_trigger_name"
    INVALID_CRON_EXPRESSION = "invalid_cron_expression"
    INVALID_CRON_TIMEZONE = "invalid_cron_timezone"
    INVALID_CRON_CATCH_UP = "invalid_cron_catch_up"
    INVALID_CRON_IDEMPOTENCY = "invalid_cron_idempotency"
    INVALID_CRON_PAYLOAD = "invalid_cron_payload"
    # names of steps and outputs
    INVALID_STEP_NAME = "invalid_step_name"
    RESERVED_STEP_NAME = "reserved_step_name"
    DUPLICATE_STEP_NAME = "duplicate_step_name"
    INVALID_OUTPUT = "invalid_output"
    DUPLICATE_OUTPUT = "duplicate_output"
    OUTPUT_HIDES_PAYLOAD = "output_hides_payload"
    # a step's function and its parameters
    NOT_A_FUNCTION = "not_a_function"
    UNRESOLVED_ANNOTATIONS = "unresolved_annotations"
    MISSING_ANNOTATION = "missing_annotation"
    UNSUPPORTED_ANNOTATION = "unsupported_annotation"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    UNPROVIDED_PARAMETER = "unprovided_parameter"
    UNCERTAIN_PARAMETER = "uncertain_parameter"
    CONFLICTING_PARAMETER = "conflicting_parameter"
    # a step's options
    INVALID_RETRY = "invalid_retry"
    INVALID_PRIORITY = "invalid_priority"
    INVALID_MAX_DELIVERIES = "invalid_max_deliveries"
    INVALID_MAX_VISITS = "invalid_max_visits"
    INVALID_DEADLINE = "invalid_deadline"
    INVALID_MARKER = "invalid_marker"
    CONFLICTING_COMPENSATION = "conflicting_compensation"
    CONFLICTING_EXECUTION = "conflicting_execution"
    INVALID_WAIT_DURATION = "invalid_wait_duration"
    INVALID_LOG_MESSAGE = "invalid_log_message"
    INVALID_LOG_LEVEL = "invalid_log_level"
    INVALID_EXTERNAL = "invalid_external"
    UNKNOWN_EXTERNAL_TARGET = "unknown_external_target"
    # routes
    UNKNOWN_ROUTE_SOURCE = "unknown_route_source"
    UNKNOWN_ROUTE_TARGET = "unknown_route_target"
    INVALID_OUTCOME = "invalid_outcome"
    INVALID_CONDITION = "invalid_condition"
    UNKNOWN_CONDITION_PATH = "unknown_condition_path"
    MANUAL_STEP_CONDITION = "manual_step_condition"
    INVALID_RECOVERY = "invalid_recovery"
    DUPLICATE_ROUTE = "duplicate_route"
    IMPOSSIBLE_ROUTE = "impossible_route"
    MISSING_FALLBACK = "missing_fallback"
    MISSING_OK_ROUTE = "missing_ok_route"
    MISSING_APPROVAL_ROUTES = "missing_approval_routes"
    # dependencies
    ROUTES_AND_AFTER = "routes_and_after"
    INVALID_AFTER = "invalid_after"
    UNKNOWN_DEPENDENCY = "unknown_dependency"
    SELF_DEPENDENCY = "self_dependency"
    DEPENDENCY_CYCLE = "dependency_cycle"
    MANUAL_STEP_IN_DEPENDENCY_MODE = "manual_step_in_dependency_mode"
    DETACHED_WAIT = "detached_wait"
    # the flow as a whole
    MISSING_ENTRY = "missing_entry"
    SEVERAL_ENTRIES = "several_entries"
    UNKNOWN_ENTRY = "unknown_entry"
    UNREACHABLE_STEP = "unreachable_step"
    CANNOT_END = "cannot_end"
    LOOP_WITHOUT_MAX_VISITS = "loop_without_max_visits"


class Problem(NamedTuple):
    """One thing that is wrong with a definition, and where."""

    path: Path
    code: Code
    message: str

    def __str__(self) -> str:
        """Format the problem as one line, for people."""
        return f"{'.'.join(str(part) for part in self.path) or 'workflow'}: {self.message} [{self.code}]"


class InvalidWorkflow(SquidError):
    """A workflow cannot be used as it is declared; `problems` holds everything that is wrong with it."""

    def __init__(self, workflow: object, problems: Iterable[Problem]) -> None:
        """Set the workflow and its problems, and format all of them as the message."""
        self.workflow = workflow
        self.problems = tuple(problems)
        count = len(self.problems)
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"workflow {shown(workflow)} has {count} {'problem' if count == 1 else 'problems'}:{lines}")

    def __reduce__(self) -> tuple[type["InvalidWorkflow"], tuple[object, tuple[Problem, ...]]]:
        """Serialize with workflow and problems."""
        return (type(self), (self.workflow, self.problems))


class InvalidInput(SquidError):
    """A step's input is missing a value, or one does not fit the step's annotations."""


class MissingResource(SquidError):
    """A step requires a resource that the worker does not have."""


class WorkflowsNotLoaded(SquidError):
    """No workflows could be collected from what was named."""


class Problems:
    """A list to which checks add problems."""

    def __init__(self) -> None:
        """Create an empty list."""
        self._recorded: list[Problem] = []

    def add(self, path: Path, code: Code, message: str) -> None:
        """Record one problem."""
        self._recorded.append(Problem(path, code, message))

    def recorded(self) -> tuple[Problem, ...]:
        """Return the problems recorded so far, in order."""
        return tuple(self._recorded)
