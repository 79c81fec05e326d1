"""Committers: threads that settle outcomes in groups, while other steps run.

There are two, so that one plans while the other waits for the database. Each takes all outcomes that came in meanwhile.
Outcomes of one run go to the same committer: otherwise both would plan for it at the same time, and only one plan can
be written. An outcome that cannot be written yet, because another session has locked its run, is repeated later.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import NamedTuple

from squid_dagster.journal.contract.dispatch_store import (
    Answer,
    Claim,
    Completed,
    Deferred,
    Interrupted,
    Outcome,
    Settlement,
)
from squid_dagster.journal.settlement.rounds import outcome_bytes
from squid_dagster.limits import MAX_ROUND_BYTES
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import SchemaOutdated, StorageUnavailable, ViewsMissing
from squid_dagster.protocol.folds.attempt import AttemptStatus
from squid_dagster.runtime.execution.settlement import Settled, settle
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.runtime.worker.outage import Outage
from squid_dagster.runtime.worker.report import SettledAttempt, WorkerReport
from squid_dagster.runtime.worker.step_pool import Job

logger = redacting_logger(__name__)

OnSettled = Callable[[Sequence[SettledAttempt]], None]

COMMITTERS = 2
GROUP, GROUP_BYTES = 500, MAX_ROUND_BYTES // 2  # outcomes in one commit, and their JSON
_FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 5.0
_RELEASE_SECONDS = 5.0  # within which a release is repeated


def committer_of(run_id: str) -> int:
    """Return the number of the committer that writes a run's outcomes in this process."""
    return hash(run_id) % COMMITTERS


class StepResult(NamedTuple):
    """A step that has ended: its outcome, or the answer if it was settled with its own transaction."""

    job: Job
    outcome: Outcome | Answer
    seconds: float

    @property
    def size(self) -> int:
        """The number of bytes of its outcome, as JSON."""
        return 0 if isinstance(self.outcome, Answer) else outcome_bytes(self.outcome)


class _Unwritten:
    """Outcomes that could not be written yet although others could, and when to repeat them."""

    def __init__(self) -> None:
        self.outcomes: list[StepResult] = []
        self._due_at, self._backoff = 0.0, _FIRST_BACKOFF

    @property
    def seconds(self) -> float | None:
        """In how many seconds they are repeated; None if there are none."""
        return max(0.0, self._due_at - time.monotonic()) if self.outcomes else None

    def add(self, group: Sequence[StepResult]) -> None:
        """Keep outcomes after their first try: they are repeated soon, also if others wait longer."""
        if not self.outcomes:
            self._backoff = _FIRST_BACKOFF
        if group:
            soon = time.monotonic() + _FIRST_BACKOFF
            self._due_at = min(self._due_at, soon) if self.outcomes else soon
            self.outcomes += group

    def replace(self, group: Sequence[StepResult]) -> None:
        """Keep the outcomes that are left after all were repeated."""
        self.outcomes = list(group)
        self._backoff = min(self._backoff * 2, LONGEST_BACKOFF)
        self._due_at = time.monotonic() + self._backoff


class Committer:
    """Writes outcomes from two threads. Every job that was put here is passed to `written`, also after an error."""

    def __init__(
        self,
        runtime: Runtime,
        report: WorkerReport,
        *,
        wanted: Callable[[Job], bool],
        written: Callable[[list[Job]], None],
        due: Callable[[list[timedelta]], None],
        gives_up: Callable[[], bool],
        outage: Outage,
        on_settled: OnSettled | None = None,
    ) -> None:
        """Write for `runtime` and count in `report`.

        Outcomes of jobs that are not `wanted` any more are dropped. `due` gets the delays after which scheduled work is
        due. While the database is unavailable, which `outage` logs, writing is repeated until `gives_up` returns True.
        """
        self._outage = outage
        self._runtime, self._report = runtime, report
        self._wanted, self._written, self._due = wanted, written, due
        self._gives_up, self._on_settled = gives_up, on_settled
        self._done: list[SimpleQueue[StepResult | None]] = [SimpleQueue() for _ in range(COMMITTERS)]
        self._counting = threading.Lock()
        self._threads = [
            threading.Thread(target=self._loop, args=(done,), name=f"squid-committer-{i}", daemon=True)
            for i, done in enumerate(self._done)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def put(self, executed: StepResult) -> None:
        """Put the result of a step into the queue of its run's committer."""
        self._done[committer_of(executed.job.claim.ref.run_id)].put(executed)

    def close(self, timeout: timedelta) -> None:
        """Write all results that were put, and end; wait for that no longer than `timeout`."""
        until = time.monotonic() + timeout.total_seconds()
        for done in self._done:
            done.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _loop(self, done: SimpleQueue[StepResult | None]) -> None:
        unwritten, open_ = _Unwritten(), True
        while open_ or unwritten.outcomes:
            group: list[StepResult] = []
            if open_:
                group, open_ = _next_group(done, unwritten.seconds)
            else:
                time.sleep(unwritten.seconds or 0.0)
            if group:
                unwritten.add(self._commit(group))
            if unwritten.seconds == 0.0:
                unwritten.replace(self._commit(unwritten.outcomes))
            if not unwritten.outcomes:
                self._outage.end(_part("an outcome"))

    def _commit(self, group: list[StepResult]) -> list[StepResult]:
        """Write outcomes and finish their jobs; return those that are to be repeated, and held until then."""
        wanted = [result for result in group if self._wanted(result.job)]
        left: list[StepResult] = []
        try:
            answered = [
                (result, Completed(None), result.outcome) for result in wanted if isinstance(result.outcome, Answer)
            ]
            self._count(answered)
            if answered:
                self._runtime.notifier.notify({result.job.claim.ref.queue for result, _, _ in answered})
            left = self._settle(wanted)
        except Exception:
            logger.exception("%d outcomes could not be written: their leases will run out", len(wanted))
        finally:
            again = {id(result) for result in left}
            self._written([result.job for result in group if id(result) not in again])
        return left

    def _settle(self, group: list[StepResult]) -> list[StepResult]:
        """Write outcomes; return those that are to be repeated."""
        pending: list[tuple[StepResult, Outcome]] = [
            (result, result.outcome) for result in group if not isinstance(result.outcome, Answer)
        ]
        if not pending:
            return []
        settled = self._persist([Settlement(result.job.claim.ref, outcome) for result, outcome in pending])
        with self._counting:
            self._report.commits += not all(answer.unavailable for answer in settled.answers)
        self._due(settled.delays)
        left: list[StepResult] = []
        answered: list[tuple[StepResult, Outcome, Answer]] = []
        for (result, outcome), answer in zip(pending, settled.answers, strict=True):
            # A lost claim, or a second stop, ends the repetition: the lease runs out.
            if answer.unavailable and answer.error is not None and not result.job.cancelled and not self._gives_up():
                self._outage.begin(_part("an outcome"), answer.error)
                left.append(result)
            else:
                answered.append((result, outcome, answer))
        self._count(answered)
        return left

    def _persist(self, settlements: Sequence[Settlement]) -> Settled:
        """Write as soon as the database is available. Outcomes whose lease ran out meanwhile are refused then."""
        backoff, part = _FIRST_BACKOFF, _part("writing outcomes")
        try:
            while True:
                try:
                    return settle(self._runtime, settlements)
                except (StorageUnavailable, ViewsMissing, SchemaOutdated) as error:
                    if self._gives_up():
                        raise
                    self._outage.begin(part, error)
                    time.sleep(backoff)
                    backoff = min(backoff * 2, LONGEST_BACKOFF)
        finally:
            self._outage.end(part)

    def _count(self, answered: Sequence[tuple[StepResult, Outcome, Answer]]) -> None:
        with self._counting:
            for result, outcome, answer in answered:
                self._count_one(result.job.claim, outcome, answer)
        if self._on_settled is not None and answered:
            settled = [
                SettledAttempt(result.job.claim.attempt, outcome, a.error, result.seconds)
                for result, outcome, a in answered
            ]
            try:
                self._on_settled(settled)
            except Exception:
                logger.exception("the observer of outcomes failed")

    def _count_one(self, claim: Claim, outcome: Outcome, answer: Answer) -> None:
        report = self._report
        if answer.error is not None:
            report.refused += 1
            logger.warning("%s", answer.error)
        elif isinstance(outcome, Completed):
            report.completed += 1
            report.steps[f"{claim.attempt.workflow}.{claim.attempt.step}"] += 1
        elif isinstance(outcome, Deferred):
            report.deferred += 1
        elif isinstance(outcome, Interrupted):
            report.released += 1
            _log_interrupted(claim, outcome, answer)
        elif outcome.retry is not None:
            report.retried += 1
        else:
            report.failed += 1

    def release(self, claims: Sequence[Claim], reason: str) -> None:
        """Release attempts whose steps were not called, and wake other workers. Raises what the database raises."""

        def count(_: Claim, answer: Answer) -> None:
            self._report.released += answer.error is None

        self._end(claims, lambda left: self._runtime.dispatch.release([claim.ref for claim in left], reason), count)

    def interrupt(self, claims: Sequence[Claim], reason: str) -> None:
        """Settle attempts as interrupted, which counts as a delivery, and wake other workers for them.

        Raises what the database raises.
        """
        outcome = Interrupted(reason)

        def settle_left(left: list[Claim]) -> Sequence[Answer]:
            return settle(self._runtime, [Settlement(claim.ref, outcome) for claim in left]).answers

        def count(claim: Claim, answer: Answer) -> None:
            if not answer.unavailable:
                self._count_one(claim, outcome, answer)

        self._end(claims, settle_left, count)

    def _end(
        self,
        claims: Sequence[Claim],
        write: Callable[[list[Claim]], Sequence[Answer]],
        count: Callable[[Claim, Answer], None],
    ) -> None:
        """Write the end of claims; for a while, repeat those that cannot be written now; then raise their error."""
        until, left = time.monotonic() + _RELEASE_SECONDS, list(claims)
        answered: list[tuple[Claim, Answer]] = []
        while left:
            tried = list(zip(left, write(left), strict=True))
            repeats = time.monotonic() <= until
            left = [claim for claim, answer in tried if repeats and answer.unavailable]
            answered += [(claim, answer) for claim, answer in tried if not (repeats and answer.unavailable)]
            if left:
                time.sleep(_FIRST_BACKOFF)
        with self._counting:
            for claim, answer in answered:
                count(claim, answer)
        if answered:
            self._runtime.notifier.notify({claim.ref.queue for claim, _ in answered})
        for _, answer in answered:
            if answer.unavailable:
                answer.unwrap()


def _next_group(done: SimpleQueue[StepResult | None], seconds: float | None) -> tuple[list[StepResult], bool]:
    """Wait for a result, that many seconds; return it with all that came in meanwhile, and whether more may come."""
    group: list[StepResult] = []
    taken = 0
    try:
        result = done.get(timeout=seconds)
        while result is not None:
            group.append(result)
            taken += result.size
            if len(group) == GROUP or taken >= GROUP_BYTES:
                return group, True
            result = done.get_nowait()
    except Empty:
        return group, True
    return group, False


def _part(what: str) -> str:
    """Return the name of a part of an outage, with that of the committer's thread."""
    return f"{what} ({threading.current_thread().name})"


def _log_interrupted(claim: Claim, outcome: Interrupted, answer: Answer) -> None:
    attempt, most = answer.attempt, claim.attempt.max_deliveries
    times = f"delivery {claim.attempt.deliveries} of {most}"
    if attempt is not None and attempt.status is AttemptStatus.DEAD_LETTERED:
        logger.error("%s is a dead letter, %s: %s", claim.ref.runnable_key, times, outcome.reason)
    else:
        logger.warning("%s is handed out again, %s: %s", claim.ref.runnable_key, times, outcome.reason)
