"""The worker: claims attempts, runs their steps, and commits their outcomes in groups.

Three kinds of loops share the work: the calling thread claims, step threads execute, and committers settle the outcomes
that came in during their last commits. One heartbeat loop extends all leases. One maintenance loop reports that the
worker is alive, and recovers.
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

from squid_dagster.journal.contract.dispatch_store import Answer, Claim, Interrupted, Outcome, Suspects, check_claim
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

_LONGEST = timedelta(days=36_500)
logger = redacting_logger(__name__)

DEFAULT_POLL = timedelta(milliseconds=500)
_LONGEST_WAIT = 0.25  # seconds until a stop is noticed at the latest: a signal handler only counts, and wakes no thread
_SHORT_POLL = 0.02  # seconds after a claim that got some attempts, but fewer than requested
_SUSPECT_WAIT = 0.05  # seconds between two checks whether a suspect may begin, or others beside it
_BATCH_WAIT = 0.002  # seconds for which a claim waits for more free slots, so that claims come in batches


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

        `concurrency` steps run at a time. `poll` is how often it claims if no wakeup comes. When stopped, running steps
        have `grace` to finish; the rest is released. `housekeeping` is how often it recovers and starts due crons; None
        leaves that to other workers. `heartbeat` is how often leases are extended, by default every third of one.
        `details` are shown with its liveness. `on_settled` is called with outcomes, a group at a time, once they are
        written; from two threads, so that calls may overlap.

        A step that was cancelled and has not ended `abandon_after` that loses its slot, not its thread. Once
        `max_abandoned` steps are abandoned (by default twice `concurrency`, at least 10), the worker stops, so that its
        process is started again: `report.gave_up` says so.

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
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self.worker_id = name if worker_id is None else worker_id
        check_claim(self._queues[0], self.worker_id, 1, self._lease, None)
        _check_times(poll=poll, grace=grace, max_age=max_age, housekeeping=housekeeping, abandon_after=abandon_after)
        if max_abandoned is None:
            max_abandoned = max(10, 2 * concurrency)
        if isinstance(max_abandoned, bool) or not isinstance(max_abandoned, int) or max_abandoned < 1:
            raise InvalidArgument(f"max_abandoned must be a whole number from 1 on, not {max_abandoned!r}")
        self._poll, self._grace, self._max_age = poll.total_seconds(), grace, max_age
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
        self._maintenance = Maintenance(runtime, self._describe, every, self._queues, self._outage)
        self._probation = Probation(self._lease.total_seconds())
        self._heartbeats = Heartbeats(runtime.dispatch, self._lease, heartbeat, self._outage)
        self._async = AsyncLoop()
        self._executor = Executor(runtime, self._async.run, self._lease)
        self._pool = StepPool(concurrency, self._execute)
        self._running = RunningSteps(abandon_after.total_seconds(), max_abandoned, self._async)
        self._slots = threading.Condition()
        self._held: dict[str, Job] = {}
        self._executed = 0  # held jobs whose steps have ended, and whose outcomes are being written
        self._due_times = DueTimes(time.monotonic)
        self._committer = Committer(
            runtime,
            self.report,
            wanted=lambda job: job.claim.ref.claim_id in self._held,
            written=self._written,
            due=self._due_times.add,
            gives_up=lambda: self._stops > 1,
            outage=self._outage,
            on_settled=on_settled,
        )
        self._stops = 0
        self._ends_at: float | None = None
        self._listener: Listener | None = None

    @property
    def held(self) -> int:
        """The number of attempts that it holds now."""
        return len(self._held)

    @property
    def waiting(self) -> bool:
        """Whether it waits for its database now."""
        return self._outage.under_way

    def stop(self) -> None:
        """Stop the worker: it claims nothing more, finishes or releases its attempts, and `run` returns.

        The second call releases everything at once. Safe from any thread and from a signal handler.
        """
        self._stops += 1

    def run(self) -> WorkerReport:
        """Run until stopped, until `max_age` or, with `until_idle`, until nothing is due; return a report.

        SIGTERM and SIGINT stop it when called from the main thread.

        Raises:
            InvalidArgument: it has run before: create another one.
        """
        if self._listener is not None:
            raise InvalidArgument(f"worker {self.worker_id!r} has run already: make a new one")
        began = time.monotonic()
        self._ends_at = None if self._max_age is None else began + self._max_age.total_seconds()
        self._listener = self._runtime.notifier.listen(self._queues)
        with frozen_heap(), self._signals(), self._maintenance:
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
        # The handler only counts: the interrupted thread may hold any lock of ours.
        with handled_here([signal.SIGTERM, signal.SIGINT], self.stop):
            yield

    def _describe(self) -> WorkerRow:
        # A worker that is about to end has no capacity, so that an autoscaler starts another one.
        left = self._running.abandoned
        details = {"abandoned": len(left), "abandoned_steps": step_names(left), "max_abandoned": self._running.most}
        return replace(
            self._row,
            running=len(self._held),
            capacity=0 if self._over() else self._row.capacity,
            details={**self._row.details, **details} if left else self._row.details,
        )

    def _claim_loop(self) -> None:
        """Claim and begin until the worker is to end. No error ends it."""
        backoff = 0.0
        while not self._over():
            try:
                if self._is_done():
                    return
                backoff = 0.0
            except Exception as error:  # noqa: BLE001  of the database, or a defect of ours: it is logged
                self._outage.begin("claiming", error)
                backoff = min(max(0.2, backoff * 2), LONGEST_BACKOFF)
                self._rest(backoff)

    def _is_done(self) -> bool:
        """Claim once, if a slot is free, and begin; return whether the worker ends because nothing is left."""
        assert self._listener is not None  # noqa: S101  run opened it
        free, idle = self._free_slots()
        if not free or self._over():
            return False
        suspects = self._probation.rule(self._held, bool(self._held), time.monotonic())
        if suspects is None:
            with self._slots:
                self._slots.wait(_SUSPECT_WAIT)
            return False
        claims = self._claim(free, suspects)
        self._outage.end("claiming")
        if claims:
            self._begin(claims)
        elif idle and self._until_idle:
            return True
        if len(claims) < free:
            # There were no more, except attempts that other claims had locked: claim again a little later.
            soon = bool(claims) or self._probation.waits
            self._rest(self._due_times.next_within(min(self._poll, _SHORT_POLL) if soon else self._poll))
        return False

    def _over(self) -> bool:
        return self._stops > 0 or (self._ends_at is not None and time.monotonic() > self._ends_at)

    def _rest(self, seconds: float) -> None:
        """Wait for a wakeup, or until the worker is to end."""
        assert self._listener is not None  # noqa: S101  run opened it
        until = time.monotonic() + seconds
        while not self._over() and (left := until - time.monotonic()) > 0:
            if self._listener.wait(min(left, _LONGEST_WAIT)):
                return

    def _free_slots(self) -> tuple[int, bool]:
        """Wait for free slots, and shortly for more of them; return how many, and whether no job is held."""
        self._abandon_overdue()
        with self._slots:
            if self._free() <= 0:
                self._slots.wait(min(self._poll, _LONGEST_WAIT))
            if 0 < self._free() < self._concurrency // 4:
                self._slots.wait(_BATCH_WAIT)
            return self._free(), not self._held

    def _free(self) -> int:
        """Return how many steps could begin: while outcomes are written, up to `concurrency` more are claimed."""
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
                    if claims:  # a suspect of the next queue may not be claimed beside them
                        suspects = Suspects(Suspicion.NONE)
        except Exception:
            if not claims:  # attempts that were claimed must be executed
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
            self._release(jobs, self._committer.release)
        else:
            self._pool.submit(jobs)

    def _execute(self, job: Job) -> None:
        began = time.monotonic()
        self._running.begin(job)
        try:
            outcome = self._perform(job)
        except BaseException as error:  # not of the step: what a step raises becomes an outcome
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
        if job.cancelled:  # its claim was lost while it waited for a thread: its result would be dropped
            return Interrupted("the claim was lost before the step was called")
        return self._executor.perform(job.claim, job.cancelled)

    def _abandon_overdue(self) -> None:
        """Free the slots of cancelled steps that do not end; stop once too many are abandoned."""
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
        """Remove jobs that a committer has finished, written or not."""
        with self._slots:
            mine = [job for job in jobs if self._held.pop(job.claim.ref.claim_id, None) is not None]
            self._executed -= len(jobs)
            self._slots.notify_all()
        self._heartbeats.remove([job.claim for job in mine])
        if self._listener is not None:
            self._listener.wake()

    def _finish(self) -> None:
        self._release(self._pool.withdraw(), self._committer.release)
        if self._stops:
            logger.info("worker %s stops: %d steps have %s to finish", self.worker_id, len(self._held), self._grace)
        deadline = time.monotonic() + self._grace.total_seconds()
        with self._slots:
            while self._held and time.monotonic() < deadline and self._stops < 2:
                self._slots.wait(0.1)
            left = list(self._held.values())
        self._release(left, self._committer.interrupt)
        self._committer.close(self._grace)
        self._heartbeats.close()
        self._pool.close()
        self._async.close()
        if self._listener is not None:
            self._listener.close()

    def _release(self, jobs: list[Job], release: Callable[[list[Claim], str], None]) -> None:
        """Release attempts, or interrupt those whose steps were called; what these still return is dropped."""
        with self._slots:
            for job in jobs:
                self._held.pop(job.claim.ref.claim_id, None)
                job.cancelled.set()
        self._heartbeats.remove([job.claim for job in jobs])
        try:
            release([job.claim for job in jobs], "the worker stopped")
        except Exception as error:  # noqa: BLE001  the worker has to end
            logger.warning("%d attempts could not be given back, their leases will run out: %s", len(jobs), error)


def _check_times(**times: timedelta | None) -> None:
    """Raise `InvalidArgument` unless all times are positive; `grace` may be zero."""
    for name, value in times.items():
        if value is None and name in ("max_age", "housekeeping"):
            continue
        if not isinstance(value, timedelta) or not timedelta(0) <= value <= _LONGEST or (not value and name != "grace"):
            raise InvalidArgument(f"{name} must be a positive timedelta of at most 100 years, not {value!r}")
