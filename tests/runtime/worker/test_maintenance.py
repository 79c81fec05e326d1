"""What a worker does beside its work: it is seen, repairs what others left, and starts what the clock asks for."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import Completed, PostgresQueries, PostgresStorage, Settlement
from squid_dagster.journal.contract.queries import ScheduleCursor
from squid_dagster.journal.contract.worker_liveness import WorkerRow
from squid_dagster.journal.postgres.worker_liveness import PostgresLiveness
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.runtime.worker.maintenance import Maintenance
from squid_dagster.workflow import Cron, StepContext, Workflow
from tests.runtime.workers import NEVER, PATIENCE, all_done, queue_facts, running_worker, status_of, until

OFTEN = timedelta(milliseconds=100)


def line() -> Workflow:
    workflow = Workflow("line")
    workflow.step(name="first")(lambda: 1)
    workflow.step(name="second", after="first")(lambda: 2)
    return workflow


def nightly() -> Workflow:
    workflow = Workflow("nightly", triggers=[Cron("* * * * *", name="each_minute")])
    workflow.step(name="step")(lambda: "done")
    return workflow


def crash(squid: Squid, queue: str) -> str:
    """Complete the first step of a run, from which nothing follows."""
    run_id = squid.start("line", queue=queue).run_id
    (claim,) = squid.runtime.dispatch.claim(queue, "doomed")
    squid.runtime.dispatch.settle([Settlement(claim.ref, Completed(1))])[0].unwrap()
    return run_id


def test_a_worker_repairs_what_another_left_behind_on_all_of_its_queues(postgres: PostgresStorage) -> None:
    squid = Squid(postgres, line())
    runs = [crash(squid, "one"), crash(squid, "two")]
    elsewhere = crash(squid, "three")
    with running_worker(squid, ["one", "two"], housekeeping=OFTEN):
        until(all_done(postgres, runs), "the runs that were repaired")
    assert status_of(postgres, elsewhere) == "running"


def test_without_housekeeping_a_worker_repairs_nothing(postgres: PostgresStorage) -> None:
    squid = Squid(postgres, line())
    run_id = crash(squid, "default")
    other = squid.start("line").run_id
    with running_worker(squid, housekeeping=None):
        until(all_done(postgres, [other]), "the run that needs no repair")
    assert status_of(postgres, run_id) == "running"


def test_a_worker_starts_what_the_clock_asks_for_once_among_many(postgres: PostgresStorage) -> None:
    squids = [Squid(postgres, nightly()) for _ in range(3)]
    with running_worker(squids[0], housekeeping=OFTEN), running_worker(squids[1], housekeeping=OFTEN):
        until(lambda: queue_facts(postgres, "attempt_completed"), "a run by the clock")
    started = [row for row in squids[2].list_runs().runs if row.trigger == "each_minute"]
    windows = [squids[2].inspect_run(row.run_id).context["schedule"]["intended_window"]["start_at"] for row in started]
    assert len(windows) == len(set(windows))


class _NoLiveness(PostgresLiveness):
    """A liveness table that the worker may not write to."""

    def report(self, worker: WorkerRow) -> None:
        raise RuntimeError("permission denied for table presence")


class _NoSchedules(PostgresQueries):
    """A journal that cannot tell which windows were started."""

    def schedule_cursor(self, workflow: str, trigger: str) -> ScheduleCursor:
        raise InvalidArgument(f"nothing is known of {workflow} and {trigger}")


def test_what_fails_in_housekeeping_keeps_nothing_else_from_being_done(postgres: PostgresStorage) -> None:
    squid = Squid(postgres, [line(), nightly()])
    squid.runtime = replace(squid.runtime, liveness=_NoLiveness(postgres), queries=_NoSchedules(postgres))
    run_id = crash(squid, "default")
    with running_worker(squid, housekeeping=OFTEN):
        until(all_done(postgres, [run_id]), "the run that was repaired all the same")


def test_a_row_tells_how_busy_the_worker_is(postgres: PostgresStorage) -> None:
    release = threading.Event()
    workflow = Workflow("slow")

    @workflow.step
    def step(ctx: StepContext) -> None:
        release.wait(PATIENCE)

    squid = Squid(postgres, workflow)
    squid.start_many("slow", [None] * 3)

    def running() -> list[int]:
        return [row.running for row in squid.runtime.liveness.workers(timedelta(minutes=1))]

    with running_worker(squid, housekeeping=OFTEN, poll=NEVER):
        until(lambda: running() == [3], "three steps on its row")
        release.set()
        until(lambda: running() == [0], "no step on its row")


def test_a_worker_runs_once(postgres: PostgresStorage) -> None:
    worker = Squid(postgres, line()).new_worker(until_idle=True)
    worker.run()
    with pytest.raises(InvalidArgument, match="has run already"):
        worker.run()


def test_keeping_house_once_does_both(postgres: PostgresStorage) -> None:
    squid = Squid(postgres, line())
    run_id = crash(squid, "default")
    describe: Callable[[], Any] = lambda: None  # noqa: E731  the worker writes no liveness row
    Maintenance(squid.runtime, describe, None, ["default"]).keep()
    squid.worker(until_idle=True)
    assert status_of(postgres, run_id) == "completed"
