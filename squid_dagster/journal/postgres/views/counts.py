"""Counts over a whole journal for display, from the live views and their indexes, never from the facts."""

from datetime import datetime
from typing import LiteralString, NamedTuple

from squid_dagster.journal.contract.queries import OPEN_STATUSES, RUN_STATUSES, check_limit
from squid_dagster.journal.postgres.entry_reader import utc
from squid_dagster.journal.postgres.storage import PostgresStorage

# runs_status, one range of it for each status, no further than the limit
_RUNS: LiteralString = """SELECT s.status, n.count FROM unnest(%(statuses)s::text[]) s (status) CROSS JOIN LATERAL (
    SELECT count(*) FROM (SELECT FROM {schema}.runs r WHERE r.status COLLATE "POSIX" = s.status LIMIT %(limit)s) f) n"""
# runs_status; reads all open runs
_DEFINITIONS: LiteralString = """SELECT workflow, definition_version, definition_fingerprint, count(*), min(run_id)
      FROM {schema}.runs WHERE status COLLATE "POSIX" = ANY (%(statuses)s) AND workflow IS NOT NULL
       AND definition_fingerprint IS NOT NULL
     GROUP BY 1, 2, 3 ORDER BY workflow, definition_version COLLATE "C", definition_fingerprint COLLATE "C" """
# attempts_due; reads all attempts that could be claimed now. queues_pkey
_LANES: LiteralString = """SELECT a.queue, a.definition, count(*), min(a.due_at), coalesce(q.paused, false)
      FROM {schema}.attempts a LEFT JOIN {schema}.queues q ON q.queue = a.queue
     WHERE a.due_at IS NOT NULL AND a.due_at <= coalesce(%(now)s::timestamptz, clock_timestamp())
     GROUP BY a.queue, a.definition, q.paused ORDER BY a.queue, a.definition"""


class OpenDefinition(NamedTuple):
    """A definition that open runs were started with, how many they are, and one of them."""

    workflow: str
    version: str | None
    fingerprint: str
    runs: int
    run_id: str


class DueLane(NamedTuple):
    """What could be claimed now from one queue under one definition (see `definition_key`), and since when."""

    queue: str
    definition: str
    due: int
    oldest_due_at: datetime
    paused: bool


def count_runs(storage: PostgresStorage, most: int) -> dict[str, int]:
    """Count runs by status, each up to `most`. Raises `InvalidArgument` for a bad limit."""
    check_limit(most)
    rows = storage.rows(_RUNS, {"statuses": list(RUN_STATUSES), "limit": most})
    return {status: int(count) for status, count in rows}


def open_definitions(storage: PostgresStorage) -> list[OpenDefinition]:
    """Return the definitions that open runs were started with."""
    return [OpenDefinition(*row) for row in storage.rows(_DEFINITIONS, {"statuses": list(OPEN_STATUSES)})]


def due_lanes(storage: PostgresStorage) -> list[DueLane]:
    """Return every lane that has work to be claimed now, by queue."""
    lanes = (DueLane(*row) for row in storage.rows(_LANES, {"now": storage.bound_now}))
    return [lane._replace(oldest_due_at=utc(lane.oldest_due_at)) for lane in lanes]
