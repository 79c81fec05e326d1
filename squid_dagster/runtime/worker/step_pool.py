"""The threads that run steps, and the event loop of async steps. Outcomes are not handled here."""

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

_PERMANENT = 2  # threads that always run
_MOMENT = 0.002  # seconds
_LOOP_CHECK_SECONDS = 1.0  # between two checks whether the event loop can still be reached
_BUSY_SECONDS = 1.0  # without an answer from an event loop
_QUICK = 4  # jobs that a thread takes in a moment while steps take no time


Awaited = Future[tuple[Any, BaseException | None]]
"""What an async step returns, or what ended it."""


class Job(NamedTuple):
    """A claimed attempt that is to be executed by a thread."""

    claim: Claim
    cancelled: Cancellation


class StepPool:
    """Up to `size` threads. They are daemons: a step that hangs keeps no process alive.

    Two of them are permanent and take one job after the other: steps that take almost no time end soonest on few
    threads, since a switch between threads costs more than such a step. If jobs wait and the threads have taken only a
    few in `_MOMENT`, steps are slower than that, and the number of threads doubles, moment by moment; the additional
    threads end when no job waits. A thread whose job is abandoned is not counted any more, and ends with that job.
    """

    def __init__(self, size: int, work: Callable[[Job], None]) -> None:
        """Run `work` for each job; it must not raise."""
        self._size, self._work = size, work
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._alive = 0  # threads
        self._taken = 0  # jobs that threads have begun
        self._unfinished = 0  # jobs that were submitted
        self._running: set[int] = set()  # ids of the cancellations of running jobs
        self._growing = threading.Event()
        self._grows = False
        self._closed = False

    def submit(self, jobs: list[Job]) -> None:
        """Submit jobs."""
        with self._lock:
            staying = range(min(self._size, _PERMANENT) - self._alive)
            begins = not self._grows and self._size > _PERMANENT
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
        if waits:  # otherwise there is a thread for each job
            self._growing.set()

    def abandon(self, job: Job) -> None:
        """Abandon a job that does not end, and replace its thread in the pool."""
        with self._lock:
            if id(job.cancelled) not in self._running:
                return  # it has just ended
            self._running.discard(id(job.cancelled))
            self._alive -= 1
            self._unfinished -= 1
        self.submit([])

    def withdraw(self) -> list[Job]:
        """Remove and return the jobs that no thread has begun."""
        jobs = []
        while (job := self._next()) is not None:
            jobs.append(job)
        with self._lock:
            self._unfinished -= len(jobs)
        return jobs

    def close(self) -> None:
        """End threads once they have nothing to do, without waiting for them."""
        self._closed = True
        self._growing.set()
        for _ in range(_PERMANENT):
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
        if not self._jobs.empty():  # submitted after our last check
            self._growing.set()

    def _run(self, job: Job) -> bool:
        """Run a job; return False if it was abandoned meanwhile, so that this thread was replaced."""
        self._taken += 1  # only its growth matters: a lost increment does no harm
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
            self._jobs.put(None)  # meant for a permanent thread, which would wait for ever
        return job

    def _grow(self) -> None:
        """Double the threads, moment by moment, while jobs wait and threads take few of them."""
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


_lost_loops: list[object] = []  # garbage collection of a loop would close descriptors that were reused


class AsyncLoop:
    """One event loop in a thread of its own, for async steps of all threads."""

    def __init__(self) -> None:
        """Start with the first coroutine."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._losses = 0  # lost descriptors when the loop started
        self._pipe: list[int | None] = []
        self._lock = threading.Lock()
        self._futures: dict[int, Awaited] = {}  # by the thread that waits

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end and return its result; raises what it raises.

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
        """Return the future that a thread waits for; None if its step is not async."""
        with self._lock:
            return self._futures.get(thread)

    def cancel(self, future: Awaited) -> None:
        """Cancel a coroutine; the thread that waits for it stops waiting, also if the coroutine goes on.

        A loop that is blocked by a step is left to that step: later steps get another loop.
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
        """End the loop and cancel what still runs on it, without waiting."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)


def _pipe_of(loop: asyncio.AbstractEventLoop) -> list[int | None]:
    """Return the inodes of the pipe by which other threads wake the loop."""
    ends = [getattr(loop, name, None) for name in ("_ssock", "_csock")]
    return [inode_of(end.fileno()) for end in ends if end is not None and end.fileno() >= 0]


def _result(
    future: Awaited, loop: asyncio.AbstractEventLoop, pipe: list[int | None], losses: int
) -> tuple[Any, BaseException | None]:
    """Wait for a coroutine's end. Raises `LoopLost` if its loop cannot be reached any more."""
    lost = False
    while True:
        try:
            return future.result(_LOOP_CHECK_SECONDS)
        except TimeoutError:
            if future.done():  # it is the coroutine's own
                raise
            if lost:
                _lost_loops.append(loop)
                raise LoopLost("the event loop of async steps was lost: a step has closed its descriptors") from None
            lost = check_descriptors() != losses or _pipe_of(loop) != pipe


async def _guarded(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Return exceptions that would end the loop, and with it all other steps, as values."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    except OSError:  # a step has closed its descriptors
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
