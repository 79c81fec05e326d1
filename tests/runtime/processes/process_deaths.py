"""Steps that end their worker's process, and a supervisor that restarts the worker.

The supervisor is `python -m tests.runtime.processes.process_deaths URL SCHEMA OPTIONS`. It has imported everything and
forks, so that a restart takes no time. It prints `ended` and the exit code of each worker.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.workflow import StepContext, Workflow
from tests.processes import Child
from tests.runtime.workers import print_line

MAX_DELIVERIES = 3


def exit_at_once() -> None:
    """End by `os._exit`."""
    os._exit(3)


def read_address_zero() -> None:
    """End by SIGSEGV."""
    ctypes.string_at(0)


def kill_itself() -> None:
    """End as by the kernel when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def abort() -> None:
    """End as by a failed assertion in C."""
    os.abort()


DEATHS = {"exit": exit_at_once, "segfault": read_address_zero, "kill": kill_itself, "abort": abort}


class DeathOptions(BaseModel):
    """What a step does: sleep, or end its process by one of `DEATHS` once so many steps have begun in it."""

    death: str = ""
    seconds: float = 0.0
    begun_before: int = 0  # begun in this process, this one included
    notes: str = ""  # a directory


def _note(ctx: StepContext, options: DeathOptions) -> None:
    Path(options.notes, f"{os.getpid()}-{ctx.run_id}-{ctx.fencing_token}").touch()


def _begun_here(options: DeathOptions) -> int:
    return len(list(Path(options.notes).glob(f"{os.getpid()}-*")))


def _execute(ctx: StepContext, options: DeathOptions) -> int:
    """End the process once enough steps have begun in it, or at once after the first delivery; others wait for that."""
    _note(ctx, options)
    while ctx.fencing_token == 1 and _begun_here(options) < options.begun_before:
        time.sleep(0.005)
    if options.death:
        DEATHS[options.death]()
    time.sleep(30 if options.begun_before and ctx.fencing_token == 1 else options.seconds)
    return os.getpid()


deadly = Workflow("deadly", payload=DeathOptions)


@deadly.step(max_deliveries=MAX_DELIVERIES)
def visit(ctx: StepContext, death: str, seconds: float, begun_before: int, notes: str) -> int:
    """Execute the options in a thread of the worker."""
    return _execute(ctx, DeathOptions(death=death, seconds=seconds, begun_before=begun_before, notes=notes))


deadly_in_transactions = Workflow("deadly_in_transactions", payload=DeathOptions)


@deadly_in_transactions.step(max_deliveries=MAX_DELIVERIES, transactional=True)
def visit_in_transaction(
    connection: sqlalchemy.Connection, ctx: StepContext, death: str, seconds: float, begun_before: int, notes: str
) -> int:
    """Execute the options in a transaction."""
    connection.execute(sqlalchemy.text("SELECT 1"))
    return _execute(ctx, DeathOptions(death=death, seconds=seconds, begun_before=begun_before, notes=notes))


deadly_in_processes = Workflow("deadly_in_processes", payload=DeathOptions)


@deadly_in_processes.step(max_deliveries=MAX_DELIVERIES, isolate=True)
def visit_in_process(death: str) -> int:
    """End the process of the isolated step, or return."""
    if death:
        DEATHS[death]()
    return os.getpid()


WORKFLOWS = [deadly, deadly_in_transactions, deadly_in_processes]


def supervise(storage: PostgresStorage, **options: Any) -> Child:
    """Start a supervisor of one worker, whose times are seconds; with `execute_next`, of a loop of that."""
    url = storage.engine.url.render_as_string(hide_password=False)
    return Child("tests.runtime.processes.process_deaths", url, storage.schema, json.dumps(options))


def _work(url: str, schema: str, options: dict[str, Any]) -> None:
    one_by_one = options.pop("execute_next", False)
    seconds = {"lease", "poll", "grace", "housekeeping"}
    given: dict[str, Any] = {
        name: timedelta(seconds=value) if name in seconds else value for name, value in options.items()
    }
    with Squid(PostgresStorage(url, schema), WORKFLOWS) as squid:
        if not one_by_one:
            squid.new_worker(**given).run()
            return
        while True:
            if squid.execute_next(lease=given["lease"]) is None:
                time.sleep(0.02)


def main() -> None:
    """Restart a worker whenever it ends, until told to stop."""
    url, schema, options = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    while not stopped:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _work(url, schema, json.loads(options))
            os._exit(0)
        print_line("began", pid)
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                break
            if stopped or os.getppid() == 1:
                stopped.append(1)
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        if not stopped:
            print_line("ended", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
