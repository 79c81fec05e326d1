"""Workers in processes and threads of their own, and the steps that they run: `python -m tests.runtime.workers ...`.

A step that waits does so for a file, so that a test says when it goes on; a process says what it does, line by line.
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

from squid_dagster.api import Squid
from squid_dagster.journal import Answer, PostgresStorage, Storage
from squid_dagster.protocol import dispatch_thread
from squid_dagster.protocol.errors import SquidError
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.runtime.execution.executor import Executor
from squid_dagster.runtime.worker.report import WorkerReport
from squid_dagster.runtime.worker.worker import Worker
from squid_dagster.workflow import Retry, StepContext, Workflow
from squid_dagster.workflow.authoring.step_context import Cancellation
from tests.processes import Child

PATIENCE = 60.0  # seconds until a test that waits for something gives up
NEVER = timedelta(hours=1)  # longer than any test: what happens in spite of it, something else has caused

# --- saying and waiting ---------------------------------------------------------------------------------------------


def say(*words: object) -> None:
    """Tell the test; in one unbuffered write, so that lines of several processes stay whole and a kill loses none."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Wait for something to become true, and give it; fail the test when it does not."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline, f"in vain waited for: {what}"
        time.sleep(0.005)
    return found


def hear(child: Child, word: str, count: int = 1, patience: float = PATIENCE) -> list[list[str]]:
    """Wait until a child has said so many lines that begin with a word; give the rest of each."""

    def said() -> list[list[str]]:
        found = [line.split()[1:] for line in list(child.lines) if line.split()[:1] == [word]]
        if len(found) < count and child.process.poll() is not None:
            raise AssertionError(f"the process ended without {word!r}: {child.lines} {child.errors()}")
        return found if len(found) >= count else []

    return until(said, f"{word!r} from a process that said {child.lines}", patience)  # type: ignore[no-any-return]


# --- steps for processes --------------------------------------------------------------------------------------------


class Errand(BaseModel):
    """What a step is to do: wait for a file, unless it is told to stop and not deaf, and then succeed or fail."""

    gate: str = ""
    fails: bool = False
    deaf: bool = False
    child: bool = False


errand = Workflow("errand", payload=Errand)


@errand.step
def walk(ctx: StepContext, gate: str, fails: bool, deaf: bool, child: bool) -> dict[str, int]:
    """Say that it began, wait, say how it ends, and what comes of the child that it may start."""
    say("begun", ctx.run_id, ctx.fencing_token, os.getpid())
    while gate and not Path(gate).exists() and (deaf or not ctx.cancelled):
        time.sleep(0.005)
    say("cancelled" if ctx.cancelled else "ended", ctx.run_id)
    if child:
        try:
            say("child", ctx.start_child_run("errand", {}, child_key="late").run_id)
        except SquidError as error:
            say("child", type(error).__name__)
    if fails:
        raise ValueError("the errand failed")
    return {"pid": os.getpid()}


tally = Workflow("tally", payload=Errand)
"""One step whose effect is seen outside of the journal: a row in the table `effects`, on a connection of its own."""


@tally.step(retry=Retry(max_attempts=3, initial=timedelta(0)))
def count(ctx: StepContext) -> int:
    """Leave a row."""
    url, schema = os.environ["TALLY_URL"], os.environ["TALLY_SCHEMA"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"INSERT INTO {schema}.effects (run_id, token, pid) VALUES (%s, %s, %s)",
            (ctx.run_id, ctx.fencing_token, os.getpid()),
        )
    return ctx.fencing_token


class Payment(BaseModel):
    """Where the step books, which nobody but its author knows."""

    table: str


payment = Workflow("payment", payload=Payment)
"""One transactional step with two writes, of which the first is announced."""


@payment.step(transactional=True, max_deliveries=1000)
def pay(connection: sqlalchemy.Connection, ctx: StepContext, table: str) -> int:
    """Write two rows, with a word to the test in between."""
    book = sqlalchemy.text(f"INSERT INTO {table} VALUES (:run_id, :token, :side)")
    connection.execute(book, {"run_id": ctx.run_id, "token": ctx.fencing_token, "side": "debit"})
    say("wrote", os.getpid())
    connection.execute(book, {"run_id": ctx.run_id, "token": ctx.fencing_token, "side": "credit"})
    return ctx.fencing_token


lonely = Workflow("lonely")
"""One step in a process of its own, that never ends by itself."""


@lonely.step(isolate=True)
def linger() -> None:
    """Say who it is, and stay."""
    say("alone", os.getpid())
    while True:
        time.sleep(0.05)


WORKFLOWS = [errand, tally, payment, lonely]

# --- workers --------------------------------------------------------------------------------------------------------


class AtWork:
    """A worker that runs in a thread of this process."""

    def __init__(self, worker: Worker) -> None:
        """Let it begin."""
        self.worker = worker
        self._error: BaseException | None = None
        self._report: WorkerReport | None = None
        self._thread = threading.Thread(target=self._run, name="worker-under-test", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._report = self.worker.run()
        except BaseException as error:  # noqa: BLE001  told to whoever waits for the end
            self._error = error

    @property
    def ended(self) -> bool:
        """Whether it has returned."""
        return not self._thread.is_alive()

    def end(self, patience: float = PATIENCE) -> WorkerReport:
        """Wait until it returns, and give its report; raises what it raised."""
        self._thread.join(patience)
        assert self.ended, "the worker does not end"
        if self._error is not None:
            raise self._error
        assert self._report is not None
        return self._report

    def stop(self, patience: float = PATIENCE) -> WorkerReport:
        """Ask it to stop, and wait for its end."""
        self.worker.stop()
        return self.end(patience)


@contextmanager
def at_work(squid: Squid, queue: str | list[str] | None = None, **options: Any) -> Iterator[AtWork]:
    """Run a worker for the time of a block. A test that fails in it waits for none of the steps."""
    working = AtWork(squid.new_worker(queue, **options))
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


# --- looking --------------------------------------------------------------------------------------------------------


def facts_of(storage: Storage, run_id: str, type_name: str | None = None) -> list[Any]:
    """Give the facts about a run by position, or those of one type."""
    return [entry.fact for entry in storage.read_run(run_id) if type_name in (None, entry.fact.type)]


def queue_facts(storage: Storage, type_name: str, queue: str = "default") -> list[Any]:
    """Give a queue's facts of one type, in order."""
    return [entry.fact for entry in storage.read(dispatch_thread(queue)) if entry.fact.type == type_name]


def status_of(storage: Storage, run_id: str) -> str:
    """Give a run's status by the fold of all of its facts, of which none may be an anomaly."""
    unit = RunUnit.fold(storage.read_run(run_id))
    assert not unit.anomalies, unit.anomalies
    return str(unit.run.status)


def all_done(storage: Storage, run_ids: list[str]) -> Callable[[], bool]:
    """Give the condition that these runs are completed."""
    return lambda: all(status_of(storage, run_id) == "completed" for run_id in run_ids)


def lease_end(storage: Storage, run_id: str) -> datetime:
    """Give the end of the lease that holds a run's only attempt."""
    (attempt,) = RunUnit.fold(storage.read_run(run_id)).dispatch.attempts.values()
    assert attempt.lease_until is not None
    return attempt.lease_until


# --- processes ------------------------------------------------------------------------------------------------------


class _Said(logging.Handler):
    """Says what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        say("log", record.levelname, record.getMessage())


def _work(storage: PostgresStorage, queue: str, options: dict[str, Any]) -> None:
    seconds = {"lease", "poll", "grace", "max_age", "housekeeping"}
    given = {name: timedelta(seconds=value) if name in seconds else value for name, value in options.items()}
    logging.basicConfig(level=logging.INFO, handlers=[_Said()])
    with Squid(storage, WORKFLOWS) as squid:
        worker = squid.new_worker(queue, **given)
        say("ready", os.getpid())
        report = worker.run()
    say("report", str(report))
    counts = ("claimed", "completed", "failed", "retried", "released", "refused", "commits")
    say("counts", json.dumps({name: getattr(report, name) for name in counts}))


def counts_of(child: Child) -> dict[str, int]:
    """Give the counts of the report that a worker process printed at its end."""
    found: dict[str, int] = json.loads(" ".join(hear(child, "counts")[0]))
    return found


# --- processes that are to be killed --------------------------------------------------------------------------------


class Nursery:
    """A process that has imported everything and forks others on demand, each of which executes one attempt when told.

    They say `ready`, `wrote` and `answered`, each with their pid, and live until they are killed.
    """

    def __init__(self, storage: PostgresStorage, lease_seconds: float) -> None:
        """Start it."""
        arguments = (_url(storage), storage.schema, "default", json.dumps({"lease": lease_seconds}))
        self.child = Child("tests.runtime.workers", "nursery", *arguments)
        hear(self.child, "nursery")
        self._taken = 0
        self._asked = 0

    def ask(self) -> None:
        """Have one more prepared."""
        self._asked += 1
        self.child.process.send_signal(signal.SIGUSR1)
        hear(self.child, "forked", self._asked)  # one at a time: two signals that are pending count as one

    def take(self) -> int:
        """Give the pid of the next one that is prepared."""
        self._taken += 1
        return int(hear(self.child, "ready", self._taken)[self._taken - 1][0])

    def said(self, word: str, pid: int) -> bool:
        """Tell whether that one has said the word."""
        return f"{word} {pid}" in self.child.lines


def _nurse(url: str, schema: str, options: dict[str, Any]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    nursery = os.getpid()
    say("nursery", nursery)
    while True:
        signal.sigwait({signal.SIGUSR1})
        if os.fork() == 0:
            _execute_one(PostgresStorage(url, schema), timedelta(seconds=options["lease"]), nursery)
            os._exit(0)
        say("forked")


def _execute_one(storage: PostgresStorage, lease: timedelta, nursery: int) -> None:
    """Execute one attempt when told, and wait to be killed; end when the nursery is gone."""
    squid = Squid(storage, WORKFLOWS)
    runtime = squid.runtime
    storage.now()
    with storage.step_engine.connect():
        pass
    say("ready", os.getpid())
    while not signal.sigtimedwait({signal.SIGUSR2}, 0.2):
        if os.getppid() != nursery:
            return
    (claim,) = runtime.dispatch.claim("default", f"doomed-{os.getpid()}", lease=lease)
    answer = Executor(runtime, asyncio.run).perform(claim, Cancellation())
    assert isinstance(answer, Answer)
    say("answered", os.getpid())
    while os.getppid() == nursery:
        time.sleep(0.2)


if __name__ == "__main__":
    kind, url, schema, queue, options = sys.argv[1:6]
    if kind == "nursery":
        _nurse(url, schema, json.loads(options))
    assert kind == "worker"
    _work(PostgresStorage(url, schema), queue, json.loads(options))
