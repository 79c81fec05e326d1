"""Parts of the benchmark with Dagster: its processes, the plain worker, and readings of journal and Dagster."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

from bench import dagster_location as location
from bench.report import progress
from examples.stack import LOCATION, REPOSITORY, Stack
from squid_dagster import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.plugin.dispatch.job import RUN_KIND
from squid_dagster.protocol import AttemptClaimed, AttemptCompleted, AttemptScheduled

T = TypeVar("T")
BULK = 1_000
_PATIENCE_SECONDS = 900.0
_PAUSE_SECONDS = 0.02
_APART_SECONDS = 0.05  # between starts, so that each finds an idle worker
_WORKER = [sys.executable, "-m", "bench.dagster_location"]
_RUNS = """query($job: String!) {runsOrError(filter: {pipelineName: $job}) {
  ... on Runs {results {runId status creationTime startTime}}}}"""
_LAUNCH = """mutation($job: String!, $location: String!) {launchRun(executionParams: {selector: {
  repositoryLocationName: $location, repositoryName: "__repository__", jobName: $job}, runConfigData: {}}) {
  __typename ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}}}"""


class Launched(NamedTuple):
    """A Dagster run: when it was requested, and when its process started it."""

    run_id: str
    status: str
    created_at: float
    started_at: float | None


def dagster_runs(stack: Stack, job: str) -> list[Launched]:
    """Return all runs of a job."""
    runs = stack.ask(_RUNS, job=job)["runsOrError"]["results"]
    return [Launched(run["runId"], run["status"], run["creationTime"], run["startTime"]) for run in runs]


def launch_empty(stack: Stack) -> float:
    """Launch a job that does nothing; return the seconds from its request to its start."""
    answer = stack.ask(_LAUNCH, job=location.EMPTY_JOB, location=LOCATION)["launchRun"]
    assert answer["__typename"] == "LaunchRunSuccess", answer

    def launched() -> Launched | None:
        runs = dagster_runs(stack, location.EMPTY_JOB)
        return next((run for run in runs if run.run_id == answer["run"]["runId"] and run.status == "SUCCESS"), None)

    run = wait_for(launched)
    assert run.started_at is not None
    return run.started_at - run.created_at


def wait_for(condition: Callable[[], T | None]) -> T:
    """Wait until the condition returns a true value, and return that."""
    ends = time.monotonic() + _PATIENCE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < ends, "it never came to that"
        time.sleep(_PAUSE_SECONDS)
    return value


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class JournalRuns:
    """Runs of one journal: they are started here, and timed by their facts."""

    def __init__(self, squid: Squid, storage: PostgresStorage, folder: Path) -> None:
        """Set an empty journal, and a folder for Dagster."""
        self.squid, self.storage, self._folder = squid, storage, folder
        self.environment = {"SQUID_DATABASE_URL": storage.engine.url.render_as_string(hide_password=False)}

    # --- processes --------------------------------------------------------------------------------------------------

    @contextmanager
    def stack(self, name: str, *, linger_seconds: float) -> Iterator[Stack]:
        """Run Dagster with a storage of its own."""
        environment = {**self.environment, location.LINGER: str(linger_seconds)}
        with Stack(self._folder / name, "bench.dagster_location", environment) as stack:
            yield stack
        self.wait_for_none(RUN_KIND)

    @contextmanager
    def plain_worker(self) -> Iterator[None]:
        """Run a plain worker, and wait until it reports its liveness."""
        process = subprocess.Popen(_WORKER, cwd=REPOSITORY, env={**os.environ, **self.environment})
        try:
            self.wait_for_one("worker")
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()

    def work_off(self) -> None:
        """Run a plain worker until nothing is due."""
        environment = {**os.environ, **self.environment}
        subprocess.run([*_WORKER, "--until-idle"], cwd=REPOSITORY, env=environment, check=True)

    def wait_for_one(self, kind: str) -> None:
        """Wait until a worker of that kind has reported its liveness."""
        wait_for(lambda: self._workers(kind))

    def wait_for_none(self, kind: str) -> None:
        """Wait until no worker of that kind counts as alive."""
        wait_for(lambda: not self._workers(kind))

    def _workers(self, kind: str) -> list[str]:
        rows = self.squid.live_workers()
        return [row.worker_id for row in rows if row.kind == kind]

    # --- runs -------------------------------------------------------------------------------------------------------

    def trickle(self, count: int, name: str) -> list[float]:
        """Start runs one by one; return how many seconds each attempt was visible before its step ran."""
        before = self.storage.cut()
        for number in range(count):
            progress(f"latency, {name}", number, count)
            self.squid.start("timed", {"n": number})
            time.sleep(_APART_SECONDS)
        self.wait_for_end()
        visible: dict[str, float] = {}
        seconds: list[float] = []
        for entry in self.storage.read_between(before, self.storage.cut()):
            if isinstance(entry.fact, AttemptScheduled):
                visible[entry.fact.runnable_key] = entry.fact.visible_at.timestamp()
            elif isinstance(entry.fact, AttemptCompleted):
                seconds.append(float(str(entry.fact.result)) - visible[entry.fact.runnable_key])
        assert len(seconds) == count
        return seconds

    def fill(self, count: int) -> int:
        """Start many runs, all of which become claimable at once; return the position in the journal before them."""
        before = self.storage.cut()
        self.squid.pause_queue(location.QUEUE)
        for start in range(0, count, BULK):
            progress("filling the queue", start, count)
            self.squid.start_many("timed", [{"n": n} for n in range(start, min(start + BULK, count))])
        self.squid.resume_queue(location.QUEUE)
        return before

    def wait_for_end(self) -> None:
        """Wait until no run is open."""
        wait_for(lambda: not self.squid.list_runs(open_only=True, limit=1).runs)

    def speed(self, before: int, count: int) -> float:
        """Return attempts a second, from the first claim to the last completion."""
        claimed: list[datetime] = []
        completed: list[datetime] = []
        for entry in self.storage.read_between(before, self.storage.cut()):
            if isinstance(entry.fact, AttemptClaimed):
                claimed.append(entry.fact.occurred_at)
            elif isinstance(entry.fact, AttemptCompleted):
                completed.append(entry.fact.occurred_at)
        assert len(completed) == count
        return count / (max(completed) - min(claimed)).total_seconds()
