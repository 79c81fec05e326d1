"""What of a whole journal needs a person: one line for each kind of trouble, with the commands that help.

Costs what is open and what is shown, never what has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from squid_dagster.inspection.deadlines import DeadlineState, DeadlineView, open_deadlines
from squid_dagster.inspection.display import span
from squid_dagster.inspection.hold import Worker
from squid_dagster.inspection.run_list import RunSummary, list_runs
from squid_dagster.inspection.run_record import read_record
from squid_dagster.journal.contract.queries import JournalQueries, QueueRow
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.contract.worker_liveness import WorkerRow
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.counts import DueLane, due_lanes
from squid_dagster.workflow.external_step import external_lane

MOST = 100
"""Of each kind so many are counted."""
_JUDGED = 50  # runs that wait for people, and are read for their deadlines
_URGENT = frozenset({DeadlineState.DUE_SOON, DeadlineState.OVERDUE, DeadlineState.ESCALATED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One kind of trouble: at least `count` of it (`more` tells that there is more), and some of the runs concerned."""

    kind: str
    count: int
    more: bool = False
    summary: str
    commands: tuple[str, ...]
    queue: str | None = None
    run_ids: tuple[str, ...] = ()


def attention(
    storage: PostgresStorage,
    queries: JournalQueries,
    queues: Sequence[QueueRow],
    workers: Sequence[WorkerRow],
    now: datetime,
) -> list[Attention]:
    """Say what needs a person, most urgent first."""
    found = [_quarantined(queries), _dead_letters(queries), *_waiting(storage, queries, now)]
    found += [_abandoned(worker) for worker in workers]
    lonely = {lane.queue for lane in due_for_workers(storage) if not serving(lane.queue, workers)}
    found += [each for row in queues for each in _of_queue(row, row.queue in lonely, now)]
    return [each for each in found if each is not None]


def due_for_workers(storage: PostgresStorage) -> list[DueLane]:
    """Give the lanes with work that a worker could claim now: none of a paused queue, none that is done elsewhere."""
    elsewhere = external_lane(None)
    return [lane for lane in due_lanes(storage) if not lane.paused and not lane.definition.endswith(elsewhere)]


def serving(queue: str, workers: Sequence[Worker]) -> list[Worker]:
    """Give the workers that take work from a queue."""
    return [worker for worker in workers if queue in worker.queues]


def _quarantined(queries: JournalQueries) -> Attention | None:
    page = list_runs(queries, status="quarantined", limit=MOST)
    if not page.runs:
        return None
    return Attention(
        kind="quarantined",
        count=len(page.runs),
        more=page.next_cursor is not None,
        summary=f"{_several(page.runs, page.next_cursor)} stopped: an entry of theirs cannot be read",
        commands=(f"squid run explain {page.runs[0].run_id}", "squid journal verify"),
        run_ids=tuple(run.run_id for run in page.runs),
    )


def _dead_letters(queries: JournalQueries) -> Attention | None:
    found = queries.dead_letters(None, MOST + 1)
    if not found:
        return None
    count, more = min(len(found), MOST), len(found) > MOST
    return Attention(
        kind="dead_letters",
        count=count,
        more=more,
        summary=f"{count}{'+' if more else ''} dead letters wait for somebody to retry them",
        commands=("squid queue dead", f"squid queue retry {found[0].run_id}"),
        run_ids=tuple(dict.fromkeys(each.run_id for each in found[:MOST])),
    )


def _abandoned(worker: WorkerRow) -> Attention | None:
    """Tell of a worker that has left cancelled steps behind, which do not end."""
    count = worker.details.get("abandoned")
    if not isinstance(count, int) or count < 1:
        return None
    steps, most = worker.details.get("abandoned_steps"), worker.details.get("max_abandoned")
    verb = "step does" if count == 1 else "steps do"
    return Attention(
        kind="abandoned_steps",
        count=count,
        queue=worker.queues[0] if worker.queues else None,
        summary=f"worker {worker.worker_id} was left with {count} cancelled {verb} not end ({steps}); it goes on "
        f"without them, and stops at {most}: let the step look at ctx.cancelled, or run it with isolate=True",
        commands=("squid status --json",),
    )


def _waiting(storage: Storage, queries: JournalQueries, now: datetime) -> list[Attention | None]:
    page = list_runs(queries, status="paused", limit=MOST)
    if not page.runs:
        return []
    first = page.runs[0]
    verb = "approve" if first.manual_kind == "approval" else "resume"
    waiting = Attention(
        kind="waiting",
        count=len(page.runs),
        more=page.next_cursor is not None,
        summary=f"{_several(page.runs, page.next_cursor)} waiting for a person",
        commands=("squid run list --status paused", f"squid run {verb} {first.run_id} -m MODULE"),
        run_ids=tuple(run.run_id for run in page.runs),
    )
    return [_deadlines(storage, page.runs[:_JUDGED], now), waiting]


def _deadlines(storage: Storage, runs: Sequence[RunSummary], now: datetime) -> Attention | None:
    urgent: list[tuple[datetime, str, DeadlineView]] = []
    for run in runs:
        deadlines = open_deadlines(read_record(storage, run.run_id).unit.run, now)
        if deadlines and deadlines[0].state in _URGENT:
            urgent.append((deadlines[0].due_at, run.run_id, deadlines[0]))
    if not urgent:
        return None
    _, run_id, first = min(urgent, key=lambda each: each[:2])
    late = "over for" if first.remaining.total_seconds() <= 0 else "due in"
    return Attention(
        kind="deadlines",
        count=len(urgent),
        summary=f"{len(urgent)} of those who wait have a deadline near or over; step {first.step!r} of run {run_id} is "
        f"{late} {span(first.remaining)}",
        commands=(f"squid run explain {run_id}",),
        run_ids=tuple(run_id for _, run_id, _ in sorted(urgent, key=lambda each: each[:2])),
    )


def _of_queue(row: QueueRow, is_lonely: bool, now: datetime) -> list[Attention]:
    due = row.visible + row.expired
    attempts = "1 attempt" if due == 1 else f"{due} attempts"
    claims = "1 claim" if row.expired == 1 else f"{row.expired} claims"
    since = f", the oldest for {span(now - row.oldest_due_at)}" if row.oldest_due_at is not None else ""
    found: list[Attention] = []
    if due and row.paused:
        found.append(
            Attention(
                kind="queue_paused",
                count=due,
                queue=row.queue,
                summary=f"queue {row.queue!r} is paused, and {attempts} {'is' if due == 1 else 'are'} due{since}",
                commands=(f"squid queue resume {row.queue}",),
            )
        )
    elif is_lonely:
        found.append(
            Attention(
                kind="no_worker",
                count=due,
                queue=row.queue,
                summary=f"queue {row.queue!r} has {attempts} due{since}, and no live worker",
                commands=(f"squid worker -m MODULE --queue {row.queue}",),
            )
        )
    if row.expired:
        found.append(
            Attention(
                kind="expired_leases",
                count=row.expired,
                queue=row.queue,
                summary=f"queue {row.queue!r} has {claims} whose worker let the lease run out",
                commands=(f"squid queue inspect {row.queue}", "squid recover -m MODULE"),
            )
        )
    return found


def _several(runs: Sequence[RunSummary], more: object) -> str:
    return f"{len(runs)}+ runs are" if more is not None else "1 run is" if len(runs) == 1 else f"{len(runs)} runs are"
