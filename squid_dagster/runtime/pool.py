"""Threads that run steps, and the loop that async steps run on. Knows nothing of claims' outcomes: it hands them on."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, NamedTuple

from squid_dagster.journal.dispatch import Claim
from squid_dagster.workflow.context import Cancellation


class Job(NamedTuple):
    """A claimed attempt on its way to a thread."""

    claim: Claim
    cancelled: Cancellation


class StepPool:
    """Up to `size` threads, started as they are needed. They are daemons: a step that hangs keeps no process alive."""

    def __init__(self, size: int, work: Callable[[Job], None]) -> None:
        """Run `work` for each job; it must not raise."""
        self._size, self._work = size, work
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waiting = 0
        self._lock = threading.Lock()

    def submit(self, jobs: list[Job]) -> None:
        """Hand jobs over."""
        with self._lock:
            self._waiting += len(jobs)
            missing = min(self._waiting, self._size) - len(self._threads)
        for job in jobs:
            self._jobs.put(job)
        for _ in range(missing):
            thread = threading.Thread(target=self._loop, name="squid-step", daemon=True)
            self._threads.append(thread)
            thread.start()

    def take_back(self) -> list[Job]:
        """Give the jobs that no thread has begun."""
        found = []
        while not self._jobs.empty():
            job = self._jobs.get()
            if job is not None:
                found.append(job)
        return found

    def close(self) -> None:
        """Let threads end once they have nothing to do; waits for none of them."""
        for _ in self._threads:
            self._jobs.put(None)

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._work(job)
            with self._lock:
                self._waiting -= 1


class AsyncLoop:
    """One event loop in a thread of its own, for async steps of all threads."""

    def __init__(self) -> None:
        """Begin when the first coroutine comes."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end and give what it returns; raises what it raises."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=(self._loop,), name="squid-async", daemon=True).start()
            loop = self._loop
        returned, ended = asyncio.run_coroutine_threadsafe(_guarded(coroutine), loop).result()
        if ended is not None:
            raise ended
        return returned

    def close(self) -> None:
        """End the loop; what still runs on it is cancelled. Waits for nobody."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)


async def _guarded(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Keep from the loop what would end it, and with it the steps of all others."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.run_until_complete(_cancel_the_rest())
    loop.close()


async def _cancel_the_rest() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
