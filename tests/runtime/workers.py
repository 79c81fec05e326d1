"""Workers in processes and threads of their own, and their steps: `python -m tests.runtime.workers ...`.

A step waits for a file that the test creates; a process prints what it does, line by line.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy
from pydantic import BaseModel

from squid_dagster import WorkerReport
from squid_dagster.api import Squid
from squid_dagster.journal import Answer, PostgresStorage, Storage
from squid_dagster.protocol import dispatch_thread
from squid_dagster.protocol.errors import SquidError
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.runtime.execution.executor import Executor
from squid_dagster.runtime.worker.worker import Worker
from squid_dagster.workflow import Retry, StepContext, Workflow
from squid_dagster.workflow.authoring.step_context import Cancellation
from tests.processes import Child

PATIENCE = 60.0  # seconds until a test that waits for something gives up
NEVER = timedelta(hours=1)  # longer than any test: what happens in spite of it, something else has caused

# --- output and waiting ---------------------------------------------------------------------------------------------


def print_line(*words: object) -> None:
    """Print a line in one unbuffered write, so that lines of several processes stay whole and a kill loses none."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Wait until a condition is true and return its value; fail the test after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < deadline, f"in vain waited for: {what}"
        time.sleep(0.005)
    return value


def wait_for_lines(child: Child, word: str, count: int = 1, patience: float = PATIENCE) -> list[list[str]]:
    """Wait until a child has printed so many lines that begin with a word; return the other words of each."""

    def printed() -> list[list[str]]:
        rests = [line.split()[1:] for line in list(child.lines) if line.split()[:1] == [word]]
        if len(rests) < count and child.process.poll() is not None:
            raise AssertionError(f"the process ended without {word!r}: {child.lines} {child.errors()}")
        return rests if len(rests) >= count else []

    return until(printed, f"{word!r} from a process that printed {child.lines}", patience)  # type: ignore[no-any-return]


# --- steps for processes --------------------------------------------------------------------------------------------


class FileWait(BaseModel):
    """What a step does: wait for a file (a cancel ends that, unless it is deaf), and then succeed or fail."""

    file: str = ""
    fails: bool = False
    deaf: bool = False
    child: bool = False


file_wait = Workflow("file_wait", payload=FileWait)


@file_wait.step
def wait_for_file(ctx: StepContext, file: str, fails: bool, deaf: bool, child: bool) -> dict[str, int]:
    """Print the begin, wait, print the end, and what came of the child that it may start."""
    print_line("begun", ctx.run_id, ctx.fencing_token, os.getpid())
    while file and not Path(file).exists() and (deaf or not ctx.cancelled):
        time.sleep(0.005)
    print_line("cancelled" if ctx.cancelled else "ended", ctx.run_id)
    if child:
        try:
            print_line("child", ctx.start_child_run("file_wait", {}, child_key="late").run_id)
        except SquidError as error:
            print_line("child", type(error).__name__)
    if fails:
        raise ValueError("the step failed")
    return {"pid": os.getpid()}


tally = Workflow("tally", payload=FileWait)
"""One step whose effect is seen outside of the journal: a row in the table `effects`, on a connection of its own."""


@tally.step(retry=Retry(max_attempts=3, initial=timedelta(0)))
def count(ctx: StepContext) -> int:
    """Insert a row."""
    url, schema = os.environ["TALLY_URL"], os.environ["TALLY_SCHEMA"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"INSERT INTO {schema}.effects (run_id, token, pid) VALUES (%s, %s, %s)",
            (ctx.run_id, ctx.fencing_token, os.getpid()),
        )
    return ctx.fencing_token


class Payment(BaseModel):
    """The table that the step writes to; only its author knows it."""

    table: str


payment = Workflow("payment", payload=Payment)
"""One transactional step with two writes, of which the first is announced."""


@payment.step(transactional=True, max_deliveries=1000)
def pay(connection: sqlalchemy.Connection, ctx: StepContext, table: str) -> int:
    """Write two rows, and print a line in between."""
    book = sqlalchemy.text(f"INSERT INTO {table} VALUES (:run_id, :token, :side)")
    connection.execute(book, {"run_id": ctx.run_id, "token": ctx.fencing_token, "side": "debit"})
    print_line("wrote", os.getpid())
    connection.execute(book, {"run_id": ctx.run_id, "token": ctx.fencing_token, "side": "credit"})
    return ctx.fencing_token


lonely = Workflow("lonely")
"""One step in a process of its own, that never ends by itself."""


@lonely.step(isolate=True)
def linger() -> None:
    """Print the process id, and never return."""
    print_line("alone", os.getpid())
    while True:
        time.sleep(0.05)


WORKFLOWS = [file_wait, tally, payment, lonely]

# --- workers --------------------------------------------------------------------------------------------------------


class RunningWorker:
    """A worker that runs in a thread of this process."""

    def __init__(self, worker: Worker) -> None:
        """Start the thread."""
        self.worker = worker
        self._error: BaseException | None = None
        self._report: WorkerReport | None = None
        self._thread = threading.Thread(target=self._run, name="worker-under-test", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._report = self.worker.run()
        except BaseException as error:  # noqa: BLE001  raised by `end`
            self._error = error

    @property
    def ended(self) -> bool:
        """Whether it has returned."""
        return not self._thread.is_alive()

    def end(self, patience: float = PATIENCE) -> WorkerReport:
        """Wait until it returns, and return its report or raise its error."""
        self._thread.join(patience)
        assert self.ended, "the worker does not end"
        if self._error is not None:
            raise self._error
        assert self._report is not None
        return self._report

    def stop(self, patience: float = PATIENCE) -> WorkerReport:
        """Stop the worker, and wait for its end."""
        self.worker.stop()
        return self.end(patience)


@contextmanager
def running_worker(squid: Squid, queue: str | list[str] | None = None, **options: Any) -> Iterator[RunningWorker]:
    """Run a worker for the time of a block. A test that fails in the block waits for none of the steps."""
    working = RunningWorker(squid.new_worker(queue, **options))
    try:
        yield working
    except BaseException:
        working.worker.stop()
        working.worker.stop()
        working.end()
        raise
    if not working.ended:
        working.stop()


def worker_process(storage: PostgresStorage, queue: str = "default", **options: Any) -> Child:
    """Start a worker of `WORKFLOWS` in a process of its own; times among its options are seconds."""
    env = {"TALLY_URL": _plain(storage), "TALLY_SCHEMA": storage.schema}
    return Child("tests.runtime.workers", "worker", _url(storage), storage.schema, queue, json.dumps(options), env=env)


def _url(storage: PostgresStorage) -> str:
    return storage.engine.url.render_as_string(hide_password=False)


def _plain(storage: PostgresStorage) -> str:
    return _url(storage).replace("postgresql+psycopg://", "postgresql://", 1)


# --- facts ----------------------------------------------------------------------------------------------------------


def facts_of(storage: Storage, run_id: str, type_name: str | None = None) -> list[Any]:
    """Return the facts about a run by position, or those of one type."""
    return [entry.fact for entry in storage.read_run(run_id) if type_name in (None, entry.fact.type)]


def queue_facts(storage: Storage, type_name: str, queue: str = "default") -> list[Any]:
    """Return a queue's facts of one type, in order."""
    return [entry.fact for entry in storage.read(dispatch_thread(queue)) if entry.fact.type == type_name]


def status_of(storage: Storage, run_id: str) -> str:
    """Return a run's status by the fold of all of its facts, of which none may be an anomaly."""
    unit = RunUnit.fold(storage.read_run(run_id))
    assert not unit.anomalies, unit.anomalies
    return str(unit.run.status)


def all_done(storage: Storage, run_ids: list[str]) -> Callable[[], bool]:
    """Return the condition that these runs are completed."""
    return lambda: all(status_of(storage, run_id) == "completed" for run_id in run_ids)


def lease_end(storage: Storage, run_id: str) -> datetime:
    """Return the end of the lease that holds a run's only attempt."""
    (attempt,) = RunUnit.fold(storage.read_run(run_id)).dispatch.attempts.values()
    assert attempt.lease_until is not None
    return attempt.lease_until


# --- processes ------------------------------------------------------------------------------------------------------


class _PrintHandler(logging.Handler):
    """A handler that prints what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        print_line("log", record.levelname, record.getMessage())


def _work(storage: PostgresStorage, queue: str, options: dict[str, Any]) -> None:
    seconds = {"lease", "poll", "grace", "max_age", "housekeeping"}
    given: dict[str, Any] = {
        name: timedelta(seconds=value) if name in seconds else value for name, value in options.items()
    }
    logging.basicConfig(level=logging.INFO, handlers=[_PrintHandler()])
    with Squid(storage, WORKFLOWS) as squid:
        worker = squid.new_worker(queue, **given)
        print_line("ready", os.getpid())
        report = worker.run()
    print_line("report", str(report))
    counts = ("claimed", "completed", "failed", "retried", "released", "refused", "commits")
    print_line("counts", json.dumps({name: getattr(report, name) for name in counts}))


def counts_of(child: Child) -> dict[str, int]:
    """Return the counts of the report that a worker process printed at its end."""
    counts: dict[str, int] = json.loads(" ".join(wait_for_lines(child, "counts")[0]))
    return counts


# --- processes that are to be killed --------------------------------------------------------------------------------


class ForkServer:
    """A process that has imported everything and forks others on demand, each of which executes one attempt at SIGUSR2.

    They print `ready`, `wrote` and `answered`, each with their pid, and live until they are killed.
    """

    def __init__(self, storage: PostgresStorage, lease_seconds: float) -> None:
        """Start it."""
        arguments = (_url(storage), storage.schema, "default", json.dumps({"lease": lease_seconds}))
        self.child = Child("tests.runtime.workers", "fork_server", *arguments)
        wait_for_lines(self.child, "fork_server")
        self._taken = 0
        self._asked = 0

    def fork(self) -> None:
        """Fork one more process."""
        self._asked += 1
        self.child.process.send_signal(signal.SIGUSR1)
        wait_for_lines(self.child, "forked", self._asked)  # one at a time: two signals that are pending count as one

    def next_pid(self) -> int:
        """Return the pid of the next process that is ready."""
        self._taken += 1
        return int(wait_for_lines(self.child, "ready", self._taken)[self._taken - 1][0])

    def has_printed(self, word: str, pid: int) -> bool:
        """Return whether that process has printed the word."""
        return f"{word} {pid}" in self.child.lines


def _serve_forks(url: str, schema: str, options: dict[str, Any]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no exit code is read
    fork_server = os.getpid()
    print_line("fork_server", fork_server)
    while True:
        signal.sigwait({signal.SIGUSR1})
        if os.fork() == 0:
            _execute_one(PostgresStorage(url, schema), timedelta(seconds=options["lease"]), fork_server)
            os._exit(0)
        print_line("forked")


def _execute_one(storage: PostgresStorage, lease: timedelta, fork_server: int) -> None:
    """Execute one attempt at SIGUSR2, and wait to be killed; end when the fork server is gone."""
    squid = Squid(storage, WORKFLOWS)
    runtime = squid.runtime
    storage.now()
    with storage.step_engine.connect():
        pass
    print_line("ready", os.getpid())
    while not signal.sigtimedwait({signal.SIGUSR2}, 0.2):
        if os.getppid() != fork_server:
            return
    (claim,) = runtime.dispatch.claim("default", f"doomed-{os.getpid()}", lease=lease)
    answer = Executor(runtime, asyncio.run).perform(claim, Cancellation())
    assert isinstance(answer, Answer)
    print_line("answered", os.getpid())
    while os.getppid() == fork_server:
        time.sleep(0.2)


if __name__ == "__main__":
    kind, url, schema, queue, options = sys.argv[1:6]
    if kind == "fork_server":
        _serve_forks(url, schema, json.loads(options))
    assert kind == "worker"
    _work(PostgresStorage(url, schema), queue, json.loads(options))
