"""Steps that fork, close descriptors and change their process, and a worker that executes them.

The worker is `python -m tests.runtime.processes.process_changes URL SCHEMA OPTIONS`.
"""

import asyncio
import faulthandler
import gc
import json
import locale
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import sqlalchemy
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.workflow import StepContext, Workflow
from tests.processes import Child
from tests.runtime.workers import print_line


class ProcessChange(BaseModel):
    """What a step does to its process."""

    change: str


def wait_for(pid: int) -> int:
    """Return how a child ended; one that would not is killed."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 99


def fork_and_return(ctx: StepContext) -> Any:
    """Fork; both processes return."""
    pid = os.fork()
    return "child" if pid == 0 else wait_for(pid)


def fork_and_raise(ctx: StepContext) -> Any:
    """Fork; the child raises."""
    pid = os.fork()
    if pid == 0:
        raise ValueError("in the child")
    return wait_for(pid)


def fork_and_exit(ctx: StepContext) -> Any:
    """Fork; the child exits as scripts do."""
    pid = os.fork()
    if pid == 0:
        sys.exit(7)
    return wait_for(pid)


def fork_and_use_the_journal(ctx: StepContext) -> Any:
    """Fork; the child reads the run by the storage whose connections it has inherited, and then returns."""
    pid = os.fork()
    if pid == 0:
        print_line("read", len(ctx.state))
        return "child"
    return wait_for(pid)


def leave_a_child_and_stay(ctx: StepContext) -> Any:
    """Fork a process that outlives the worker."""
    if os.fork() == 0:
        print_line("orphan", os.getpid())
        time.sleep(60)
        os._exit(0)
    time.sleep(60)


def terminate_a_process(ctx: StepContext) -> Any:
    """Start a process by fork, and terminate it by the API of `multiprocessing`."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    process.join(30)
    code = process.exitcode
    process.kill()
    return code


def close_descriptors(ctx: StepContext) -> Any:
    """Close all that are open, but for the standard ones."""
    os.closerange(3, 512)
    return 0


def close_standard_streams(ctx: StepContext) -> Any:
    """Close what others write to."""
    sys.stdout.close()
    sys.stdin.close()
    return 0


def lower_the_recursion_limit(ctx: StepContext) -> Any:
    """Set a recursion limit that leaves little room on the stack for all threads."""
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + 10)
    return 0


def change_the_process(ctx: StepContext) -> Any:
    """Set all that threads of a process share."""
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
    os.umask(0o777)
    gc.disable()
    socket.setdefaulttimeout(0.001)
    warnings.simplefilter("error")
    locale.setlocale(locale.LC_ALL, "C")
    sys.setswitchinterval(0.5)
    logging.getLogger().handlers.clear()
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    os.environ["PGHOST"] = "nowhere.invalid"
    os.environ["TZ"] = "Asia/Kolkata"
    time.tzset()
    return 0


CHANGES: dict[str, Callable[[StepContext], Any]] = {
    change.__name__: change
    for change in (
        fork_and_return,
        fork_and_raise,
        fork_and_exit,
        fork_and_use_the_journal,
        leave_a_child_and_stay,
        terminate_a_process,
        close_descriptors,
        close_standard_streams,
        lower_the_recursion_limit,
        change_the_process,
    )
}

changing = Workflow("changing", payload=ProcessChange)


@changing.step(max_deliveries=2)
def act(ctx: StepContext, change: str) -> Any:
    """Execute the change in a thread of the worker."""
    return CHANGES[change](ctx)


changing_in_transaction = Workflow("changing_in_transaction", payload=ProcessChange)


@changing_in_transaction.step(transactional=True, max_deliveries=2)
def act_in_transaction(connection: sqlalchemy.Connection, ctx: StepContext, change: str) -> Any:
    """Execute the change in a transaction that has written something."""
    connection.execute(sqlalchemy.text("CREATE TEMPORARY TABLE IF NOT EXISTS something (n int)"))
    return CHANGES[change](ctx)


changing_async = Workflow("changing_async", payload=ProcessChange)


@changing_async.step(max_deliveries=2)
async def act_async(ctx: StepContext, change: str) -> Any:
    """Fork in the loop that all async steps share; the child would go on with all of them."""
    pid = os.fork()
    await asyncio.sleep(0)
    return "child" if pid == 0 else await asyncio.to_thread(wait_for, pid)


changing_isolated = Workflow("changing_isolated", payload=ProcessChange)


@changing_isolated.step(isolate=True, max_deliveries=2)
def act_isolated(ctx: StepContext, change: str) -> Any:
    """Execute the change in a process of its own."""
    return CHANGES[change](ctx)


unchanging = Workflow("unchanging")


@unchanging.step(max_deliveries=2)
async def think() -> int:
    """Return the process id, on the shared loop."""
    await asyncio.sleep(0.01)
    return os.getpid()


@unchanging.step(after=[think], max_deliveries=2)
def do() -> int:
    """Return the process id."""
    return os.getpid()


WORKFLOWS = [changing, changing_in_transaction, changing_async, changing_isolated, unchanging]


def worker_process(storage: PostgresStorage, **options: Any) -> Child:
    """Start a worker; times among its options are seconds."""
    url = storage.engine.url.render_as_string(hide_password=False)
    return Child("tests.runtime.processes.process_changes", url, storage.schema, json.dumps(options))


def main() -> None:
    """Run the worker until it is stopped."""
    url, schema, text = sys.argv[1:]
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.INFO)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = {"lease", "poll", "grace", "housekeeping"}
    options: dict[str, Any] = {
        name: timedelta(seconds=value) if name in seconds else value for name, value in json.loads(text).items()
    }
    with Squid(PostgresStorage(url, schema), WORKFLOWS) as squid:
        worker = squid.new_worker(**options)
        print_line("ready", os.getpid())
        worker.run()
    print_line("over", os.getpid())


if __name__ == "__main__":
    main()
