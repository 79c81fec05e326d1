"""Checks of each step by itself: its name, its output and its options."""

from datetime import timedelta
from keyword import iskeyword
from typing import get_args

from squid_dagster.limits import MAX_PRIORITY, MIN_PRIORITY
from squid_dagster.workflow.authoring.draft import ENDS, Deadline, DeclaredStep, LogLevel, StepKind
from squid_dagster.workflow.authoring.retry import Retry
from squid_dagster.workflow.checks.externals import check_external
from squid_dagster.workflow.checks.workflow import is_name, record_bad_name
from squid_dagster.workflow.errors import Code, Path, Problems
from squid_dagster.workflow.values import MAX_DURATION, is_duration, is_one_of, is_whole, shown

_LEVELS = get_args(LogLevel)


def check_steps(declared: tuple[DeclaredStep, ...], problems: Problems) -> dict[str, DeclaredStep]:
    """Check names and options. Return the steps by name, of two with one name the first."""
    if not declared:
        problems.add(("steps",), Code.MISSING_STEPS, "declare at least one step")
    steps: dict[str, DeclaredStep] = {}
    for index, step in enumerate(declared):
        path: Path = ("steps", step.name if isinstance(step.name, str) else index)
        bad = record_bad_name(step.name, "step", (*path, "name"), Code.INVALID_STEP_NAME, problems)
        if isinstance(step.name, str):
            if step.name in ENDS:
                message = f"{step.name!r} names an end of the run: give the step another name"
                problems.add((*path, "name"), Code.RESERVED_STEP_NAME, message)
            elif step.name not in steps:
                steps[step.name] = step
            elif not bad:
                message = f"there are two steps {step.name!r}: give one another name"
                problems.add((*path, "name"), Code.DUPLICATE_STEP_NAME, message)
        _check_numbers(step, path, problems)
        _check_markers(step, path, problems)
        _check_deadline(step, path, problems)
        _check_built_in(step, path, problems)
        if step.external is not None:
            check_external(step.external, path, problems)
    return steps


def check_outputs(steps: dict[str, DeclaredStep], fields: frozenset[str], problems: Problems) -> dict[str, str]:
    """Check that every output has a name of its own that a parameter can have. Return steps by their outputs."""
    outputs: dict[str, str] = {}
    for step in steps.values():
        name = step.output_name
        path = ("steps", step.name, "output")
        if name is None or (step.output is None and not is_name(step.name)):  # a bad name is recorded already
            continue
        if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
            message = f"{shown(name)} cannot be the name of a parameter: give output= a Python identifier"
            problems.add(path, Code.INVALID_OUTPUT, message)
        elif name in fields:
            message = f"{name!r} is a field of the payload too: give output= another name"
            problems.add(path, Code.OUTPUT_HIDES_PAYLOAD, message)
        elif name in outputs:
            message = f"{name!r} is the output of step {outputs[name]!r} too: give output= another name"
            problems.add(path, Code.DUPLICATE_OUTPUT, message)
        else:
            outputs[name] = step.name
    return outputs


def _check_numbers(step: DeclaredStep, path: Path, problems: Problems) -> None:
    if step.retry is not None and not isinstance(step.retry, Retry):
        message = f"{shown(step.retry)} is no policy: use Retry(max_attempts=...)"
        problems.add((*path, "retry"), Code.INVALID_RETRY, message)
    elif step.retry is not None:
        for field, message in step.retry.problems():
            problems.add((*path, "retry", field), Code.INVALID_RETRY, message)
    priority = step.priority
    if priority is not None and not (is_whole(priority) and MIN_PRIORITY <= priority <= MAX_PRIORITY):
        message = f"must be a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}, not {shown(priority)}"
        problems.add((*path, "priority"), Code.INVALID_PRIORITY, message)
    if not is_whole(step.max_deliveries) or step.max_deliveries < 1:
        message = f"must be a whole number of at least 1, not {shown(step.max_deliveries)}"
        problems.add((*path, "max_deliveries"), Code.INVALID_MAX_DELIVERIES, message)
    if step.max_visits is not None and not (is_whole(step.max_visits) and step.max_visits >= 1):
        message = f"must be a whole number of at least 1, not {shown(step.max_visits)}"
        problems.add((*path, "max_visits"), Code.INVALID_MAX_VISITS, message)


def _check_markers(step: DeclaredStep, path: Path, problems: Problems) -> None:
    for field in ("irreversible", "transactional", "isolate"):
        value = getattr(step, field)
        if not isinstance(value, bool):
            problems.add((*path, field), Code.INVALID_MARKER, f"must be True or False, not {shown(value)}")
    if step.irreversible is True and step.compensate is not None:
        message = "a step that can be compensated is not irreversible: keep one of the two"
        problems.add((*path, "compensate"), Code.CONFLICTING_COMPENSATION, message)
    if step.transactional is True and step.isolate is True:
        message = "a process of its own cannot share the journal's transaction: keep isolate or transactional"
        problems.add((*path, "isolate"), Code.CONFLICTING_EXECUTION, message)


def _check_deadline(step: DeclaredStep, path: Path, problems: Problems) -> None:
    match step.deadline:
        case None:
            return
        case Deadline() as deadline:
            pass
        case timedelta() as within:
            deadline = Deadline(within)
        case other:
            message = f"{shown(other)} is no deadline: use a timedelta, or Deadline(within=...)"
            problems.add((*path, "deadline"), Code.INVALID_DEADLINE, message)
            return
    for field, message in deadline.problems():
        problems.add((*path, "deadline", field), Code.INVALID_DEADLINE, message)


def _check_built_in(step: DeclaredStep, path: Path, problems: Problems) -> None:
    if step.kind is StepKind.WAIT and not is_duration(step.duration):
        message = f"must be a positive timedelta of at most {MAX_DURATION.days} days, not {shown(step.duration)}"
        problems.add((*path, "duration"), Code.INVALID_WAIT_DURATION, message)
    if step.kind is StepKind.LOG:
        if not isinstance(step.message, str) or not step.message:
            message = f"must be a text, not {shown(step.message)}"
            problems.add((*path, "message"), Code.INVALID_LOG_MESSAGE, message)
        if not is_one_of(step.level, _LEVELS):
            message = f"must be one of {', '.join(_LEVELS)}, not {shown(step.level)}"
            problems.add((*path, "level"), Code.INVALID_LOG_LEVEL, message)
