"""Running steps of one worker: which threads they have, and which of them were cancelled and do not end.

No thread can be killed. A step whose claim is lost and that does not end within a bound is *abandoned*: it keeps its
thread, and its slot is given to another one. How many may be left behind like that is bounded, too.
"""

import threading
from dataclasses import dataclass

from squid_dagster.runtime.worker.step_pool import AsyncLoop, Job


@dataclass(slots=True)
class _Running:
    job: Job
    thread: int
    lost_at: float | None = None  # when the cancellation was first seen
    nudged: bool = False


class RunningSteps:
    """The steps under way, and those that were abandoned. Safe between threads."""

    def __init__(self, after_seconds: float, most: int, loop: AsyncLoop) -> None:
        """Abandon steps so long after their claim was lost; `most` is how many may be left behind at a time.

        Async steps are on `loop`.
        """
        self.most = most
        self._after, self._loop = after_seconds, loop
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._abandoned: dict[str, Job] = {}

    def begin(self, job: Job) -> None:
        """Note that this thread has begun with a step."""
        with self._lock:
            self._running[_key(job)] = _Running(job, threading.get_ident())

    def end(self, job: Job) -> bool:
        """Note that a step has ended; return False if it was abandoned before."""
        with self._lock:
            self._abandoned.pop(_key(job), None)
            return self._running.pop(_key(job), None) is not None

    def overdue(self, now: float) -> list[Job]:
        """Return steps that are to be abandoned now: from here on they count as such.

        An async step is cancelled first, and has as long again to end.
        """
        with self._lock:
            late = [each for each in self._running.values() if each.job.cancelled and self._is_late(each, now)]
            awaited = {_key(each.job): self._loop.awaited_by(each.thread) for each in late if not each.nudged}
            for each in late:
                if awaited.get(_key(each.job)) is not None:
                    each.nudged, each.lost_at = True, now
                else:
                    del self._running[_key(each.job)]
                    self._abandoned[_key(each.job)] = each.job
        for future in awaited.values():
            if future is not None:  # without the lock: an event loop is given a moment to answer
                self._loop.cancel(future)
        return [each.job for each in late if awaited.get(_key(each.job)) is None]

    def _is_late(self, each: _Running, now: float) -> bool:
        if each.lost_at is None:
            each.lost_at = now
        return now - each.lost_at >= self._after

    @property
    def abandoned(self) -> list[Job]:
        """The steps that were left behind and have not ended since."""
        with self._lock:
            return list(self._abandoned.values())

    @property
    def is_spent(self) -> bool:
        """Whether as many steps were left behind as may be."""
        return len(self._abandoned) >= self.most


def _key(job: Job) -> str:
    return job.claim.ref.claim_id


def step_names(jobs: list[Job]) -> str:
    """Return the names of the steps of these jobs, each once, the first few."""
    names = sorted({f"{job.claim.attempt.workflow}.{job.claim.attempt.step}" for job in jobs})
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
