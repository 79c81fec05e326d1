"""Threads that run steps, and the loop that async steps run on. Knows nothing of claims' outcomes: it hands them on."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from squid_dagster.journal.contract.dispatch_store import Claim
from squid_dagster.journal.descriptors import LoopLost, check_descriptors, inode_of
from squid_dagster.workflow.authoring.step_context import Cancellation

_STAYING = 2  # threads that are always there
_MOMENT = 0.002  # seconds
_LOOP_LOOK_SECONDS = 1.0  # between two looks whether the loop that one waits for can still be reached
_BUSY_SECONDS = 1.0  # without an answer from an event loop
_QUICK = 4  # jobs that a thread takes in a moment while steps take no time


Awaited = Future[tuple[Any, BaseException | None]]
"""What an async step returns, or what ended it."""


class Job(NamedTuple):
    """A claimed attempt on its way to a thread."""

    claim: Claim
    cancelled: Cancellation


class StepPool:
    """Up to `size` threads. They are daemons: a step that hangs keeps no process alive.

    Two of them stay and take one job after the other: steps that take no time are done soonest by few threads, since
    each hand-over from thread to thread costs more than such a step. When jobs wait and a thread has taken only a few
    in a moment, steps are not that quick: the number of threads doubles, moment by moment; the others end when nothing
    waits. A thread whose job is abandoned does not count any more, and ends with that job.
    """

    def __init__(self, size: int, work: Callable[[Job], None]) -> None:
        """Run `work` for each job; it must not raise."""
        self._size, self._work = size, work
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._alive = 0  # threads
        self._taken = 0  # jobs that a thread has begun, ever
        self._unfinished = 0  # jobs that were handed over
        self._running: set[int] = set()  # jobs that a thread has begun, by their cancellation, which each has its own
        self._growing = threading.Event()
        self._grows = False
        self._closed = False

    def submit(self, jobs: list[Job]) -> None:
        """Hand jobs over."""
        with self._lock:
            staying = range(min(self._size, _STAYING) - self._alive)
            begins = not self._grows and self._size > _STAYING
            self._grows = self._grows or begins
            self._alive += len(staying)
            self._unfinished += len(jobs)
            waits = self._unfinished > self._alive
        for job in jobs:
            self._jobs.put(job)
        for _ in staying:
            self._start(self._stay)
        if begins:
            self._start(self._grow)
        if waits:  # else there is a thread for each: waking one more would only keep them waiting
            self._growing.set()

    def abandon(self, job: Job) -> None:
        """Leave a job that does not end to its thread, and let another thread take its place."""
        with self._lock:
            if id(job.cancelled) not in self._running:
                return  # it has just ended
            self._running.discard(id(job.cancelled))
            self._alive -= 1
            self._unfinished -= 1
        self.submit([])

    def take_back(self) -> list[Job]:
        """Give the jobs that no thread has begun."""
        found = []
        while (job := self._next()) is not None:
            found.append(job)
        with self._lock:
            self._unfinished -= len(found)
        return found

    def close(self) -> None:
        """Let threads end once they have nothing to do; waits for none of them."""
        self._closed = True
        self._growing.set()
        for _ in range(_STAYING):
            self._jobs.put(None)

    def _start(self, loop: Callable[[], None]) -> None:
        threading.Thread(target=loop, name="squid-step", daemon=True).start()

    def _stay(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not self._run(job):
                return

    def _help(self) -> None:
        while (job := self._next()) is not None:
            if not self._run(job):
                return
        with self._lock:
            self._alive -= 1
        if not self._jobs.empty():  # handed over to us, so to speak, when we had just looked
            self._growing.set()

    def _run(self, job: Job) -> bool:
        """Run a job; return False if it was abandoned meanwhile, so that another thread is there for this one."""
        self._taken += 1  # only ever compared with itself: a lost count does no harm
        key = id(job.cancelled)
        self._running.add(key)
        self._work(job)
        with self._lock:
            if key not in self._running:
                return False
            self._running.discard(key)
            self._unfinished -= 1
        return True

    def _next(self) -> Job | None:
        try:
            job = self._jobs.get_nowait()
        except Empty:
            return None
        if job is None:
            self._jobs.put(None)  # it is for one that stays, who would wait for ever
        return job

    def _grow(self) -> None:
        """Double the threads, moment by moment, while jobs wait and none of the threads is quick."""
        while not self._closed:
            self._growing.wait()
            self._growing.clear()
            while not self._closed and not self._jobs.empty():
                taken = self._taken
                time.sleep(_MOMENT)
                with self._lock:
                    slow = self._taken - taken < _QUICK * self._alive
                    missing = min(self._jobs.qsize(), self._size - self._alive, self._alive) if slow else 0
                    self._alive += max(missing, 0)
                for _ in range(missing):
                    self._start(self._help)


_lost_loops: list[object] = []  # collected as garbage, they would close what others have opened since


class AsyncLoop:
    """One event loop in a thread of its own, for async steps of all threads."""

    def __init__(self) -> None:
        """Begin when the first coroutine comes."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._losses = 0  # of descriptors, when the loop began: it has some of its own
        self._pipe: list[int | None] = []
        self._lock = threading.Lock()
        self._futures: dict[int, Awaited] = {}  # by the thread that waits

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end and give what it returns; raises what it raises.

        Raises:
            LoopLost: a step has closed the descriptors of the loop.
        """
        with self._lock:
            losses = check_descriptors()
            if self._loop is None or losses != self._losses or _pipe_of(self._loop) != self._pipe:
                self._loop, self._losses = asyncio.new_event_loop(), losses
                self._pipe = _pipe_of(self._loop)
                threading.Thread(target=_serve, args=(self._loop,), name="squid-async", daemon=True).start()
            loop, pipe = self._loop, self._pipe
            future = self._futures[threading.get_ident()] = asyncio.run_coroutine_threadsafe(_guarded(coroutine), loop)
        try:
            returned, ended = _result(future, loop, pipe, losses)
        finally:
            with self._lock:
                del self._futures[threading.get_ident()]
        if ended is not None:
            raise ended
        return returned

    def awaited_by(self, thread: int) -> Awaited | None:
        """Return what a thread waits for; None if its step is not an async one."""
        with self._lock:
            return self._futures.get(thread)

    def cancel(self, future: Awaited) -> None:
        """Cancel a coroutine; the thread that waits for it does so no longer, however the coroutine takes it.

        A loop that a step keeps busy, so that nothing else on it goes on, is left to it: later steps get another one.
        """
        future.cancel()
        with self._lock:
            loop = self._loop
        if loop is None:
            return
        answered = threading.Event()
        loop.call_soon_threadsafe(answered.set)
        if not answered.wait(_BUSY_SECONDS):
            with self._lock:
                self._loop = None if self._loop is loop else self._loop

    def close(self) -> None:
        """End the loop; what still runs on it is cancelled. Waits for nobody."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)


def _pipe_of(loop: asyncio.AbstractEventLoop) -> list[int | None]:
    """Return what tells whether other threads can wake the loop: where its pipe leads to."""
    ends = [getattr(loop, name, None) for name in ("_ssock", "_csock")]
    return [inode_of(end.fileno()) for end in ends if end is not None and end.fileno() >= 0]


def _result(
    future: Awaited, loop: asyncio.AbstractEventLoop, pipe: list[int | None], losses: int
) -> tuple[Any, BaseException | None]:
    """Wait for a coroutine's end. Raises `LoopLost` when its loop cannot be reached any more."""
    lost = False
    while True:
        try:
            return future.result(_LOOP_LOOK_SECONDS)
        except TimeoutError:
            if future.done():  # it is the coroutine's own
                raise
            if lost:
                _lost_loops.append(loop)
                raise LoopLost("the event loop of async steps was lost: a step has closed its descriptors") from None
            lost = check_descriptors() != losses or _pipe_of(loop) != pipe


async def _guarded(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Keep from the loop what would end it, and with it the steps of all others."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    except OSError:  # somebody has closed its descriptors
        check_descriptors()
        _lost_loops.append(loop)
        return
    loop.run_until_complete(_cancel_the_rest())
    loop.close()


async def _cancel_the_rest() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
