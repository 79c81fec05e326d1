"""Drain runs without their database do not end for want of work; one whose worker gives up says why."""

import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

from squid_dagster.api import Squid
from squid_dagster.journal import Claim, PostgresDispatchStore, PostgresStorage
from squid_dagster.plugin.dispatch.drain import Drain, Limits
from squid_dagster.plugin.dispatch.step_events import LineBuffer
from squid_dagster.protocol.errors import StorageUnavailable
from squid_dagster.runtime.worker.worker import Worker
from squid_dagster.workflow import Workflow
from tests.runtime.workers import PATIENCE, until

LINGER = 0.3


class _Away(PostgresDispatchStore):
    """A dispatch store that gives no claim until it is back."""

    back = threading.Event()

    def claim(self, *args: Any, **options: Any) -> list[Claim]:
        if not self.back.is_set():
            raise StorageUnavailable("its disk is full")
        return super().claim(*args, **options)


def drain_of(worker: Worker) -> Drain:
    """Return a drain that ends soon after it has nothing to do."""
    return Drain(
        worker,
        Limits(linger_seconds=LINGER, max_age_seconds=PATIENCE, grace_seconds=1),
        buffer=LineBuffer(),
        write=lambda *_: None,
        superseded=lambda: False,
        summarize=lambda: None,
    )


def test_a_drain_run_does_not_take_an_outage_for_an_empty_queue(postgres: PostgresStorage) -> None:
    # given a drain run that would end soon, and cannot ask for work
    workflow = Workflow("one")
    workflow.step(name="step")(lambda: None)
    squid, store = Squid(postgres, workflow), _Away(postgres)
    squid.runtime = replace(squid.runtime, dispatch=store)
    worker, ends = squid.new_worker(), list[str]()
    drain = drain_of(worker)
    running = threading.Thread(target=lambda: ends.append(drain.run()), daemon=True)
    running.start()
    until(lambda: worker.waiting, "the outage")
    # when that takes longer than it lingers
    until_then = time.monotonic() + 4 * LINGER
    until(lambda: time.monotonic() > until_then, "a while")
    assert running.is_alive()
    # then it does what is due as soon as it can, and ends when nothing is
    run_id = squid.start("one").run_id
    store.back.set()
    running.join(PATIENCE)
    assert ends == [f"nothing was due for {LINGER:g} s"]
    assert squid.inspect_run(run_id).status == "completed"
    squid.close()


def test_a_drain_run_that_left_too_many_steps_behind_says_why_it_ends(postgres: PostgresStorage) -> None:
    # given a step that does not end when it is cancelled, and a worker that may leave one behind
    begun, let_go, workflow = threading.Event(), threading.Event(), Workflow("deaf")

    @workflow.step
    def step() -> None:
        begun.set()
        assert let_go.wait(PATIENCE)

    soon = timedelta(milliseconds=50)
    squid = Squid(postgres, workflow)
    worker = Worker(
        squid.runtime, ["default"], concurrency=1, max_abandoned=1, heartbeat=soon, abandon_after=soon, grace=soon
    )
    run_id, ends, drain = squid.start("deaf").run_id, list[str](), drain_of(worker)
    running = threading.Thread(target=lambda: ends.append(drain.run()), daemon=True)
    running.start()
    assert begun.wait(PATIENCE)
    # when its run is cancelled
    squid.cancel(run_id)
    running.join(PATIENCE)
    let_go.set()
    # then the reason is that of the worker
    assert ends == [worker.report.gave_up]
    assert "1 cancelled steps do not end (deaf.step" in ends[0]
    squid.close()
