"""Attempts that wait in named lanes of queues, for launchers of external steps. Reads only, and claims nothing."""

import sys
from collections.abc import Collection
from typing import LiteralString, NamedTuple

from squid_dagster.journal.contract.queries import check_limit
from squid_dagster.journal.contract.storage import Storage, check_revision
from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.rows import attempt_from_row
from squid_dagster.protocol.folds.attempt import Attempt, definition_key
from squid_dagster.protocol.folds.dispatch import DispatchProjection
from squid_dagster.protocol.threads import check_part, dispatch_thread


class Waiting(NamedTuple):
    """An unclaimed attempt whose time has come, and whether its queue is paused."""

    attempt: Attempt
    paused: bool


# attempts_due, one range for each lane: the cost depends only on what waits in these lanes.
_WAITING: LiteralString = """SELECT to_json(a), coalesce(q.paused, false) FROM {schema}.attempts a
      LEFT JOIN {schema}.queues q ON q.queue = a.queue
     WHERE a.queue = ANY (%(queues)s) AND a.definition = ANY (%(definitions)s) AND a.due_at IS NOT NULL
       AND a.due_at <= coalesce(%(now)s, clock_timestamp()) AND a.status <> 'claimed' AND a.position > %(after)s
     ORDER BY a.position LIMIT %(limit)s"""


def waiting_in_lanes(
    storage: Storage, queues: Collection[str], definitions: Collection[str], *, after: int = 0, limit: int = 1000
) -> list[Waiting]:
    """Return what waits on these queues for these definitions (see `definition_key`), by position, after `after`.

    Raises:
        InvalidArgument, InvalidThread: a bad limit, position or queue.
    """
    queue_names = sorted({check_part(queue, "queue") for queue in queues})
    check_limit(limit)
    check_revision(after, "after")
    if not definitions or not queue_names:
        return []
    if isinstance(storage, PostgresStorage):
        now = storage.clock.now() if storage.clock is not None else None
        values = {"queues": queue_names, "definitions": sorted(definitions), "now": now, "after": after, "limit": limit}
        return [Waiting(attempt_from_row(row), paused) for row, paused in storage.rows(_WAITING, values)]
    waiting = (one for queue in queue_names for one in _by_fold(storage, queue, definitions))
    later = (one for one in waiting if one.attempt.position > after)
    return sorted(later, key=lambda one: one.attempt.position)[:limit]


def _by_fold(storage: Storage, queue: str, definitions: Collection[str]) -> list[Waiting]:
    visible = FoldDispatchStore(storage).visible(queue, sys.maxsize)
    paused = queue in DispatchProjection.fold(storage.read(dispatch_thread(queue))).paused
    return [
        Waiting(attempt, paused)
        for attempt in visible
        if definition_key(attempt.workflow, attempt.definition_fingerprint) in definitions
    ]
