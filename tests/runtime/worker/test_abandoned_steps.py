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
from tests.runtime.workers import PATIENCE, all_done, at_work, until

SOON: dict[str, Any] = {"abandon_after": timedelta(milliseconds=50), "heartbeat": timedelta(milliseconds=50)}


class Item(BaseModel):
    """Whether a step listens when it is cancelled."""

    deaf: bool = False


class Crowd:
    """A workflow whose steps may be deaf: those end when the test lets them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.let_go = threading.Event()
        self.workflow = Workflow("crowd", payload=Item)

        @self.workflow.step
        def step(ctx: StepContext, deaf: bool) -> str:
            self.begun.append(ctx.run_id)
            if deaf:
                assert self.let_go.wait(PATIENCE)
            return "done"


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    """Deaf steps that end with the test at the latest."""
    made = Crowd()
    yield made
    made.let_go.set()


def cancel_deaf(squid: Squid, crowd: Crowd, count: int) -> list[str]:
    """Start deaf steps, and cancel their runs once they have begun."""
    runs = [each.run_id for each in squid.start_many("crowd", [{"deaf": True}] * count)]
    until(lambda: set(runs) <= set(crowd.begun), "all deaf steps under way")
    for run in runs:
        squid.cancel(run, actor="ada")
    return runs


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_a_worker_whose_slots_are_all_held_by_cancelled_steps_goes_on(crowd: Crowd, concurrency: int) -> None:
    journal = MemoryStorage()
    squid = Squid(journal, crowd.workflow)
    with at_work(squid, concurrency=concurrency, **SOON) as working:
        cancel_deaf(squid, crowd, concurrency)
        others = [each.run_id for each in squid.start_many("crowd", [{}] * 3 * concurrency)]
        until(all_done(journal, others), "the other runs")
        assert working.worker.report.abandoned == concurrency
        # and when they end at last, nothing comes of it
        crowd.let_go.set()
        until(lambda: not working.worker._running.abandoned, "the end of the abandoned steps")
        last = squid.start("crowd").run_id
        until(all_done(journal, [last]), "one more run")
        report = working.stop()
    assert report.completed == 3 * concurrency + 1
    assert report.gave_up is None
    assert f"abandoned {concurrency}" in str(report)


def test_presence_and_status_tell_of_them(postgres: PostgresStorage, crowd: Crowd) -> None:
    squid = Squid(postgres, crowd.workflow)
    runtime = squid.runtime

    def told() -> list[Any]:
        runtime.liveness.report(working.worker._describe())  # as it does by itself every few seconds
        workers = runtime.liveness.workers(timedelta(minutes=1))
        return [
            each
            for each in attention(postgres, runtime.queries, runtime.queries.queues(), workers, postgres.now())
            if each.kind == "abandoned_steps"
        ]

    with at_work(squid, concurrency=2, **SOON) as working:
        cancel_deaf(squid, crowd, 2)
        until(lambda: working.worker.report.abandoned == 2, "both abandoned")
        (found,) = told()
        assert found.count == 2
        assert "crowd.step" in found.summary
        assert "ctx.cancelled" in found.summary
        crowd.let_go.set()
        until(lambda: not working.worker._running.abandoned, "the end of the abandoned steps")
        assert told() == []
        working.stop()


def test_a_worker_that_left_too_many_behind_stops_and_says_why(crowd: Crowd) -> None:
    journal = MemoryStorage()
    squid = Squid(journal, crowd.workflow)
    with at_work(squid, concurrency=2, max_abandoned=4, grace=timedelta(0), **SOON) as working:
        for _ in range(2):
            cancel_deaf(squid, crowd, 2)
        report = working.end()
    assert report.abandoned == 4
    assert "crowd.step" in str(report.gave_up)
    assert "start this worker again" in str(report.gave_up)


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "many"])
def test_an_odd_bound_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgument, match="max_abandoned"):
        Worker(Squid(MemoryStorage()).runtime, ["default"], max_abandoned=bad)


def test_a_step_whose_claim_was_lost_while_it_waited_is_not_called(crowd: Crowd) -> None:
    squid = Squid(MemoryStorage(), crowd.workflow)
    run_id = squid.start("crowd").run_id
    worker = squid.new_worker()
    (claim,) = squid.runtime.dispatch.claim("default", "somebody")
    cancelled = Cancellation()
    cancelled.set()
    worker._execute(Job(claim, cancelled))
    assert crowd.begun == []
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
    with at_work(squid, concurrency=1, **SOON) as working:
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
    gate, running, done = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
    deaf: set[str] = set()

    def work(job: Job) -> None:
        if job.claim.ref.claim_id in deaf:
            running.release()
            gate.wait(PATIENCE)
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
    gate.set()
    for _ in range(2 * size):
        assert done.acquire(timeout=PATIENCE)
    until(lambda: pool._unfinished == 0, "that every job is accounted for")
    pool.close()
