"""Threads that run steps: few for those that take no time, and as many as allowed for all others."""

import threading
import time
from typing import cast

import pytest

from squid_dagster.journal.contract.dispatch_store import Claim
from squid_dagster.runtime.worker.step_pool import Job, StepPool
from squid_dagster.workflow.authoring.step_context import Cancellation


class _ConcurrentWork:
    """Work of some length that notes how many do it at the same time."""

    def __init__(self, seconds: float, jobs: int) -> None:
        self._seconds, self._left = seconds, jobs
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0
        self.done = threading.Event()

    def __call__(self, _: Job) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(self._seconds)  # the work itself
        with self._lock:
            self._now -= 1
            self._left -= 1
            if not self._left:
                self.done.set()


@pytest.mark.parametrize("milliseconds", [1, 3, 50])
def test_steps_that_wait_for_others_run_as_many_at_a_time_as_are_allowed(milliseconds: int) -> None:
    # given steps that are done so soon that two threads always move on, and slower ones
    work = _ConcurrentWork(milliseconds / 1000, jobs=2_000 if milliseconds < 50 else 100)
    pool = StepPool(40, work)
    # when many are handed over
    pool.submit([Job(cast("Claim", object()), Cancellation()) for _ in range(2_000 if milliseconds < 50 else 100)])
    assert work.done.wait(60)
    pool.close()
    # then they do not stand in line behind the two threads that stay, and never more run than may
    assert 20 <= work.most <= 40
