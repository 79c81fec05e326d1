"""Queries on any storage: fold what is new of the journal, then scan all runs. For journals that fit in memory."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from threading import Lock

from squid_dagster.journal.contract.dispatch_store import check_text
from squid_dagster.journal.contract.queries import (
    AHEAD,
    MAX_PAGE,
    MOST_COUNTED,
    BacklogRow,
    QueueRow,
    RunFilter,
    RunRow,
    ScheduleCursor,
    WaitingStep,
    check_backlog,
    check_limit,
    check_listing,
    check_repair,
    parent_of,
    window_start,
)
from squid_dagster.journal.contract.storage import Storage, check_revision
from squid_dagster.protocol.anomalies import Anomaly
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.entries import run_of
from squid_dagster.protocol.folds.attempt import OPEN, Attempt, AttemptStatus, definition_key
from squid_dagster.protocol.folds.dispatch import RunDispatch, apply_queue
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.run_unit import RunUnit, apply_unit, planned_but_unscheduled
from squid_dagster.protocol.threads import check_part, run_thread

_PAGE = 5_000  # entries in one read


@dataclass(slots=True)
class _Run:
    """One run, and the position of its first fact."""

    position: int
    unit: RunUnit = field(default_factory=RunUnit)


@checks_arguments
class FoldQueries:
    """`JournalQueries` by fold. Safe between threads. Caches the fold: after a deletion, create a new one."""

    def __init__(self, storage: Storage) -> None:
        """Bind to a storage; nothing is read yet."""
        self._storage = storage
        self._lock = Lock()
        self._cut = 0
        self._runs: dict[str, _Run] = {}
        self._queues: dict[str, bool] = {}
        self._queue_anomalies: list[Anomaly] = []

    def list_runs(self, where: RunFilter, before: int | None, limit: int) -> list[RunRow]:
        """List runs, newest first, as the contract says."""
        check_listing(where, before, limit)
        with self._lock:
            all_rows = (_row(run_id, run) for run_id, run in self._fold().items())
            rows = [row for row in all_rows if where.matches(row) and (before is None or row.position < before)]
        return sorted(rows, key=lambda row: -row.position)[:limit]

    def get_run(self, run_id: str) -> RunRow | None:
        """Return one run's row."""
        check_text(run_id, "run_id", 1000)
        with self._lock:
            run = self._fold().get(run_id)
            return _row(run_id, run) if run is not None else None

    def runs_to_repair(
        self, after: str, limit: int, queue: str | None = None, waiting: Collection[WaitingStep] = ()
    ) -> list[str]:
        """Return runs that a crash may have left halfway, as the contract says."""
        check_repair(after, limit, queue)
        waiting = frozenset(waiting)
        with self._lock:
            run_ids = (
                run_id
                for run_id, run in sorted(self._fold().items())
                if run_id > after
                and (queue is None or run.unit.dispatch.queue in (None, queue))
                and self._needs_repair(run.unit, waiting)
            )
            return list(islice(run_ids, limit))

    def _needs_repair(self, unit: RunUnit, waiting: Collection[WaitingStep]) -> bool:
        run, dispatch = unit.run, unit.dispatch
        if run.terminal:
            return dispatch.unfenced
        if dispatch.quarantined:
            return False
        if planned_but_unscheduled(run, dispatch) or any(not self._has_started(child) for child in run.children):
            return True
        if (run.start is not None and dispatch.queue is None) or self._cancelled_above(run):
            return True
        # A first attempt is planned before it is scheduled; a later one may be created by a failure, unplanned.
        unplanned = (key for key, one in dispatch.attempts.items() if one.attempt_number > 1 and key not in run.planned)
        unapplied = (a for a in _latest(dispatch) if a.status not in OPEN and a.runnable_key not in run.applied)
        return any(unplanned) or any(not _waits(attempt, run, waiting) for attempt in unapplied)

    def _cancelled_above(self, run: RunProjection) -> bool:
        """Return whether an ancestor of a run linked children and was cancelled."""
        seen: set[str] = set()
        while run.start is not None and (parent := parent_of(run.start.context)) in self._runs and parent not in seen:
            seen.add(parent or "")
            run = self._runs[parent or ""].unit.run
            if run.terminal_status == "cancelled" and run.children:
                return True
        return False

    def _has_started(self, run_id: str) -> bool:
        return run_id in self._runs and self._runs[run_id].unit.run.start is not None

    def runs_to_list(self, limit: int) -> list[RunRow]:
        """Return started runs without index or catalog fact, oldest first."""
        check_limit(limit)
        with self._lock:
            rows = [
                _row(run_id, run)
                for run_id, run in self._fold().items()
                if run.unit.run.start is not None and (run.unit.indexed is None or run.unit.cataloged is None)
            ]
        return sorted(rows, key=lambda row: row.position)[:limit]

    def dead_letters(self, queue: str | None, limit: int, after: int = 0) -> list[Attempt]:
        """Return dead letters that wait for a person, as the contract says."""
        check_repair("", limit, queue)
        check_revision(after, "after")
        with self._lock:
            attempts = [
                attempt._replace(input=None, error=None)
                for run in self._fold().values()
                if not run.unit.run.terminal
                for attempt in _latest(run.unit.dispatch)
                if attempt.status is AttemptStatus.DEAD_LETTERED
                and attempt.runnable_key not in run.unit.run.applied
                and attempt.position > after
                and queue in (None, attempt.queue)
            ]
        return sorted(attempts, key=lambda attempt: attempt.position)[:limit]

    def queues(self) -> list[QueueRow]:
        """Count the claimable work of each queue."""
        with self._lock:
            dispatches = [run.unit.dispatch for run in self._fold().values() if not run.unit.dispatch.stopped]
            work: dict[str, list[Attempt]] = {queue: [] for queue in self._queues}
            for dispatch in dispatches:
                for attempt in dispatch.open_attempts():
                    work.setdefault(attempt.queue, []).append(attempt)
            now = self._storage.now()
            return [_queue_row(queue, self._queues.get(queue, False), work[queue], now) for queue in sorted(work)]

    def backlog(self, queues: Collection[str], definitions: Collection[str] | None, limit: int) -> list[BacklogRow]:
        """Count what could be claimed now from each of these queues, as the contract says."""
        check_backlog(queues, definitions, limit)
        due: dict[str, list[datetime]] = {}
        with self._lock:
            runs = list(self._fold().values())
            now = self._storage.now()
            dispatches = (run.unit.dispatch for run in runs if not run.unit.dispatch.stopped)
            for attempt in chain.from_iterable(dispatch.open_attempts() for dispatch in dispatches):
                key = definition_key(attempt.workflow, attempt.definition_fingerprint)
                counted = attempt.queue in queues and not self._queues.get(attempt.queue, False)
                if counted and (definitions is None or key in definitions) and attempt.due_at and attempt.due_at <= now:
                    due.setdefault(attempt.queue, []).append(attempt.due_at)
        return [BacklogRow(queue, min(len(times), limit), min(times)) for queue, times in sorted(due.items())]

    def children(self, run_id: str) -> list[str]:
        """Return the children of a run, by its own thread."""
        check_part(run_id, "run_id")
        return sorted(RunProjection.fold(self._storage.read(run_thread(run_id))).children)

    def anomalies(self, run_id: str | None, limit: int, after_position: int = 0) -> list[Anomaly]:
        """Return anomalies by position, as the contract says."""
        check_limit(limit)
        check_revision(after_position, "after_position")
        if run_id is not None:
            check_text(run_id, "run_id", 1000)
        with self._lock:
            runs = self._fold()
            scanned = list(runs.values()) if run_id is None else [runs[run_id]] if run_id in runs else []
            anomalies = [a for run in scanned for a in run.unit.anomalies if a.position > after_position]
            if run_id is None:
                anomalies += [a for a in self._queue_anomalies if a.position > after_position]
        anomalies.sort(key=lambda a: a.position)
        last = anomalies[limit - 1].position if len(anomalies) >= limit else None
        return [a for a in anomalies if last is None or a.position <= last]

    def schedule_cursor(self, workflow: str, trigger: str) -> ScheduleCursor:
        """Return the progress of a cron trigger, as the contract says."""
        check_text(workflow, "workflow", 1000)
        check_text(trigger, "trigger", 1000)
        with self._lock:
            all_starts = [run.unit.run.start for run in self._fold().values()]
        starts = [start for start in all_starts if start and (start.workflow, start.trigger) == (workflow, trigger)]
        windows = [(at, start.occurred_at) for start in starts if (at := window_start(start.context)) is not None]
        reached = max((at for at, started_at in windows if at <= started_at + AHEAD), default=None)
        ahead = sorted({at for at, _ in windows if reached is None or at > reached}, reverse=True)
        return ScheduleCursor(reached, tuple(ahead[:MAX_PAGE]))

    def _fold(self) -> dict[str, _Run]:
        """Fold what was appended since the last time; return all runs."""
        upto = self._storage.cut(self._cut)
        while page := self._storage.read_between(self._cut, upto, _PAGE):
            for entry in page:
                run_id = run_of(entry.fact)
                if run_id is None:
                    apply_queue(self._queues, self._queue_anomalies, entry)
                else:
                    apply_unit(self._runs.setdefault(run_id, _Run(entry.position)).unit, entry)
                self._cut = entry.position
        self._cut = upto
        return self._runs


def _row(run_id: str, run: _Run) -> RunRow:
    projection, dispatch, start = run.unit.run, run.unit.dispatch, run.unit.run.start
    manual = projection.manual_state
    return RunRow(
        run_id,
        run.position,
        projection.status,
        start.workflow if start else None,
        start.trigger if start else None,
        dispatch.queue,
        start.definition_version if start else None,
        start.definition_fingerprint if start else None,
        parent_of(start.context) if start else None,
        start.replayed_from_run_id if start else None,
        start.occurred_at if start else None,
        projection.ended_at,
        projection.terminal_status,
        manual.step if manual else None,
        manual.kind if manual else None,
        manual.paused_at if manual else None,
        dispatch.quarantined,
        run.unit.indexed is not None,
        run.unit.cataloged is not None,
        len(run.unit.anomalies),
    )


def _waits(attempt: Attempt, run: RunProjection, waiting: Collection[WaitingStep]) -> bool:
    """Return whether an attempt is a planned dead letter of a step in `waiting`."""
    if attempt.status is not AttemptStatus.DEAD_LETTERED or attempt.runnable_key not in run.planned:
        return False
    return WaitingStep(definition_key(attempt.workflow, attempt.definition_fingerprint), attempt.step) in waiting


def _latest(dispatch: RunDispatch) -> Iterator[Attempt]:
    """Iterate over the latest attempt of each visit."""
    highest: dict[str, int] = {}
    for one in dispatch.attempts.values():
        highest[one.idempotency_key] = max(one.attempt_number, highest.get(one.idempotency_key, 0))
    return (a for a in dispatch.attempts.values() if a.attempt_number == highest[a.idempotency_key])


def _queue_row(queue: str, paused: bool, work: list[Attempt], now: datetime) -> QueueRow:
    claimed = [attempt for attempt in work if attempt.status is AttemptStatus.CLAIMED]
    due = [attempt.due_at for attempt in work if attempt.due_at is not None and attempt.due_at <= now]
    expired = sum(attempt.expired(now) for attempt in claimed)
    visible = len(due) - expired
    return QueueRow(
        queue,
        paused,
        min(visible, MOST_COUNTED),
        min(len(work) - len(claimed) - visible, MOST_COUNTED),
        min(len(claimed) - expired, MOST_COUNTED),
        min(expired, MOST_COUNTED),
        min(due, default=None),
    )
