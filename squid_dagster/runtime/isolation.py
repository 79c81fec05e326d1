"""Steps with `isolate=True`: each call in a process of its own, so that a crash or a leak there stays there."""

import multiprocessing
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from squid_dagster.journal.dispatch import Failed, Outcome
from squid_dagster.runtime.execution import Call, error_map, outcome_of_error
from squid_dagster.workflow.context import Cancellation, StepContext

_LOOK = 0.2  # seconds between two looks at the cancellation
_processes = multiprocessing.get_context("spawn")


def run_isolated(
    call: Call,
    cancelled: Cancellation,
    random_unit: Callable[[], float],
    completed: Callable[[Any], Outcome],
) -> Outcome:
    """Call a step in a new process and give what came of it; a cancellation kills the process.

    A process that dies is a failure of the step, which its `Retry` governs. The function must be importable by its
    name, and its resources must be picklable.
    """
    assert call.task is not None  # noqa: S101  built-ins are never isolated
    try:
        work = pickle.dumps((call.task.function, call.task.is_async, _portable(call.arguments)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        message = f"step {call.step.name!r} cannot run isolated: {error}; define it, and what it takes, at module level"
        return Failed(error_map("not_isolatable", message))
    mine, theirs = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_work, args=(work, theirs), name=f"squid-{call.step.name}")
    process.start()
    theirs.close()
    try:
        while not wait([mine, process.sentinel], _LOOK):
            if cancelled:
                process.kill()
        answer = mine.recv() if mine.poll() else None
    except EOFError:
        answer = None
    finally:
        process.join()
        mine.close()
    if answer is None:
        died = ChildProcessError(f"the process of step {call.step.name!r} ended with code {process.exitcode}")
        return outcome_of_error(died, call.step, call.attempt, random_unit)
    succeeded, value = answer
    return completed(value) if succeeded else outcome_of_error(value, call.step, call.attempt, random_unit)


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
    import asyncio

    try:
        function, is_async, arguments = pickle.loads(work)  # noqa: S301  made by our own parent
        values = {name: value.context() if isinstance(value, _Portable) else value for name, value in arguments.items()}
        returned = function(**values)
        found = (True, asyncio.run(returned) if is_async else returned)
        pickle.dumps(found)
    except BaseException as error:  # noqa: BLE001  whatever it was, the parent wants to know
        found = (False, _crossing(error))
    answer.send(found)
    answer.close()


def _crossing(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes
    except Exception:  # noqa: BLE001  an exception's own code
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
