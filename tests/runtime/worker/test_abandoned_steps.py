"""Cancelled steps that do not end: they keep their threads, and neither a slot nor the worker's silence."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.inspection.attention import attention
from squid_dagster.journal import Claim, MemoryStorage, PostgresStorage
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.runtime.worker.step_pool import AsyncLoop, Job, StepPool
from squid_dagster.runtime.worker.worker import Worker
from squid_dagster.workflow import StepContext, Workflow
from squid_dagster.workflow.authoring.step_context import Cancellation
from tests.runtime.workers import PATIENCE, all_done, running_worker, until

SOON: dict[str, Any] = {"abandon_after": timedelta(milliseconds=50), "heartbeat": timedelta(milliseconds=50)}


class Item(BaseModel):
    """Whether a step listens when it is cancelled."""

    deaf: bool = False


class DeafSteps:
    """A workflow whose steps may be deaf: those end when the test lets them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.release = threading.Event()
        self.workflow = Workflow("deaf", payload=Item)

        @self.workflow.step
        def step(ctx: StepContext, deaf: bool) -> str:
            self.begun.append(ctx.run_id)
            if deaf:
                assert self.release.wait(PATIENCE)
            return "done"


@pytest.fixture
def deaf_steps() -> Iterator[DeafSteps]:
    """Deaf steps that end with the test at the latest."""
    made = DeafSteps()
    yield made
    made.release.set()


def cancel_deaf(squid: Squid, deaf_steps: DeafSteps, count: int) -> list[str]:
    """Start deaf steps, and cancel their runs once they have begun."""
    runs = [receipt.run_id for receipt in squid.start_many("deaf", [{"deaf": True}] * count)]
    until(lambda: set(runs) <= set(deaf_steps.begun), "all deaf steps under way")
    for run in runs:
        squid.cancel(run, actor="ada")
    return runs


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_a_worker_whose_slots_are_all_held_by_cancelled_steps_goes_on(deaf_steps: DeafSteps, concurrency: int) -> None:
    journal = MemoryStorage()
    squid = Squid(journal, deaf_steps.workflow)
    with running_worker(squid, concurrency=concurrency, **SOON) as working:
        cancel_deaf(squid, deaf_steps, concurrency)
        others = [receipt.run_id for receipt in squid.start_many("deaf", [{}] * 3 * concurrency)]
        until(all_done(journal, others), "the other runs")
        assert working.worker.report.abandoned == concurrency
        # and when they end at last, nothing comes of it
        deaf_steps.release.set()
        until(lambda: not working.worker._running.abandoned, "the end of the abandoned steps")
        last = squid.start("deaf").run_id
        until(all_done(journal, [last]), "one more run")
        report = working.stop()
    assert report.completed == 3 * concurrency + 1
    assert report.gave_up is None
    assert f"abandoned {concurrency}" in str(report)


def test_presence_and_status_tell_of_them(postgres: PostgresStorage, deaf_steps: DeafSteps) -> None:
    squid = Squid(postgres, deaf_steps.workflow)
    runtime = squid.runtime

    def abandoned() -> list[Any]:
        runtime.liveness.report(working.worker._describe())  # as it does by itself every few seconds
        workers = runtime.liveness.workers(timedelta(minutes=1))
        return [
            item
            for item in attention(postgres, runtime.queries, runtime.queries.queues(), workers, postgres.now())
            if item.kind == "abandoned_steps"
        ]

    with running_worker(squid, concurrency=2, **SOON) as working:
        cancel_deaf(squid, deaf_steps, 2)
        until(lambda: working.worker.report.abandoned == 2, "both abandoned")
        (item,) = abandoned()
        assert item.count == 2
        assert "deaf.step" in item.summary
        assert "ctx.cancelled" in item.summary
        deaf_steps.release.set()
        until(lambda: not working.worker._running.abandoned, "the end of the abandoned steps")
        assert abandoned() == []
        working.stop()


def test_a_worker_that_left_too_many_behind_stops_and_says_why(deaf_steps: DeafSteps) -> None:
    journal = MemoryStorage()
    squid = Squid(journal, deaf_steps.workflow)
    with running_worker(squid, concurrency=2, max_abandoned=4, grace=timedelta(0), **SOON) as working:
        for _ in range(2):
            cancel_deaf(squid, deaf_steps, 2)
        report = working.end()
    assert report.abandoned == 4
    assert "deaf.step" in str(report.gave_up)
    assert "start this worker again" in str(report.gave_up)


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "many"])
def test_an_odd_bound_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgument, match="max_abandoned"):
        Worker(Squid(MemoryStorage()).runtime, ["default"], max_abandoned=bad)


def test_a_step_whose_claim_was_lost_while_it_waited_is_not_called(deaf_steps: DeafSteps) -> None:
    squid = Squid(MemoryStorage(), deaf_steps.workflow)
    run_id = squid.start("deaf").run_id
    worker = squid.new_worker()
    (claim,) = squid.runtime.dispatch.claim("default", "somebody")
    cancelled = Cancellation()
    cancelled.set()
    worker._execute(Job(claim, cancelled))
    assert deaf_steps.begun == []
    assert squid.inspect_run(run_id).status == "running"


# --- async steps ----------------------------------------------------------------------------------------------------


def test_a_cancelled_async_step_is_cancelled_on_its_loop_and_keeps_no_thread() -> None:
    ended = threading.Event()
    begun = threading.Event()
    workflow = Workflow("sleepy")

    @workflow.step
    async def step(ctx: StepContext) -> None:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            ended.set()
            raise

    journal = MemoryStorage()
    squid = Squid(journal, workflow)
    with running_worker(squid, concurrency=1, **SOON) as working:
        run_id = squid.start("sleepy").run_id
        assert begun.wait(PATIENCE)
        squid.cancel(run_id, actor="ada")
        assert ended.wait(PATIENCE)
        until(lambda: not working.worker.held, "the free slot")
        report = working.stop()
    assert report.abandoned == 0


def test_a_loop_that_a_step_keeps_busy_is_left_to_it() -> None:
    loop, free = AsyncLoop(), threading.Event()
    begun = threading.Event()

    async def blocks() -> None:
        begun.set()
        free.wait(PATIENCE)

    async def quick() -> int:
        return 1

    def wait() -> None:
        with pytest.raises(CancelledError):
            loop.run(blocks())

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert begun.wait(PATIENCE)
    future = loop.awaited_by(waiting.ident or 0)
    assert future is not None
    loop.cancel(future)
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert loop.run(quick()) == 1
    free.set()
    loop.close()


# --- the pool -------------------------------------------------------------------------------------------------------


def _jobs(count: int) -> list[Job]:
    workflow = Workflow("one")
    workflow.step(name="step")(lambda: None)
    squid = Squid(MemoryStorage(), workflow)
    squid.start_many("one", [None] * count)
    claims: list[Claim] = squid.runtime.dispatch.claim("default", "somebody", limit=count)
    return [Job(claim, Cancellation()) for claim in claims]


@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_pool_keeps_its_size_whatever_is_abandoned(size: int) -> None:
    release, running, done = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
    deaf: set[str] = set()

    def work(job: Job) -> None:
        if job.claim.ref.claim_id in deaf:
            running.release()
            release.wait(PATIENCE)
        done.release()

    pool = StepPool(size, work)
    jobs = _jobs(4 * size)
    for first in (0, size):  # twice in a row all threads are lost
        stuck = jobs[first : first + size]
        deaf |= {job.claim.ref.claim_id for job in stuck}
        pool.submit(stuck)
        for _ in stuck:
            assert running.acquire(timeout=PATIENCE)
        for job in stuck:
            pool.abandon(job)
    pool.submit(jobs[2 * size :])
    for _ in jobs[2 * size :]:
        assert done.acquire(timeout=PATIENCE)
    assert pool._alive <= size
    release.set()
    for _ in range(2 * size):
        assert done.acquire(timeout=PATIENCE)
    until(lambda: pool._unfinished == 0, "that every job is accounted for")
    pool.close()
