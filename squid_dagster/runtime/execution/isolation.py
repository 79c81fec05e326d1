"""Steps with `isolate=True`: each call in a process of its own, so that a crash or leak does not affect the worker."""

import asyncio
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from squid_dagster.journal.contract.dispatch_store import Deferred, Failed, Outcome
from squid_dagster.protocol.errors import StorageUnavailable
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.redaction import redacted_error
from squid_dagster.runtime.execution.step_calls import infrastructure
from squid_dagster.runtime.execution.step_execution import (
    Call,
    call_function,
    completed,
    describe_error,
    error_map,
    failure,
    interrupted,
    outcome_of_error,
)
from squid_dagster.workflow.authoring.step_context import Cancellation, StepContext
from squid_dagster.workflow.authoring.step_outcomes import Defer, Fail

_POLL = 0.2  # seconds between two checks of the cancellation
_LINGER = 2.0  # seconds for a process to exit once it has sent its answer
_processes = multiprocessing.get_context("spawn")


class _Raised(NamedTuple):
    """The description of what a step raised: another process may not be able to unpickle the exception."""

    error: JsonObject
    final: bool
    lost: str | None = None  # a failure of the database that it came from


def run_isolated(call: Call, cancelled: Cancellation, random_unit: Callable[[], float]) -> Outcome:
    """Call a step in a new process and return its outcome; a cancellation kills the process.

    A process that dies is a failure of the step, to which its `Retry` applies. The function must be importable by its
    name, and its resources must be picklable. Results are sent as JSON, and errors as text.
    """
    assert call.task is not None  # noqa: S101  built-ins are never isolated
    arguments = _portable(call.arguments)  # reads the run's state, whose errors are not the step's
    try:
        work = pickle.dumps((call.task.function, call.task.is_async, call.step.name, arguments))
    except Exception as error:  # noqa: BLE001  pickling runs the author's code, which may raise anything
        message = f"step {call.step.name!r} cannot run isolated: {error}; define it, and what it takes, at module level"
        return Failed(error_map("not_isolatable", message))
    mine, theirs = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_work, args=(work, theirs), name=f"squid-{call.step.name}")
    with mine, theirs:
        process.start()
        theirs.close()
        try:
            answer = _answer(mine, process, cancelled)
            process.join(_LINGER)
        finally:  # interrupted, or kept alive by a thread of the step
            process.kill()
            process.join()
    if answer is None:
        died = ChildProcessError(f"the process of step {call.step.name!r} ended with code {process.exitcode}")
        return outcome_of_error(died, call.step, call.attempt, random_unit)
    if isinstance(answer, _Raised):
        if answer.lost is not None:
            return interrupted(StorageUnavailable(answer.lost), call.attempt)
        return failure(answer.error, answer.final, call.step, call.attempt, random_unit)
    return answer


def _answer(mine: Connection, process: BaseProcess, cancelled: Cancellation) -> Outcome | _Raised | None:
    """Wait for the answer of the process; return None if it dies without one."""
    while not wait([mine, process.sentinel], _POLL):
        if cancelled:
            process.kill()
    try:
        answer: Outcome | _Raised | None = mine.recv() if mine.poll() else None
    except (EOFError, OSError):  # it died before it had sent its answer
        return None
    return answer


def _portable(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that can be pickled: of a context, its plain fields and its state as it is now."""
    return {name: _Portable(value) if isinstance(value, StepContext) else value for name, value in arguments.items()}


class _Portable:
    """A picklable context: what cannot be pickled (logger, cancellation, starting children) is created anew there."""

    def __init__(self, context: StepContext) -> None:
        names = ("run_id", "workflow", "step", "runnable_key", "idempotency_key", "attempt", "fencing_token")
        self.fields = {name: getattr(context, name) for name in names} | {"state": dict(context.state)}

    def context(self) -> StepContext:
        return StepContext(**self.fields)


def _work(work: bytes, answer: Connection) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer.send(_outcome(work))
    answer.close()


def _end_with_parent() -> None:
    """Exit when the worker ends in any way: no process would receive the answer."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _outcome(work: bytes) -> Outcome | _Raised:
    try:
        function, is_async, step, arguments = pickle.loads(work)  # noqa: S301  pickled by our own parent
        values = {name: value.context() if isinstance(value, _Portable) else value for name, value in arguments.items()}
        return completed(call_function(function, values, step, asyncio.run, is_async))
    except Defer as error:
        return Deferred(redacted_error(error.reason), error.after)
    except BaseException as error:  # noqa: BLE001  sent to the parent
        final = isinstance(error, Fail)
        lost = None if final else infrastructure(error)
        return _Raised(describe_error(error), final, None if lost is None else str(lost))
