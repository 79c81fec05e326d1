"""Committers: they write down, in groups, what came of steps while others run.

Two of them, so that one plans while the other waits for the database. Each takes whatever came in meanwhile. What comes
of one run goes to one of them: else they would plan for it at the same time, and only one plan can be written. An
outcome that cannot be written yet, since another session holds a lock on its run, is tried again beside the others.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
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
_GIVING_BACK_SECONDS = 5.0  # within which what is given back is tried again


def committer_of(run_id: str) -> int:
    """Return the number of the committer that writes what comes of a run, in this process."""
    return hash(run_id) % COMMITTERS


class StepResult(NamedTuple):
    """A step that is done: its outcome, or the answer of one that settled itself."""

    job: Job
    came: Outcome | Answer
    seconds: float

    @property
    def size(self) -> int:
        """How many bytes its outcome takes, as JSON."""
        return 0 if isinstance(self.came, Answer) else outcome_bytes(self.came)


class _Unwritten:
    """Outcomes that could not be written yet, although others could, and when to try again."""

    def __init__(self) -> None:
        self.outcomes: list[StepResult] = []
        self._due_at, self._backoff = 0.0, _FIRST_BACKOFF

    @property
    def seconds(self) -> float | None:
        """In how long it is time to try again; None: there is nothing to try."""
        return max(0.0, self._due_at - time.monotonic()) if self.outcomes else None

    def add(self, group: Sequence[StepResult]) -> None:
        """Keep outcomes that were tried for the first time: they are due soon, however long others have waited."""
        if not self.outcomes:
            self._backoff = _FIRST_BACKOFF
        if group:
            soon = time.monotonic() + _FIRST_BACKOFF
            self._due_at = min(self._due_at, soon) if self.outcomes else soon
            self.outcomes += group

    def replace(self, group: Sequence[StepResult]) -> None:
        """Keep what is left after all were tried again."""
        self.outcomes = list(group)
        self._backoff = min(self._backoff * 2, LONGEST_BACKOFF)
        self._due_at = time.monotonic() + self._backoff


class Committer:
    """Writes outcomes from two threads. Whatever happens, a job that was put here comes back through `written`."""

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

        Outcomes of jobs that are not `wanted` any more are dropped. `due` hears in how long what was scheduled is due.
        While the database is away, which is said to `outage`, it is tried again, unless `gives_up` says otherwise.
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
        """Begin."""
        for thread in self._threads:
            thread.start()

    def put(self, executed: StepResult) -> None:
        """Hand over what came of a step."""
        self._done[committer_of(executed.job.claim.ref.run_id)].put(executed)

    def close(self, timeout: timedelta) -> None:
        """Write what was handed over, and end; waits for that no longer than `timeout`."""
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
        """Write outcomes and let go of their jobs; return those that are to be tried again, and held until then."""
        mine = [each for each in group if self._wanted(each.job)]
        left: list[StepResult] = []
        try:
            answered = [(each, Completed(None), each.came) for each in mine if isinstance(each.came, Answer)]
            self._count(answered)
            if answered:
                self._runtime.notifier.notify({each.job.claim.ref.queue for each, _, _ in answered})
            left = self._settle(mine)
        except Exception:
            logger.exception("%d outcomes could not be written: their leases will run out", len(mine))
        finally:
            again = {id(each) for each in left}
            self._written([each.job for each in group if id(each) not in again])
        return left

    def _settle(self, group: list[StepResult]) -> list[StepResult]:
        """Write outcomes; return those that are to be tried again."""
        found: list[tuple[StepResult, Outcome]] = [
            (each, each.came) for each in group if not isinstance(each.came, Answer)
        ]
        if not found:
            return []
        settled = self._persist([Settlement(each.job.claim.ref, outcome) for each, outcome in found])
        with self._counting:
            self._report.commits += not all(answer.unavailable for answer in settled.answers)
        self._due(settled.delays)
        left: list[StepResult] = []
        answered: list[tuple[StepResult, Outcome, Answer]] = []
        for (each, outcome), answer in zip(found, settled.answers, strict=True):
            # A claim that was lost, or a second stop, ends it: the lease runs out.
            if answer.unavailable and answer.error is not None and not each.job.cancelled and not self._gives_up():
                self._outage.begin(_part("an outcome"), answer.error)
                left.append(each)
            else:
                answered.append((each, outcome, answer))
        self._count(answered)
        return left

    def _persist(self, settlements: Sequence[Settlement]) -> Settled:
        """Write as soon as the database is there. A lease that ran out meanwhile is refused then."""
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
            for each, outcome, answer in answered:
                self._count_one(each.job.claim, outcome, answer)
        if self._on_settled is not None and answered:
            told = [SettledAttempt(each.job.claim.attempt, came, a.error, each.seconds) for each, came, a in answered]
            try:
                self._on_settled(told)
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
            _tell_interrupted(claim, outcome, answer)
        elif outcome.retry is not None:
            report.retried += 1
        else:
            report.failed += 1

    def give_back(self, claims: Iterable[Claim], reason: str) -> None:
        """Release attempts whose steps were not called, and wake others for them. Raises what the database raises."""
        given = list(claims)
        if given:
            refs = [claim.ref for claim in given]
            answers = _insist(refs, lambda which: self._runtime.dispatch.release([refs[i] for i in which], reason))
            with self._counting:
                self._report.released += sum(answer.error is None for answer in answers)
            self._runtime.notifier.notify({claim.ref.queue for claim in given})
            _check_written(answers)

    def interrupt(self, claims: Iterable[Claim], reason: str) -> None:
        """Give back attempts whose steps were called, which counts as a delivery, and wake others for them.

        Raises what the database raises.
        """
        given, outcome = list(claims), Interrupted(reason)
        if given:
            ends = [Settlement(claim.ref, outcome) for claim in given]
            answers = _insist(ends, lambda which: settle(self._runtime, [ends[i] for i in which]).answers)
            with self._counting:
                for claim, answer in zip(given, answers, strict=True):
                    if not answer.unavailable:
                        self._count_one(claim, outcome, answer)
            self._runtime.notifier.notify({claim.ref.queue for claim in given})
            _check_written(answers)


def _next_group(done: SimpleQueue[StepResult | None], seconds: float | None) -> tuple[list[StepResult], bool]:
    """Wait for an outcome, so long; return it with all that came in meanwhile, and whether more may come."""
    group: list[StepResult] = []
    taken = 0
    try:
        each = done.get(timeout=seconds)
        while each is not None:
            group.append(each)
            taken += each.size
            if len(group) == GROUP or taken >= GROUP_BYTES:
                return group, True
            each = done.get_nowait()
    except Empty:
        return group, True
    return group, False


def _part(what: str) -> str:
    """Return the name of what a committer waits for."""
    return f"{what} ({threading.current_thread().name})"


def _insist(members: Sequence[object], write: Callable[[list[int]], Sequence[Answer]]) -> list[Answer]:
    """Return the answers to members; those that cannot be written now are tried again, for a while."""
    until, answers = time.monotonic() + _GIVING_BACK_SECONDS, dict[int, Answer]()
    left = list(range(len(members)))
    while left:
        answers.update(zip(left, write(left), strict=True))
        left = [i for i in left if answers[i].unavailable]
        if time.monotonic() > until:
            break
        if left:
            time.sleep(_FIRST_BACKOFF)
    return [answers[i] for i in range(len(members))]


def _check_written(answers: Iterable[Answer]) -> None:
    """Raise the error of the first member that could not be written now."""
    for answer in answers:
        if answer.unavailable:
            answer.unwrap()


def _tell_interrupted(claim: Claim, outcome: Interrupted, answer: Answer) -> None:
    attempt, most = answer.attempt, claim.attempt.max_deliveries
    times = f"delivery {claim.attempt.deliveries} of {most}"
    if attempt is not None and attempt.status is AttemptStatus.DEAD_LETTERED:
        logger.error("%s is a dead letter, %s: %s", claim.ref.runnable_key, times, outcome.reason)
    else:
        logger.warning("%s is handed out again, %s: %s", claim.ref.runnable_key, times, outcome.reason)
