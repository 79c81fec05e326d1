"""The worker: claims attempts, runs their steps, and commits what came of them in groups.

Three kinds of loops share the work: the caller's thread claims, step threads execute, and committers settle whatever
came in while their last commits were under way. One heartbeat loop keeps all claims alive, and one housekeeping loop
tells that the worker is there and repairs what others left behind.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

from pydantic import JsonValue

from squid_dagster.journal.contract.dispatch_store import Answer, Claim, Interrupted, Outcome, Suspects, check_lease
from squid_dagster.journal.contract.notifier import Listener
from squid_dagster.journal.contract.worker_liveness import WorkerRow
from squid_dagster.limits import MAX_CLAIMS
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import InvalidArgument, SquidError
from squid_dagster.protocol.folds.attempt import Suspicion
from squid_dagster.protocol.threads import check_part
from squid_dagster.runtime.execution.executor import Executor
from squid_dagster.runtime.execution.forks import handled_here
from squid_dagster.runtime.execution.step_execution import interrupted
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.runtime.worker.committer import LONGEST_BACKOFF, Committer, OnSettled, StepResult
from squid_dagster.runtime.worker.due_times import DueTimes
from squid_dagster.runtime.worker.garbage_collection import frozen_heap
from squid_dagster.runtime.worker.heartbeats import Heartbeats
from squid_dagster.runtime.worker.maintenance import Maintenance
from squid_dagster.runtime.worker.outage import Outage
from squid_dagster.runtime.worker.probation import Probation
from squid_dagster.runtime.worker.report import WorkerReport
from squid_dagster.runtime.worker.step_pool import AsyncLoop, Job, StepPool
from squid_dagster.runtime.worker.step_threads import RunningSteps, step_names

logger = redacting_logger(__name__)

DEFAULT_POLL = timedelta(milliseconds=500)
_LOOK = 0.25  # seconds after which a stop is noticed at the latest: a signal handler only counts, and wakes nobody
_SECOND_LOOK = 0.02  # seconds after a claim that got some but less than it asked for
_SUSPECT_LOOK = 0.05  # seconds between two looks whether a suspect may begin, or others may beside it
_GATHER = 0.002  # how long a claim waits for more slots to become free, so that claims come in batches


@checks_arguments
class Worker:
    """Runs steps of the registered workflows from one or more queues, until it is stopped or, if asked, idle."""

    def __init__(
        self,
        runtime: Runtime,
        queues: Sequence[str],
        *,
        concurrency: int = 10,
        until_idle: bool = False,
        lease: timedelta | None = None,
        poll: timedelta = DEFAULT_POLL,
        grace: timedelta = timedelta(seconds=30),
        max_age: timedelta | None = None,
        housekeeping: timedelta | None = timedelta(seconds=30),
        worker_id: str | None = None,
        kind: str = "worker",
        details: Mapping[str, JsonValue] | None = None,
        heartbeat: timedelta | None = None,
        on_settled: OnSettled | None = None,
        abandon_after: timedelta = timedelta(seconds=10),
        max_abandoned: int | None = None,
    ) -> None:
        """Prepare a worker; `run` does the work.

        `concurrency` steps run at a time. `poll` is how often it looks when no wakeup comes. When stopped, running
        steps have `grace` to finish; what is left is given back. `housekeeping` is how often it recovers and starts due
        crons; None leaves that to others. `heartbeat` is how often leases are extended, by default every third of one.
        `details` are shown with its presence. `on_settled` is told about outcomes, a group at a time, once they are
        written; from two threads, and so at times while it is being told about others.

        A step that was cancelled and has not ended `abandon_after` that loses its slot, not its thread. When
        `max_abandoned` are left behind (by default twice `concurrency`, at least 10), the worker stops, for its
        process to be started again: `report.gave_up` says so.

        Raises:
            InvalidArgument, InvalidThread: a number or time out of range, or a bad queue.
        """
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= MAX_CLAIMS:
            raise InvalidArgument(f"concurrency must be a whole number from 1 to {MAX_CLAIMS}, not {concurrency!r}")
        if not queues:
            raise InvalidArgument("a worker needs at least one queue")
        self._runtime = runtime
        self._queues = [check_part(queue, "queue") for queue in queues]
        self._concurrency, self._until_idle = concurrency, until_idle
        self._lease = runtime.lease if lease is None else lease
        check_lease(self._lease)
        _check_times(poll=poll, grace=grace, max_age=max_age, housekeeping=housekeeping, abandon_after=abandon_after)
        if max_abandoned is None:
            max_abandoned = max(10, 2 * concurrency)
        if isinstance(max_abandoned, bool) or not isinstance(max_abandoned, int) or max_abandoned < 1:
            raise InvalidArgument(f"max_abandoned must be a whole number from 1 on, not {max_abandoned!r}")
        self._poll, self._grace, self._max_age = poll.total_seconds(), grace, max_age
        self.worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self.report = WorkerReport(self.worker_id)
        self._row = WorkerRow(
            worker_id=self.worker_id,
            kind=kind,
            queues=tuple(self._queues),
            definitions=tuple(sorted(runtime.registry.keys)),
            host=socket.gethostname(),
            pid=os.getpid(),
            capacity=concurrency,
            details=dict(details or {}),
        )
        self._outage = Outage(f"worker {self.worker_id}")
        every = None if until_idle else housekeeping
        self._housekeeping = Maintenance(runtime, self._describe, every, self._queues, self._outage)
        self._probation = Probation(self._lease.total_seconds())
        self._heartbeats = Heartbeats(runtime.dispatch, self._lease, heartbeat, self._outage)
        self._async = AsyncLoop()
        self._executor = Executor(runtime, self._async.run, self._lease)
        self._pool = StepPool(concurrency, self._execute)
        self._running = RunningSteps(abandon_after.total_seconds(), max_abandoned, self._async)
        self._slots = threading.Condition()
        self._held: dict[str, Job] = {}
        self._executed = 0  # of those that are held: their steps are done, and are being written down
        self._dues = DueTimes(time.monotonic)
        self._committer = Committer(
            runtime,
            self.report,
            wanted=lambda job: job.claim.ref.claim_id in self._held,
            written=self._written,
            due=self._dues.add,
            gives_up=lambda: self._stops > 1,
            outage=self._outage,
            on_settled=on_settled,
        )
        self._stops = 0
        self._ends_at: float | None = None
        self._listener: Listener | None = None

    @property
    def held(self) -> int:
        """How many attempts it holds now."""
        return len(self._held)

    @property
    def waiting(self) -> bool:
        """Whether it waits for its database now."""
        return self._outage.under_way

    # --- control ----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the worker to stop: it claims nothing more, finishes or gives back, and `run` returns.

        A second time, it gives everything back at once. Safe from any thread and from a signal handler.
        """
        self._stops += 1

    def run(self) -> WorkerReport:
        """Work until stopped, too old or, with `until_idle`, until nothing is due; then say what was done.

        SIGTERM and SIGINT stop it when called from the main thread.

        Raises:
            InvalidArgument: it has run before: make another one.
        """
        if self._listener is not None:
            raise InvalidArgument(f"worker {self.worker_id!r} has run already: make a new one")
        began = time.monotonic()
        self._ends_at = None if self._max_age is None else began + self._max_age.total_seconds()
        self._listener = self._runtime.notifier.listen(self._queues)
        with frozen_heap(), self._signals(), self._housekeeping:
            self._committer.start()
            try:
                self._claim_loop()
            finally:
                self._finish()
        self.report.seconds = time.monotonic() - began
        logger.info("%s", self.report)
        return self.report

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # The handler only counts: it may interrupt a thread that holds any lock of ours.
        with handled_here([signal.SIGTERM, signal.SIGINT], self.stop):
            yield

    def _describe(self) -> WorkerRow:
        # One that is about to end takes nothing more: whoever scales by presence starts another.
        left = self._running.abandoned
        details = {"abandoned": len(left), "abandoned_steps": step_names(left), "max_abandoned": self._running.most}
        return replace(
            self._row,
            running=len(self._held),
            capacity=0 if self._over() else self._row.capacity,
            details={**self._row.details, **details} if left else self._row.details,
        )

    # --- claiming ---------------------------------------------------------------------------------------------------

    def _claim_loop(self) -> None:
        """Claim and begin until it is over. Whatever goes wrong, a worker does not end by it."""
        backoff = 0.0
        while not self._over():
            try:
                if self._is_done():
                    return
                backoff = 0.0
            except Exception as error:  # noqa: BLE001  of the database or, by mistake, of ours: it is logged
                self._outage.begin("claiming", error)
                backoff = min(max(0.2, backoff * 2), LONGEST_BACKOFF)
                self._rest(backoff)

    def _is_done(self) -> bool:
        """Claim once, when a slot is free, and begin; tell whether nothing is left to do, where that is an end."""
        assert self._listener is not None  # noqa: S101  run opened it
        free, idle = self._free_slots()
        if not free or self._over():
            return False
        suspects = self._probation.rule(self._held, bool(self._held), time.monotonic())
        if suspects is None:
            with self._slots:
                self._slots.wait(_SUSPECT_LOOK)
            return False
        claims = self._claim(free, suspects)
        self._outage.end("claiming")
        if claims:
            self._begin(claims)
        elif idle and self._until_idle:
            return True
        if len(claims) < free:
            # No more, but for what other claimers had locked. What was begun goes first, then a second look.
            soon = bool(claims) or self._probation.waits
            self._rest(self._dues.next_within(min(self._poll, _SECOND_LOOK) if soon else self._poll))
        return False

    def _over(self) -> bool:
        return self._stops > 0 or (self._ends_at is not None and time.monotonic() > self._ends_at)

    def _rest(self, seconds: float) -> None:
        """Wait for a wakeup, or until it is over."""
        assert self._listener is not None  # noqa: S101  run opened it
        until = time.monotonic() + seconds
        while not self._over() and (left := until - time.monotonic()) > 0:
            if self._listener.wait(min(left, _LOOK)):
                return

    def _free_slots(self) -> tuple[int, bool]:
        """Wait for free slots, a moment longer when more are about to come; tell also whether nothing is under way."""
        self._abandon_overdue()
        with self._slots:
            if self._free() <= 0:
                self._slots.wait(min(self._poll, _LOOK))
            if 0 < self._free() < self._concurrency // 4:
                self._slots.wait(_GATHER)
            return self._free(), not self._held

    def _free(self) -> int:
        """How many steps could begin: others are claimed while outcomes are written down, up to as many again."""
        running = len(self._held) - self._executed
        return min(self._concurrency - running, 2 * self._concurrency - len(self._held))

    def _claim(self, free: int, suspects: Suspects) -> list[Claim]:
        claims: list[Claim] = []
        taken = passed_over = Suspicion.NONE
        try:
            for queue in list(self._queues):
                if len(claims) < free and taken is Suspicion.NONE:
                    claims += self._runtime.dispatch.claim(
                        queue,
                        self.worker_id,
                        limit=min(free - len(claims), MAX_CLAIMS),
                        lease=self._lease,
                        definitions=self._runtime.registry.keys,
                        suspects=suspects,
                    )
                    taken, passed_over = suspects.taken, max(passed_over, suspects.passed_over)
                    if claims:  # what the next queue has may not be taken beside them
                        suspects = Suspects(Suspicion.NONE)
        except Exception:
            if not claims:  # what was claimed is ours, and must be done
                raise
        finally:
            # The next claim begins with another queue, so that a full one never starves the others.
            self._queues.append(self._queues.pop(0))
            self._probation.observe(claims, taken, passed_over, time.monotonic())
        return claims

    def _begin(self, claims: list[Claim]) -> None:
        jobs = [Job(*pair) for pair in zip(claims, self._heartbeats.add(claims), strict=True)]
        with self._slots:
            self._held.update((job.claim.ref.claim_id, job) for job in jobs)
        self.report.claimed += len(claims)
        if self._stops:
            self._hand_back(jobs, self._committer.give_back)
        else:
            self._pool.submit(jobs)

    # --- executing --------------------------------------------------------------------------------------------------

    def _execute(self, job: Job) -> None:
        began = time.monotonic()
        self._running.begin(job)
        try:
            outcome = self._perform(job)
        except BaseException as error:  # not the step's failure: what a step raises is an outcome
            if not isinstance(error, SquidError):
                logger.exception("%s could not be executed", job.claim.ref.runnable_key)
            outcome = interrupted(error, job.claim.attempt)
        seconds = time.monotonic() - began
        if not self._running.end(job):
            logger.warning("%s, which was abandoned, has ended after %.0f s", job.claim.ref.runnable_key, seconds)
            return
        self._heartbeats.note_outcome(job.claim)
        with self._slots:
            self._executed += 1
            if self._free() == max(1, self._concurrency // 2):
                self._slots.notify()
        self._committer.put(StepResult(job, outcome, seconds))

    def _perform(self, job: Job) -> Outcome | Answer:
        if job.cancelled:  # its claim was lost while it waited for a thread: what it does would be dropped
            return Interrupted("the claim was lost before the step was called")
        return self._executor.perform(job.claim, job.cancelled)

    def _abandon_overdue(self) -> None:
        """Take the slots of steps that were cancelled and do not end; stop when too many are left behind."""
        for job in self._running.overdue(time.monotonic()):
            self._pool.abandon(job)
            with self._slots:
                self._held.pop(job.claim.ref.claim_id, None)
            self.report.abandoned += 1
            logger.error(
                "%s was cancelled and does not end: it is abandoned with its thread, and its slot is free again. "
                "Let the step look at ctx.cancelled, or run it with isolate=True",
                job.claim.ref.runnable_key,
            )
        if self._running.is_spent and not self._stops:
            left = self._running.abandoned
            self.report.gave_up = (
                f"{len(left)} cancelled steps do not end ({step_names(left)}), as many as may be left behind: "
                "start this worker again"
            )
            logger.error("worker %s stops: %s", self.worker_id, self.report.gave_up)
            self.stop()

    def _written(self, jobs: list[Job]) -> None:
        """Let go of jobs that a committer is done with, whatever came of them."""
        with self._slots:
            mine = [job for job in jobs if self._held.pop(job.claim.ref.claim_id, None) is not None]
            self._executed -= len(jobs)
            self._slots.notify_all()
        self._heartbeats.remove([job.claim for job in mine])
        if self._listener is not None:
            self._listener.wake()

    # --- stopping ---------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._hand_back(self._pool.take_back(), self._committer.give_back)
        if self._stops:
            logger.info("worker %s stops: %d steps have %s to finish", self.worker_id, len(self._held), self._grace)
        deadline = time.monotonic() + self._grace.total_seconds()
        with self._slots:
            while self._held and time.monotonic() < deadline and self._stops < 2:
                self._slots.wait(0.1)
            left = list(self._held.values())
        self._hand_back(left, self._committer.interrupt)
        self._committer.close(self._grace)
        self._heartbeats.close()
        self._pool.close()
        self._async.close()
        if self._listener is not None:
            self._listener.close()

    def _hand_back(self, jobs: list[Job], give_back: Callable[[list[Claim], str], None]) -> None:
        """Give attempts back; whatever their steps still return is dropped. Steps that were called are interrupted."""
        with self._slots:
            for job in jobs:
                self._held.pop(job.claim.ref.claim_id, None)
                job.cancelled.set()
        self._heartbeats.remove([job.claim for job in jobs])
        try:
            give_back([job.claim for job in jobs], "the worker stopped")
        except Exception as error:  # noqa: BLE001  whatever it is, the worker has to end
            logger.warning("%d attempts could not be given back, their leases will run out: %s", len(jobs), error)


def _check_times(**times: timedelta | None) -> None:
    """Raise `InvalidArgument` unless all times are positive; `grace` may be none at all."""
    for name, value in times.items():
        if value is None and name in ("max_age", "housekeeping"):
            continue
        if not isinstance(value, timedelta) or value < timedelta(0) or (not value and name != "grace"):
            raise InvalidArgument(f"{name} must be a positive timedelta, not {value!r}")
