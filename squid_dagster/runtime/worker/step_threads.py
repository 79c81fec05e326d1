"""Running steps of one worker: their threads, and the steps that were cancelled and do not end.

No thread can be killed. A step whose claim is lost and that does not end within a bound is *abandoned*: it keeps its
thread, and another step gets its slot. The number of abandoned steps is bounded too.
"""

import threading
from dataclasses import dataclass

from squid_dagster.runtime.worker.step_pool import AsyncLoop, Job


@dataclass(slots=True)
class _Running:
    job: Job
    thread: int
    lost_at: float | None = None  # when the cancellation was first seen
    cancelled: bool = False  # an async step, whose coroutine was cancelled


class RunningSteps:
    """The steps under way, and those that were abandoned. Safe between threads."""

    def __init__(self, after_seconds: float, most: int, loop: AsyncLoop) -> None:
        """Abandon steps that long after their claim was lost, at most `most` at a time. Async steps are on `loop`."""
        self.most = most
        self._after, self._loop = after_seconds, loop
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._abandoned: dict[str, Job] = {}

    def begin(self, job: Job) -> None:
        """Record that this thread has begun a step."""
        with self._lock:
            self._running[_key(job)] = _Running(job, threading.get_ident())

    def end(self, job: Job) -> bool:
        """Record that a step has ended; return False if it was abandoned before."""
        with self._lock:
            self._abandoned.pop(_key(job), None)
            return self._running.pop(_key(job), None) is not None

    def overdue(self, now: float) -> list[Job]:
        """Abandon steps that are overdue, and return them.

        An async step is cancelled first, and has as long again to end.
        """
        with self._lock:
            late = [
                running for running in self._running.values() if running.job.cancelled and self._is_late(running, now)
            ]
            awaited = {
                _key(running.job): self._loop.awaited_by(running.thread) for running in late if not running.cancelled
            }
            for running in late:
                if awaited.get(_key(running.job)) is not None:
                    running.cancelled, running.lost_at = True, now
                else:
                    del self._running[_key(running.job)]
                    self._abandoned[_key(running.job)] = running.job
        for future in awaited.values():
            if future is not None:  # without the lock, since an event loop gets a moment to answer
                self._loop.cancel(future)
        return [running.job for running in late if awaited.get(_key(running.job)) is None]

    def _is_late(self, running: _Running, now: float) -> bool:
        if running.lost_at is None:
            running.lost_at = now
        return now - running.lost_at >= self._after

    @property
    def abandoned(self) -> list[Job]:
        """The abandoned steps that have not ended since."""
        with self._lock:
            return list(self._abandoned.values())

    @property
    def is_spent(self) -> bool:
        """Whether as many steps are abandoned as may be."""
        return len(self._abandoned) >= self.most


def _key(job: Job) -> str:
    return job.claim.ref.claim_id


def step_names(jobs: list[Job]) -> str:
    """Return the names of the first few steps of these jobs, each once."""
    names = sorted({f"{job.claim.attempt.workflow}.{job.claim.attempt.step}" for job in jobs})
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
