"""Steps with `isolate=True`: a process of their own, whose end, however it comes, is an outcome like any other."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.workflow import Defer, Fail, Resource, Retry, StepContext, Workflow, path
from tests.processes import children
from tests.runtime.workers import (
    PATIENCE,
    facts_of,
    lonely,
    running_worker,
    status_of,
    until,
    wait_for_lines,
    worker_process,
)

AGAIN = Retry(max_attempts=2, initial=timedelta(0))


class Item(BaseModel):
    """What a step is to do."""

    what: str = "complete"
    directory: str = ""


class Declined(Fail):
    """A failure that cannot be made from its message alone."""

    def __init__(self, card: str, amount: int) -> None:
        super().__init__(f"{card} declined {amount}", {"amount": amount})


class Odd(Exception):
    """An exception that no other process could rebuild."""

    def __init__(self, *, lock: object) -> None:
        super().__init__("odd one")
        self.lock = lock


class Stubborn:
    """Something that can be sent and not received."""

    def __init__(self, needed: int) -> None:
        self.needed = needed

    def __reduce__(self) -> tuple[Any, ...]:
        return (Stubborn, ())


def act(ctx: StepContext, what: str, directory: str, box: Annotated[list[str], Resource("box")]) -> Any:
    """Execute what the test asks for."""
    if what in _RAISED:
        raise _RAISED[what]()
    if what in _ENDS:
        _ENDS[what]()
    if what == "hang":
        (Path(directory) / "pid").write_text(str(os.getpid()))
        while True:
            time.sleep(0.05)
    if what == "tell":
        about = {"pid": os.getpid(), "parent": os.getppid(), "box": box, "state": dict(ctx.state)}
        return {**about, "key": ctx.idempotency_key, "token": ctx.fencing_token, "run_id": ctx.run_id}
    return _RESULTS[what]()


_RAISED: dict[str, Callable[[], BaseException]] = {
    "raise": lambda: ValueError("no such order"),
    "fail": lambda: Declined("visa", 7),
    "defer": lambda: Defer("not yet", after=timedelta(hours=1)),
    "odd": lambda: Odd(lock=threading.Lock()),
    "exit": lambda: SystemExit(3),
}
_ENDS: dict[str, Callable[[], object]] = {
    "_exit": lambda: os._exit(7),
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}
_RESULTS: dict[str, Callable[[], object]] = {
    "complete": lambda: "complete",
    "unsendable": threading.Lock,
    "model": lambda: Item(what="given back"),
    "large": lambda: "x" * 2**21,
    "linger": lambda: threading.Thread(target=time.sleep, args=(3600,)).start(),
}


async def act_later(what: str) -> str:
    """Execute it on an event loop."""
    if what == "raise":
        raise ValueError("no such order")
    return what


def isolated(function: Any = act, **options: Any) -> Workflow:
    workflow = Workflow("alone", payload=Item)
    workflow.step(name="step", isolate=True, **options)(function)
    return workflow


def do(what: str, function: Any = act, **options: Any) -> Any:
    """Execute one isolated attempt; give the fact that settled it."""
    journal = MemoryStorage()
    squid = Squid(journal, isolated(function, **options), resources={"box": ["a thing"]})
    run_id = squid.start("alone", {"what": what}).run_id
    assert squid.execute_next() is not None
    settled = ("attempt_completed", "attempt_failed", "attempt_released")
    return next(fact for fact in facts_of(journal, run_id) if fact.type in settled)


def test_an_isolated_step_runs_in_a_process_of_its_own_and_knows_what_others_know() -> None:
    completed = do("tell")
    result = completed.result
    assert result["parent"] == os.getpid()
    assert result["pid"] != os.getpid()
    assert result["box"] == ["a thing"]
    assert result["state"] == {"what": "tell", "directory": ""}
    assert (result["run_id"], result["token"]) == (completed.run_id, 1)
    assert result["key"] == f"{completed.run_id}:step:1"


def test_an_isolated_async_step_runs_on_a_loop_of_its_own() -> None:
    assert do("fine", act_later).result == "fine"
    assert do("raise", act_later).error["message"] == "no such order"


@pytest.mark.parametrize(
    ("what", "code"), [("_exit", "7"), ("segfault", str(-signal.SIGSEGV)), ("kill", str(-signal.SIGKILL))]
)
def test_a_process_that_dies_is_a_failed_attempt_that_the_policy_governs(what: str, code: str) -> None:
    failed = do(what, retry=AGAIN)
    assert failed.error["type"] == "ChildProcessError"
    assert failed.error["message"] == f"the process of step 'step' ended with code {code}"
    assert failed.retry_runnable_key == f"{failed.run_id}:step:1:2"


def test_an_error_crosses_the_border_with_type_message_and_the_traceback_from_over_there() -> None:
    failed = do("raise", retry=AGAIN)
    assert (failed.error["type"], failed.error["message"]) == ("ValueError", "no such order")
    assert "in act" in failed.error["traceback"]
    assert failed.retry_runnable_key is not None


def test_a_final_failure_crosses_the_border_whole_and_is_not_tried_again() -> None:
    failed = do("fail", retry=AGAIN)
    assert failed.error == {"type": "Declined", "message": "visa declined 7", "details": {"amount": 7}}
    assert failed.retry_runnable_key is None


def test_a_deferral_crosses_the_border() -> None:
    released = do("defer")
    assert (released.type, released.reason) == ("attempt_released", "not yet")
    assert released.visible_at - released.occurred_at == timedelta(hours=1)


def test_an_exception_that_nobody_could_rebuild_crosses_by_type_and_message() -> None:
    failed = do("odd")
    assert (failed.error["type"], failed.error["message"]) == ("Odd", "odd one")


def test_sys_exit_over_there_is_a_failure() -> None:
    failed = do("exit")
    assert (failed.error["type"], failed.error["message"]) == ("SystemExit", "3")


def test_results_become_json_over_there() -> None:
    assert do("model").result == {"what": "given back", "directory": ""}
    assert do("unsendable").error["code"] == "invalid_result"
    assert do("large").error["code"] == "result_too_large"


def test_a_thread_that_a_step_leaves_behind_keeps_nobody_waiting() -> None:
    assert do("linger").type == "attempt_completed"


def test_what_cannot_be_sent_is_a_failure_that_says_how_to_write_it() -> None:
    def nested(what: str) -> str:
        return what

    local = do("any", nested, retry=AGAIN)
    assert local.error["code"] == "not_isolatable"
    assert "'step' cannot run isolated" in local.error["message"]
    assert "module level" in local.error["message"]
    assert local.retry_runnable_key is None


@pytest.mark.parametrize("resource", [threading.Lock(), Stubborn(1)], ids=["cannot be sent", "cannot be received"])
def test_a_resource_that_cannot_cross_is_a_failure_and_no_hang(resource: object) -> None:
    journal = MemoryStorage()
    squid = Squid(journal, isolated(), resources={"box": resource})
    run_id = squid.start("alone").run_id
    assert squid.worker(until_idle=True).failed == 1
    (failed,) = facts_of(journal, run_id, "attempt_failed")
    assert failed.error.get("code") == "not_isolatable" or failed.error["type"] == "TypeError"


def test_an_error_route_can_ask_about_an_error_from_over_there() -> None:
    workflow = isolated()
    workflow.step(name="apologise")(lambda: "sorry")
    workflow.route("step", to="complete")
    workflow.route("step", on="error", to="apologise", when=path("error.type") == "Declined")
    workflow.route("step", on="error", to="fail")
    workflow.route("apologise", to="complete")
    squid = Squid(MemoryStorage(), workflow, resources={"box": []})
    run_id = squid.start("alone", {"what": "fail"}).run_id
    squid.worker(until_idle=True)
    assert squid.inspect_run(run_id).outputs == {"apologise": "sorry"}


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _pid(directory: Path) -> int:
    text: str = until(lambda: (directory / "pid").exists() and (directory / "pid").read_text(), "the process")
    return int(text)


def test_a_cancellation_kills_the_process(postgres: PostgresStorage, tmp_path: Path) -> None:
    squid = Squid(postgres, isolated(), resources={"box": []})
    run_id = squid.start("alone", {"what": "hang", "directory": str(tmp_path)}).run_id
    with running_worker(squid, lease=timedelta(seconds=1)) as working:
        pid = _pid(tmp_path)
        squid.cancel(run_id)
        until(lambda: _gone(pid), "the end of the process")
        until(lambda: working.worker.report.refused == 1, "the refusal of what came of it")
    assert status_of(postgres, run_id) == "cancelled"


def test_a_worker_that_stops_kills_the_process_and_gives_the_attempt_back(
    postgres: PostgresStorage, tmp_path: Path
) -> None:
    squid = Squid(postgres, isolated(), resources={"box": []})
    run_id = squid.start("alone", {"what": "hang", "directory": str(tmp_path)}).run_id
    with running_worker(squid, grace=timedelta(0)) as working:
        pid = _pid(tmp_path)
        assert working.stop().released == 1
    until(lambda: _gone(pid), "the end of the process")
    assert facts_of(postgres, run_id)[-1].type == "attempt_released"


def test_the_process_of_a_worker_that_was_killed_ends_too(postgres: PostgresStorage) -> None:
    with children() as started:
        Squid(postgres, lonely).start("lonely")
        started.append(worker_process(postgres))
        ((pid,),) = wait_for_lines(started[0], "alone")
        started[0].process.kill()
        until(lambda: _gone(int(pid)), "the end of the process")
        started[0].end(PATIENCE)


def test_a_worker_process_that_ends_leaves_no_process_behind(postgres: PostgresStorage) -> None:
    with children() as started:
        run_id = Squid(postgres, lonely).start("lonely").run_id
        started.append(worker_process(postgres, grace=0))
        ((pid,),) = wait_for_lines(started[0], "alone")
        started[0].process.terminate()
        assert started[0].end(PATIENCE) == 0
        until(lambda: _gone(int(pid)), "the end of the process")
    assert facts_of(postgres, run_id)[-1].type == "attempt_released"
