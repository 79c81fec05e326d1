"""Queues, workers and dead letters in the output of `squid queue`: values for programs, tables for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from squid_dagster.cli.terminal.output import table

if TYPE_CHECKING:
    from squid_dagster.cli.terminal.tables import TerminalTable
    from squid_dagster.inspection import QueueState
    from squid_dagster.journal.contract.queries import QueueRow
    from squid_dagster.journal.contract.worker_liveness import WorkerRow
    from squid_dagster.protocol.folds.attempt import Attempt


def no_work(queue: str) -> "QueueRow":
    """Return the row of a queue that has no open work and was never paused."""
    from squid_dagster.journal.contract.queries import QueueRow

    return QueueRow(queue, False, 0, 0, 0, 0, None)


def queue_values(row: "QueueRow", workers: "Sequence[WorkerRow]") -> dict[str, Any]:
    """Return a queue as JSON values, always with the same keys. A count of `counted_up_to` is so many or more."""
    from squid_dagster.journal.contract.queries import MOST_COUNTED

    return {
        "queue": row.queue,
        "paused": row.paused,
        "visible": row.visible,
        "scheduled": row.scheduled,
        "claimed": row.claimed,
        "expired": row.expired,
        "counted_up_to": MOST_COUNTED,
        "oldest_due_at": None if row.oldest_due_at is None else row.oldest_due_at.isoformat(),
        "worker_count": sum(row.queue in worker.queues for worker in workers),
    }


def queues_table(rows: "Sequence[QueueRow]", workers: "Sequence[WorkerRow]") -> "TerminalTable":
    """Return queues as a table."""
    headings = ("queue", "state", "due", "later", "claimed", "expired", "oldest due", "workers")
    cells = [
        (
            row.queue,
            "paused" if row.paused else "open",
            _counted(row.visible),
            _counted(row.scheduled),
            _counted(row.claimed),
            _counted(row.expired),
            row.oldest_due_at,
            sum(row.queue in worker.queues for worker in workers),
        )
        for row in rows
    ]
    return table(headings, cells, first_to_go=("oldest due", "expired"))


def _counted(count: int) -> int | str:
    from squid_dagster.journal.contract.queries import MOST_COUNTED

    return count if count < MOST_COUNTED else f"{MOST_COUNTED}+"


def pause_values(state: "QueueState") -> dict[str, Any] | None:
    """Return who paused a queue, when and why, as JSON values; None if it is not paused, or that is unknown."""
    from squid_dagster.inspection.display import shown

    if state.fact is None or state.since is None:
        return None
    fact: Any = state.fact.fact
    return {
        "at": state.since.isoformat(),
        "actor": shown(getattr(fact, "actor", None)),
        "comment": shown(getattr(fact, "comment", None)),
    }


def worker_values(worker: "WorkerRow") -> dict[str, Any]:
    """Return a worker as JSON values, always with the same keys."""
    return {
        "worker_id": worker.worker_id,
        "kind": worker.kind,
        "queues": list(worker.queues),
        "host": worker.host,
        "pid": worker.pid,
        "started_at": None if worker.started_at is None else worker.started_at.isoformat(),
        "seen_at": None if worker.seen_at is None else worker.seen_at.isoformat(),
        "running": worker.running,
        "capacity": worker.capacity,
    }


def workers_table(workers: "Sequence[WorkerRow]") -> "TerminalTable":
    """Return workers as a table."""
    rows = [(row.worker_id, row.kind, f"{row.running} of {row.capacity}", row.seen_at) for row in workers]
    return table(("worker", "kind", "busy", "seen"), rows)


def dead_letter_values(attempt: "Attempt") -> dict[str, Any]:
    """Return a dead letter as JSON values, always with the same keys."""
    return {
        "run_id": attempt.run_id,
        "runnable_key": attempt.runnable_key,
        "step": attempt.step,
        "workflow": attempt.workflow,
        "queue": attempt.queue,
        "attempt_number": attempt.attempt_number,
        "deliveries": attempt.deliveries,
        "max_deliveries": attempt.max_deliveries,
        "since": attempt.last_at.isoformat(),
        "position": attempt.position,
    }


def dead_letters_table(dead: "Sequence[Attempt]") -> "TerminalTable":
    """Return dead letters as a table."""
    rows = [
        (row.run_id, row.workflow, row.step, row.queue, row.deliveries, row.last_at, row.runnable_key) for row in dead
    ]
    headings = ("run", "workflow", "step", "queue", "deliveries", "since", "key")
    return table(headings, rows, first_to_go=("queue", "deliveries", "since", "workflow"))
