"""Steps with `isolate=True`: each call in a process of its own, so that a crash or a leak there stays there."""

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

_LOOK = 0.2  # seconds between two looks at the cancellation
_LINGER = 2.0  # seconds that a process has to end once it has said everything
_processes = multiprocessing.get_context("spawn")


class _Raised(NamedTuple):
    """What a step raised, in words: the exception itself may be one that no other process can rebuild."""

    error: JsonObject
    final: bool
    lost: str | None = None  # a failure of the database that it came from


def run_isolated(call: Call, cancelled: Cancellation, random_unit: Callable[[], float]) -> Outcome:
    """Call a step in a new process and give what came of it; a cancellation kills the process.

    A process that dies is a failure of the step, which its `Retry` governs. The function must be importable by its
    name, and its resources must be picklable. Results become JSON, and errors words, before they come back.
    """
    assert call.task is not None  # noqa: S101  built-ins are never isolated
    arguments = _portable(call.arguments)  # reads the run's state: whatever that raises is none of the step's
    try:
        work = pickle.dumps((call.task.function, call.task.is_async, call.step.name, arguments))
    except Exception as error:  # noqa: BLE001  what is pickled is code of the author's and may raise anything
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
        finally:  # interrupted, or kept alive by a thread that the step has left behind
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
    """Wait for what the process says; None when it dies without a word."""
    while not wait([mine, process.sentinel], _LOOK):
        if cancelled:
            process.kill()
    try:
        answer: Outcome | _Raised | None = mine.recv() if mine.poll() else None
    except (EOFError, OSError):  # it died before it had said everything
        return None
    return answer


def _portable(arguments: dict[str, Any]) -> dict[str, Any]:
    """Give arguments that can cross: a context takes its plain fields along, and its state as it is now."""
    return {name: _Portable(value) if isinstance(value, StepContext) else value for name, value in arguments.items()}


class _Portable:
    """A context on its way: what cannot cross (logger, cancellation, starting children) is made anew over there."""

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
    """End when the worker does, however it ends: nobody would take what comes of the step."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _outcome(work: bytes) -> Outcome | _Raised:
    try:
        function, is_async, step, arguments = pickle.loads(work)  # noqa: S301  made by our own parent
        values = {name: value.context() if isinstance(value, _Portable) else value for name, value in arguments.items()}
        return completed(call_function(function, values, step, asyncio.run, is_async))
    except Defer as error:
        return Deferred(redacted_error(error.reason), error.after)
    except BaseException as error:  # noqa: BLE001  whatever it was, the parent wants to know
        final = isinstance(error, Fail)
        lost = None if final else infrastructure(error)
        return _Raised(describe_error(error), final, None if lost is None else str(lost))
