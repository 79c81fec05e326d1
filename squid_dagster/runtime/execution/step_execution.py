"""The execution of one attempt: call the step, and return its outcome. Writes nothing."""

import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from logging import LoggerAdapter
from typing import Any

from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, from_json, to_json

from squid_dagster.journal.contract.dispatch_store import (
    Claim,
    Completed,
    Deferred,
    Failed,
    Interrupted,
    NextAttempt,
    Outcome,
)
from squid_dagster.journal.descriptors import LoopLost, check_descriptors
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import SquidError
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.folds.visits import COMPENSATE
from squid_dagster.redaction import redacted, redacted_error, redacted_text
from squid_dagster.runtime.execution.forks import OneProcess, OneProcessCoroutine
from squid_dagster.runtime.execution.interrupts import is_interrupt
from squid_dagster.runtime.execution.step_calls import infrastructure
from squid_dagster.workflow.authoring.draft import StepKind
from squid_dagster.workflow.authoring.retry import delay
from squid_dagster.workflow.authoring.signature import Task
from squid_dagster.workflow.authoring.step_context import Cancellation, StepContext
from squid_dagster.workflow.authoring.step_outcomes import Defer, Fail
from squid_dagster.workflow.definition import Definition, StepDefinition
from squid_dagster.workflow.planner.binding import call_arguments, compensation_arguments

MAX_RESULT_BYTES = 1024 * 1024
_LONGEST_MESSAGE, _LONGEST_TRACEBACK = 4_000, 8_000
_LONGEST_REDACTED = (
    100_000  # characters of a message that are redacted before it is truncated: half a secret is not found
)
_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (0, 1, 5, 30))  # by delivery

_logger = redacting_logger("squid_dagster.step")
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
AsyncRunner = Callable[[Coroutine[Any, Any, Any]], Any]


class LazyState(Mapping[str, JsonValue]):
    """The run's payload and outputs, read from the journal at a step's first access: most steps have none."""

    def __init__(self, load: Callable[[], Mapping[str, JsonValue]]) -> None:
        """Bind to the function that reads it."""
        self._load = load

    @cached_property
    def _values(self) -> Mapping[str, JsonValue]:
        return self._load()

    def __getitem__(self, key: str) -> JsonValue:
        """Return one value."""
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._values)

    def __len__(self) -> int:
        """Count the names."""
        return len(self._values)


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt with its step, function and arguments. A built-in step has no function."""

    definition: Definition
    step: StepDefinition
    attempt: Attempt
    task: Task | None
    arguments: dict[str, Any]


def make_context(
    claim: Claim, definition: Definition, state: Mapping[str, JsonValue], cancelled: Cancellation, **extra: Any
) -> StepContext:
    """Return the context of a step's execution."""
    attempt = claim.attempt
    about = {"run_id": attempt.run_id, "step": attempt.step, "attempt": attempt.attempt_number}
    return StepContext(
        run_id=attempt.run_id,
        workflow=definition.name,
        step=attempt.step,
        runnable_key=attempt.runnable_key,
        idempotency_key=attempt.idempotency_key,
        attempt=attempt.attempt_number,
        fencing_token=attempt.fencing_token,
        state=state,
        log=LoggerAdapter(_logger, about),
        cancelled=cancelled,
        **extra,
    )


def make_call(definition: Definition, attempt: Attempt, context: StepContext, resources: Mapping[str, object]) -> Call:
    """Bind an attempt's input to its function. Raises `InvalidInput` or `MissingResource`."""
    values = attempt.input or {}
    if attempt.step.startswith(COMPENSATE):
        step = definition.steps[attempt.step.removeprefix(COMPENSATE)]
        arguments = compensation_arguments(step, values, context, resources)
        return Call(definition, step, attempt, step.compensation, arguments)
    step = definition.steps[attempt.step]
    return Call(definition, step, attempt, step.task, call_arguments(step, values, context, resources))


def outcome_of(call: Call, run_async: AsyncRunner, random_unit: Callable[[], float]) -> Outcome:
    """Call the step and return its outcome; everything that the step raises is its own failure.

    Raises:
        BaseException: a signal has interrupted the thread (see `note_interrupts`).
    """
    step = call.step
    if call.task is None:
        if step.kind is StepKind.LOG:
            _logger.log(_LEVELS[step.level], "%s: %s", call.attempt.run_id, step.message)
        return Completed(None)
    try:
        return completed(call_function(call.task.function, call.arguments, step.name, run_async, call.task.is_async))
    except BaseException as error:
        if is_interrupt(error) or isinstance(error, LoopLost):
            raise
        return outcome_of_error(error, step, call.attempt, random_unit)


def call_function(
    function: Callable[..., Any], arguments: Mapping[str, Any], step: str, run_async: AsyncRunner, is_async: bool
) -> Any:
    """Return what a step's function returns, in this process only: a process that the step forks exits."""
    deepest = sys.getrecursionlimit()
    try:
        with OneProcess(step):
            returned = function(**arguments)
        return run_async(OneProcessCoroutine(returned, step)) if is_async else returned
    finally:
        if sys.getrecursionlimit() < deepest:  # the limit is that of all threads, ours included
            sys.setrecursionlimit(deepest)
        check_descriptors()


def completed(returned: Any) -> Outcome:
    """Return the completion with a step's result as JSON; a result that is not JSON, or too large, is a failure."""
    try:
        text = to_json(returned)
        value = from_json(text, allow_inf_nan=False)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        message = f"the step returned a {type(returned).__name__} that is not JSON: {error}"
        return Failed(error_map("invalid_result", message))
    if len(text) > MAX_RESULT_BYTES:
        message = f"the result has {len(text):,} bytes, more than 1 MiB: store it and return a reference"
        return Failed(error_map("result_too_large", message))
    return Completed(value)


def outcome_of_error(
    error: BaseException, step: StepDefinition, attempt: Attempt, random_unit: Callable[[], float]
) -> Outcome:
    """Return the outcome for what a step raised: deferred, failed with or without retry, or interrupted."""
    if isinstance(error, Defer):
        return Deferred(redacted_error(error.reason), error.after)
    if not isinstance(error, Fail) and (lost := infrastructure(error)) is not None:
        return interrupted(lost, attempt)
    return failure(describe_error(error), isinstance(error, Fail), step, attempt, random_unit)


def failure(
    error: JsonObject, final: bool, step: StepDefinition, attempt: Attempt, random_unit: Callable[[], float]
) -> Failed:
    """Return the failure of an attempt, with the retry that its step's policy grants, unless it is final."""
    pause = delay(step.retry, attempt.attempt_number, random_unit())
    if final or pause is None:
        return Failed(error)
    return Failed(error, NextAttempt(f"{attempt.idempotency_key}:{attempt.attempt_number + 1}", pause))


def describe_error(error: BaseException) -> JsonObject:
    """Return an error as it is journalled: type, message, traceback, both bounded and without secrets.

    It is redacted before it is written: it stays in the journal for ever, and nothing is computed from it.
    """
    description: JsonObject = {"type": type(error).__name__, "message": _bounded(_text(error), _LONGEST_MESSAGE)}
    if isinstance(error, Fail):
        return {**description, "details": _details(error)} if error.details else description
    if not isinstance(error, SquidError):
        trace = redacted_text(_trace(error)[-_LONGEST_REDACTED:])[-_LONGEST_TRACEBACK:]
        description["traceback"] = trace.encode("utf-8", "replace").decode().replace("\0", "\\0")
    return description


def interrupted(error: BaseException, attempt: Attempt) -> Interrupted:
    """Return the outcome of an attempt that failed in our code, not in its step; it counts as a delivery.

    It may be claimed again at once the first time, then after pauses that grow to half a minute.
    """
    reason = _bounded(f"it could not be executed: {type(error).__name__}: {_text(error)}", _LONGEST_MESSAGE)
    return Interrupted(reason, _PAUSES[min(max(attempt.deliveries, 1), len(_PAUSES)) - 1])


def error_map(code: str, message: str) -> JsonObject:
    """Return an error of ours, which has a code instead of a type."""
    return {"code": code, "message": _bounded(message, _LONGEST_MESSAGE)}


def _details(error: Fail) -> Any:
    size = len(to_json(error.details))
    if size <= MAX_RESULT_BYTES:
        return redacted(error.details)
    return {"omitted": f"{size:,} bytes, more than 1 MiB: store them elsewhere and give a reference"}


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001  an exception's own code
        return "(its traceback cannot be shown)"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  an exception's own code
        return "(its message cannot be shown)"


def _bounded(text: str, most: int) -> str:
    safe = redacted_text(text[:_LONGEST_REDACTED]).encode("utf-8", "replace").decode().replace("\0", "\\0")
    return safe if len(safe) <= most else safe[: most - 1] + "…"
