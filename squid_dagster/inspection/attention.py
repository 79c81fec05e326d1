"""`attention`: what of a whole journal needs a person. One line for each kind of trouble, with commands that help.

Costs what is open and what is shown, never what has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from squid_dagster.inspection.attention_items import DEAD_LETTER, QUARANTINED, WAITING, AttentionItem, open_items
from squid_dagster.inspection.deadlines import DeadlineState, DeadlineView, open_deadlines
from squid_dagster.inspection.display import span
from squid_dagster.inspection.hold import HELD, Worker
from squid_dagster.inspection.run_record import read_record
from squid_dagster.journal.contract.queries import JournalQueries, QueueRow
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.contract.worker_liveness import WorkerRow
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.counts import DueLane, due_lanes
from squid_dagster.workflow.external_step import external_lane
from squid_dagster.workflow.registry import Registry

MOST = 100
"""Of each kind so many are counted."""
_JUDGED = 50  # runs that wait for people, and are read for their deadlines
_URGENT = frozenset({DeadlineState.DUE_SOON, DeadlineState.OVERDUE, DeadlineState.ESCALATED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One kind of trouble: `count` of it, or with `has_more` at least so many, and some of the runs concerned."""

    kind: str
    count: int
    has_more: bool = False
    summary: str
    commands: tuple[str, ...]
    queue: str | None = None
    run_ids: tuple[str, ...] = ()


def attention(
    storage: Storage,
    queries: JournalQueries,
    queues: Sequence[QueueRow],
    workers: Sequence[WorkerRow],
    now: datetime,
    registry: Registry | None = None,
) -> list[Attention]:
    """Return what needs a person, most urgent first. Beside Postgres, due external steps count as due for workers."""
    troubles = [_quarantined(queries), _dead_letters(queries), *_waiting(storage, queries, now)]
    troubles.append(_held(queries, registry, workers))
    troubles += [_abandoned(worker) for worker in workers]
    if isinstance(storage, PostgresStorage):
        due = {lane.queue for lane in due_for_workers(storage)}
    else:
        due = {row.queue for row in queues if not row.paused and row.visible + row.expired}
    unserved = {queue for queue in due if not serving(queue, workers)}
    troubles += [trouble for row in queues for trouble in _of_queue(row, row.queue in unserved, now)]
    return [trouble for trouble in troubles if trouble is not None]


def due_for_workers(storage: PostgresStorage) -> list[DueLane]:
    """Return the lanes with work that a worker could claim now: none of a paused queue, none that is done elsewhere."""
    elsewhere = external_lane(None)
    return [lane for lane in due_lanes(storage) if not lane.paused and not lane.definition.endswith(elsewhere)]


def serving(queue: str, workers: Sequence[Worker]) -> list[Worker]:
    """Return the workers that take work from a queue."""
    return [worker for worker in workers if queue in worker.queues]


def _quarantined(queries: JournalQueries) -> Attention | None:
    items, following = open_items(queries, QUARANTINED, limit=MOST)
    if not items:
        return None
    return Attention(
        kind="quarantined",
        count=len(items),
        has_more=following is not None,
        summary=f"{_several(items, following)} stopped: an entry of theirs cannot be read",
        commands=(f"squid run explain {items[0].run_id}", "squid journal verify"),
        run_ids=_run_ids(items),
    )


def _dead_letters(queries: JournalQueries) -> Attention | None:
    items, _ = open_items(queries, DEAD_LETTER, limit=MOST + 1)
    if not items:
        return None
    count, has_more = min(len(items), MOST), len(items) > MOST
    return Attention(
        kind="dead_letters",
        count=count,
        has_more=has_more,
        summary=f"{count}{'+' if has_more else ''} dead letters wait for somebody to retry them",
        commands=("squid queue dead", f"squid queue retry {items[0].run_id}"),
        run_ids=_run_ids(items[:MOST]),
    )


def _held(queries: JournalQueries, registry: Registry | None, workers: Sequence[Worker]) -> Attention | None:
    if registry is None:
        return None
    items, following = open_items(queries, HELD, limit=MOST, registry=registry, workers=workers)
    if not items:
        return None
    return Attention(
        kind="held",
        count=len(items),
        has_more=following is not None,
        summary=f"{_several(items, following)} held: their definition is not registered",
        commands=("squid run list --status held -m MODULE", f"squid run explain {items[0].run_id} -m MODULE"),
        run_ids=_run_ids(items),
    )


def _abandoned(worker: WorkerRow) -> Attention | None:
    """Return the trouble of a worker that has abandoned cancelled steps which do not end."""
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
    items, following = open_items(queries, WAITING, limit=MOST)
    if not items:
        return []
    first = items[0]
    verb = "approve" if first.manual_kind == "approval" else "resume"
    waiting = Attention(
        kind="waiting",
        count=len(items),
        has_more=following is not None,
        summary=f"{_several(items, following)} waiting for a person",
        commands=("squid run list --status paused", f"squid run {verb} {first.run_id} -m MODULE"),
        run_ids=_run_ids(items),
    )
    return [_deadlines(storage, _run_ids(items[:_JUDGED]), now), waiting]


def _run_ids(items: Sequence[AttentionItem]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.run_id for item in items if item.run_id is not None))


def _deadlines(storage: Storage, run_ids: Sequence[str], now: datetime) -> Attention | None:
    urgent: list[tuple[datetime, str, DeadlineView]] = []
    for waiting_id in run_ids:
        deadlines = open_deadlines(read_record(storage, waiting_id).unit.run, now)
        if deadlines and deadlines[0].state in _URGENT:
            urgent.append((deadlines[0].due_at, waiting_id, deadlines[0]))
    if not urgent:
        return None
    _, run_id, first = min(urgent, key=lambda late_step: late_step[:2])
    late = "over for" if first.remaining.total_seconds() <= 0 else "due in"
    return Attention(
        kind="deadlines",
        count=len(urgent),
        summary=f"{len(urgent)} of those who wait have a deadline near or over; step {first.step!r} of run {run_id} is "
        f"{late} {span(first.remaining)}",
        commands=(f"squid run explain {run_id}",),
        run_ids=tuple(run_id for _, run_id, _ in sorted(urgent, key=lambda late_step: late_step[:2])),
    )


def _of_queue(row: QueueRow, is_unserved: bool, now: datetime) -> list[Attention]:
    due = row.visible + row.expired
    attempts = "1 attempt" if due == 1 else f"{due} attempts"
    claims = "1 claim" if row.expired == 1 else f"{row.expired} claims"
    since = f", the oldest for {span(now - row.oldest_due_at)}" if row.oldest_due_at is not None else ""
    troubles: list[Attention] = []
    if due and row.paused:
        troubles.append(
            Attention(
                kind="queue_paused",
                count=due,
                queue=row.queue,
                summary=f"queue {row.queue!r} is paused, and {attempts} {'is' if due == 1 else 'are'} due{since}",
                commands=(f"squid queue resume {row.queue}",),
            )
        )
    elif is_unserved:
        troubles.append(
            Attention(
                kind="no_worker",
                count=due,
                queue=row.queue,
                summary=f"queue {row.queue!r} has {attempts} due{since}, and no live worker",
                commands=(f"squid worker -m MODULE --queue {row.queue}",),
            )
        )
    if row.expired:
        troubles.append(
            Attention(
                kind="expired_leases",
                count=row.expired,
                queue=row.queue,
                summary=f"queue {row.queue!r} has {claims} whose worker let the lease run out",
                commands=(f"squid queue inspect {row.queue}", "squid recover -m MODULE"),
            )
        )
    return troubles


def _several(items: Sequence[AttentionItem], following: object) -> str:
    count = f"{len(items)}+" if following is not None else str(len(items))
    return "1 run is" if count == "1" else f"{count} runs are"
