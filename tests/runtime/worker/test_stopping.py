"""The end of a worker: running steps have a time of grace, the rest is given back by a fact, and it waits no longer."""

import signal
import threading
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import Claim, PostgresDispatchStore, PostgresStorage
from squid_dagster.runtime.worker.step_pool import Job, StepPool
from squid_dagster.runtime.worker.worker import Worker
from squid_dagster.workflow import StepContext, Workflow
from squid_dagster.workflow.authoring.step_context import Cancellation
from tests.processes import Child, children
from tests.runtime.workers import (
    NEVER,
    PATIENCE,
    all_done,
    counts_of,
    facts_of,
    file_wait,
    running_worker,
    status_of,
    until,
    wait_for_lines,
    worker_process,
)


def begin(
    storage: PostgresStorage, started: list[Child], file: Path, *, deaf: bool = False, **options: Any
) -> tuple[Child, str]:
    """Start a run, and a worker process that is in the middle of its step."""
    run_id = Squid(storage, file_wait).start("file_wait", {"file": str(file), "deaf": deaf}).run_id
    child = worker_process(storage, **options)
    started.append(child)
    wait_for_lines(child, "begun")
    return child, run_id


def test_on_sigterm_a_running_step_finishes_and_nothing_more_is_claimed(
    postgres: PostgresStorage, tmp_path: Path
) -> None:
    with children() as started:
        child, run_id = begin(postgres, started, tmp_path / "file", concurrency=1)
        waiting = Squid(postgres, file_wait).start("file_wait").run_id
        child.process.terminate()
        (tmp_path / "file").touch()
        assert child.end(PATIENCE) == 0
        wait_for_lines(child, "ended")
        assert counts_of(child) == {
            "claimed": 1, "completed": 1, "failed": 0, "retried": 0, "released": 0, "refused": 0, "commits": 1
        }  # fmt: skip
        assert "claimed 1, completed 1, in " in " ".join(wait_for_lines(child, "report")[0])
    assert (status_of(postgres, run_id), status_of(postgres, waiting)) == ("completed", "running")
    assert not facts_of(postgres, waiting, "attempt_claimed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_gives_everything_back_at_once_and_the_step_is_told(
    postgres: PostgresStorage, tmp_path: Path, number: signal.Signals
) -> None:
    with children() as started:
        child, run_id = begin(postgres, started, tmp_path / "never", grace=3600)
        child.process.send_signal(number)
        until(lambda: any("1 steps have" in line for line in child.lines), "that the grace has begun")
        assert not facts_of(postgres, run_id, "attempt_released")
        child.process.send_signal(number)
        assert child.end(PATIENCE) == 0
        assert counts_of(child)["released"] == 1
    released = facts_of(postgres, run_id)[-1]
    assert (released.type, released.reason) == ("attempt_released", "the worker stopped")
    # and another worker does it at once, without waiting for the lease
    (tmp_path / "never").touch()
    assert Squid(postgres, file_wait).worker(until_idle=True).completed == 1
    assert status_of(postgres, run_id) == "completed"


def test_once_the_grace_is_over_the_step_is_told_and_its_attempt_given_back(
    postgres: PostgresStorage, tmp_path: Path
) -> None:
    with children() as started:
        child, run_id = begin(postgres, started, tmp_path / "never", grace=0.2)
        child.process.terminate()
        wait_for_lines(child, "cancelled")
        assert child.end(PATIENCE) == 0
        assert counts_of(child)["released"] == 1
    assert [fact.type for fact in facts_of(postgres, run_id)][-2:] == ["attempt_claimed", "attempt_released"]
    (attempt,) = Squid(postgres, file_wait).inspect_run(run_id).attempts
    assert (attempt.status, attempt.deliveries) == ("available", 1), "the step was called, which counts as a delivery"


def test_an_idle_worker_ends_at_once_however_seldom_it_polls(postgres: PostgresStorage) -> None:
    with children() as started:
        started.append(worker_process(postgres, poll=3600))
        wait_for_lines(started[0], "ready")
        until(lambda: Squid(postgres).runtime.liveness.workers(timedelta(minutes=1)), "the worker at work")
        started[0].process.terminate()
        assert started[0].end(PATIENCE) == 0
        assert counts_of(started[0])["claimed"] == 0
    assert Squid(postgres).runtime.liveness.workers(timedelta(minutes=1)) == []


def test_a_busy_worker_begins_its_grace_at_once_however_seldom_it_polls(
    postgres: PostgresStorage, tmp_path: Path
) -> None:
    with children() as started:
        child, run_id = begin(postgres, started, tmp_path / "never", concurrency=1, poll=3600, grace=0)
        child.process.terminate()
        assert child.end(PATIENCE) == 0
        assert counts_of(child)["released"] == 1
    assert facts_of(postgres, run_id)[-1].type == "attempt_released"


def test_a_step_that_does_not_listen_keeps_no_process_alive(postgres: PostgresStorage, tmp_path: Path) -> None:
    with children() as started:
        child, run_id = begin(postgres, started, tmp_path / "never", deaf=True, grace=0)
        child.process.terminate()
        assert child.end(PATIENCE) == 0
        assert counts_of(child)["released"] == 1
    assert facts_of(postgres, run_id)[-1].type == "attempt_released"


class _StopsWhileClaiming(PostgresDispatchStore):
    """A dispatch store whose worker is told to stop while its claim is on the way."""

    worker: Worker | None = None

    def claim(self, queue: str, owner_id: str, **options: Any) -> list[Claim]:
        claims = super().claim(queue, owner_id, **options)
        if claims and self.worker is not None:
            self.worker.stop()
        return claims


def _step_that_notes(begun: list[str]) -> Workflow:
    workflow = Workflow("noted")

    @workflow.step
    def step(ctx: StepContext) -> None:
        begun.append(ctx.run_id)

    return workflow


def _with_dispatch(squid: Squid, dispatch: PostgresDispatchStore) -> Squid:
    from dataclasses import replace

    squid.runtime = replace(squid.runtime, dispatch=dispatch)
    return squid


def test_what_was_claimed_and_not_begun_is_given_back_by_a_fact(postgres: PostgresStorage) -> None:
    begun: list[str] = []
    store = _StopsWhileClaiming(postgres)
    squid = _with_dispatch(Squid(postgres, _step_that_notes(begun)), store)
    runs = [receipt.run_id for receipt in squid.start_many("noted", [None] * 5)]
    store.worker = squid.new_worker(concurrency=10)
    report = store.worker.run()
    assert (report.claimed, report.completed, report.released) == (5, 0, 5)
    assert begun == []
    for run_id in runs:
        assert [fact.type for fact in facts_of(postgres, run_id)][-2:] == ["attempt_claimed", "attempt_released"]
    store.worker = None
    assert squid.worker(until_idle=True).completed == 5


def test_a_worker_that_was_stopped_before_it_runs_claims_nothing(postgres: PostgresStorage) -> None:
    squid = Squid(postgres, _step_that_notes([]))
    squid.start("noted")
    worker = squid.new_worker()
    worker.stop()
    assert worker.run().claimed == 0


def test_stop_from_another_thread_ends_an_idle_and_a_busy_worker(postgres: PostgresStorage) -> None:
    begun, go_on = threading.Event(), threading.Event()
    workflow = Workflow("busy")

    @workflow.step
    def step() -> str:
        begun.set()
        go_on.wait(PATIENCE)
        return "done"

    squid = Squid(postgres, workflow)
    with running_worker(squid, poll=NEVER) as idle:
        assert idle.stop().claimed == 0
    run_id = squid.start("busy").run_id
    with running_worker(squid, poll=NEVER, concurrency=1) as busy:
        assert begun.wait(PATIENCE)
        busy.worker.stop()
        go_on.set()
        assert busy.end().completed == 1
    assert all_done(postgres, [run_id])()


def test_a_result_that_comes_after_its_attempt_was_given_back_is_dropped(postgres: PostgresStorage) -> None:
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()
    tokens: list[int] = []
    workflow = Workflow("late")

    @workflow.step
    def step(ctx: StepContext) -> int:
        tokens.append(ctx.fencing_token)
        if len(tokens) == 1:
            begun.set()
            go_on.wait(PATIENCE)
            over.set()
        return ctx.fencing_token

    squid = Squid(postgres, workflow)
    run_id = squid.start("late").run_id
    with running_worker(squid, grace=timedelta(0)) as working:
        assert begun.wait(PATIENCE)
        assert working.stop().released == 1
    go_on.set()
    assert over.wait(PATIENCE)
    squid.worker(until_idle=True)
    (completed,) = facts_of(postgres, run_id, "attempt_completed")
    assert (completed.result, tokens) == (2, [1, 2])


class _FailsFor(PostgresDispatchStore):
    """A dispatch store that cannot reach one of its queues, as when the connection breaks between two claims."""

    unreachable: Collection[str] = ()

    def claim(self, queue: str, owner_id: str, **options: Any) -> list[Claim]:
        from squid_dagster.protocol.errors import StorageUnavailable

        if queue in self.unreachable:
            raise StorageUnavailable("the connection was lost")
        return super().claim(queue, owner_id, **options)


def test_what_was_claimed_from_one_queue_is_done_though_the_next_queue_fails(postgres: PostgresStorage) -> None:
    begun: list[str] = []
    store = _FailsFor(postgres)
    store.unreachable = {"broken"}
    squid = _with_dispatch(Squid(postgres, _step_that_notes(begun)), store)
    run_id = squid.start("noted", queue="good").run_id
    with running_worker(squid, ["good", "broken"], poll=NEVER):
        until(all_done(postgres, [run_id]), "the run of the queue that works")
    assert len(facts_of(postgres, run_id, "attempt_claimed")) == 1


def test_a_pool_that_is_closed_while_its_threads_are_busy_leaves_none_behind() -> None:
    inside, release = list[object](), threading.Event()

    def work(job: Job) -> None:
        inside.append(job)
        release.wait(PATIENCE)

    before = set(threading.enumerate())
    pool = StepPool(6, work)
    pool.submit([Job(None, Cancellation()) for _ in range(8)])  # type: ignore[arg-type]  # the claim is not read
    until(lambda: len(inside) == 6, "six at once")
    assert len(pool.withdraw()) == 2, "what no thread has begun"
    pool.close()
    release.set()
    until(lambda: set(threading.enumerate()) <= before, "the end of all threads")
    assert len(inside) == 6
