"""Committers: they write down, in groups, what came of steps while others run.

Two of them, so that one plans while the other waits for the database. Each takes whatever came in meanwhile. What comes
of one run goes to one of them: else they would plan for it at the same time, and only one plan can be written.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar

from squid_dagster.journal.dispatch import Answer, Claim, Completed, Deferred, Interrupted, Outcome, Settlement
from squid_dagster.journal.rounds import outcome_bytes
from squid_dagster.limits import MAX_ROUND_BYTES
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.attempts import AttemptStatus
from squid_dagster.protocol.errors import SchemaOutdated, StorageUnavailable, ViewsMissing
from squid_dagster.runtime.core import Runtime
from squid_dagster.runtime.outage import Outage
from squid_dagster.runtime.pool import Job
from squid_dagster.runtime.report import SettledAttempt, WorkerReport
from squid_dagster.runtime.settlement import settle

logger = redacting_logger(__name__)

T = TypeVar("T")

OnSettled = Callable[[Sequence[SettledAttempt]], None]

COMMITTERS = 2
GROUP, GROUP_BYTES = 500, MAX_ROUND_BYTES // 2  # outcomes in one commit, and their JSON
LONGEST_BACKOFF = 5.0


def committer_of(run_id: str) -> int:
    """Return the number of the committer that writes what comes of a run, in this process."""
    return hash(run_id) % COMMITTERS


class Executed(NamedTuple):
    """A step that is done: its outcome, or the answer of one that settled itself."""

    job: Job
    came: Outcome | Answer
    seconds: float

    @property
    def size(self) -> int:
        """How many bytes its outcome takes, as JSON."""
        return 0 if isinstance(self.came, Answer) else outcome_bytes(self.came)


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
        self._done: list[SimpleQueue[Executed | None]] = [SimpleQueue() for _ in range(COMMITTERS)]
        self._counting = threading.Lock()
        self._threads = [
            threading.Thread(target=self._loop, args=(done,), name=f"squid-committer-{i}", daemon=True)
            for i, done in enumerate(self._done)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def put(self, executed: Executed) -> None:
        """Hand over what came of a step."""
        self._done[committer_of(executed.job.claim.ref.run_id)].put(executed)

    def close(self, timeout: timedelta) -> None:
        """Write what was handed over, and end; waits for that no longer than `timeout`."""
        until = time.monotonic() + timeout.total_seconds()
        for done in self._done:
            done.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _loop(self, done: SimpleQueue[Executed | None]) -> None:
        while (first := done.get()) is not None:
            group: list[Executed] = [first]
            taken = first.size
            while len(group) < GROUP and taken < GROUP_BYTES:
                try:
                    more = done.get_nowait()
                except Empty:
                    break
                if more is None:
                    done.put(None)  # for the loop itself, once the group is written
                    break
                group.append(more)
                taken += more.size
            self._commit(group)

    def _commit(self, group: list[Executed]) -> None:
        mine = [each for each in group if self._wanted(each.job)]
        try:
            answered = [(each, Completed(None), each.came) for each in mine if isinstance(each.came, Answer)]
            self._count(answered)
            if answered:
                self._runtime.notifier.notify({each.job.claim.ref.queue for each, _, _ in answered})
            self._settle(mine)
        except Exception:
            logger.exception("%d outcomes could not be written: their leases will run out", len(mine))
        finally:
            self._written([each.job for each in group])

    def _settle(self, group: list[Executed]) -> None:
        found: list[tuple[Executed, Outcome]] = [
            (each, each.came) for each in group if not isinstance(each.came, Answer)
        ]
        if not found:
            return
        settlements = [Settlement(each.job.claim.ref, outcome) for each, outcome in found]
        settled = self._persist(lambda: settle(self._runtime, settlements))
        with self._counting:
            self._report.commits += 1
        self._due(settled.dues)
        self._count([(*pair, answer) for pair, answer in zip(found, settled.answers, strict=True)])

    def _persist(self, write: Callable[[], T]) -> T:
        """Write as soon as the database is there. A lease that ran out meanwhile is refused then."""
        backoff, part = 0.1, f"writing outcomes ({threading.current_thread().name})"
        try:
            while True:
                try:
                    return write()
                except (StorageUnavailable, ViewsMissing, SchemaOutdated) as error:
                    if self._gives_up():
                        raise
                    self._outage.begin(part, error)
                    time.sleep(backoff)
                    backoff = min(backoff * 2, LONGEST_BACKOFF)
        finally:
            self._outage.end(part)

    def _count(self, answered: Sequence[tuple[Executed, Outcome, Answer]]) -> None:
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
            answers = self._runtime.dispatch.release([claim.ref for claim in given], reason)
            with self._counting:
                self._report.released += sum(answer.error is None for answer in answers)
            self._runtime.notifier.notify({claim.ref.queue for claim in given})

    def interrupt(self, claims: Iterable[Claim], reason: str) -> None:
        """Give back attempts whose steps were called, which counts as a delivery, and wake others for them.

        Raises what the database raises.
        """
        given, outcome = list(claims), Interrupted(reason)
        if given:
            answers = settle(self._runtime, [Settlement(claim.ref, outcome) for claim in given]).answers
            with self._counting:
                for claim, answer in zip(given, answers, strict=True):
                    self._count_one(claim, outcome, answer)
            self._runtime.notifier.notify({claim.ref.queue for claim in given})


def _tell_interrupted(claim: Claim, outcome: Interrupted, answer: Answer) -> None:
    attempt, most = answer.attempt, claim.attempt.max_deliveries
    times = f"delivery {claim.attempt.deliveries} of {most}"
    if attempt is not None and attempt.status is AttemptStatus.DEAD_LETTERED:
        logger.error("%s is a dead letter, %s: %s", claim.ref.runnable_key, times, outcome.reason)
    else:
        logger.warning("%s is handed out again, %s: %s", claim.ref.runnable_key, times, outcome.reason)
