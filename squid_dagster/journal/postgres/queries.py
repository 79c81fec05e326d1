"""`PostgresQueries`: lists and counts from the live views, each by the index that is named beside its statement."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, LiteralString

from squid_dagster.journal.contract.dispatch_store import check_text
from squid_dagster.journal.contract.queries import (
    AHEAD,
    MAX_PAGE,
    MOST_COUNTED,
    RUN_STATUSES,
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
)
from squid_dagster.journal.contract.storage import check_revision
from squid_dagster.journal.postgres.entry_reader import utc
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.rows import attempt_from_row
from squid_dagster.protocol.anomalies import Anomaly, Reason
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.threads import check_part

_LAST = 2**63 - 1

# The columns of a `RunRow`; anomalies_run, for the rows that are shown.
_ROW: LiteralString = """SELECT r.run_id, r.position, r.status, r.workflow, r.trigger, r.queue, r.definition_version,
    r.definition_fingerprint, r.parent_run_id, r.replayed_from_run_id, r.started_at, r.ended_at, r.terminal_status,
    r.manual_state->>0, r.manual_state->>1, (r.manual_state->>2)::timestamptz, r.quarantined, r.indexed IS NOT NULL,
    r.cataloged IS NOT NULL, (SELECT count(*) FROM {schema}.anomalies a WHERE a.run_id = r.run_id) """
# The queue is compared in a way that takes no index: streams that should use one name it in `which`.
_STREAM: LiteralString = """(SELECT * FROM {schema}.runs WHERE {which} AND position < %(before)s
       AND (%(queue)s::text IS NULL OR queue IS NOT DISTINCT FROM %(queue)s)
       AND (%(trigger)s::text IS NULL OR trigger = %(trigger)s)
       AND (%(definition_version)s::text IS NULL OR definition_version = %(definition_version)s)
       AND (%(started_after)s::timestamptz IS NULL OR started_at > %(started_after)s)
       AND (%(started_before)s::timestamptz IS NULL OR started_at < %(started_before)s)
     ORDER BY position DESC LIMIT %(limit)s)"""
_PAGE: LiteralString = """FROM (SELECT * FROM ({streams}) s ORDER BY position DESC LIMIT %(limit)s) r
     ORDER BY r.position DESC"""


def _listing(*streams: LiteralString) -> LiteralString:
    """Merge streams of runs, newest first; each is read no further than the page needs."""
    merged = " UNION ALL ".join(_STREAM.replace("{which}", which) for which in streams)
    return _ROW + _PAGE.replace("{streams}", merged)


def _by_status(which: LiteralString) -> LiteralString:
    """List by one stream per status; a status that is not wanted is null and costs nothing."""
    return _listing(*(which.replace("{n}", str(n)) for n in range(len(RUN_STATUSES))))


# runs_status, which has this collation
_LIST: LiteralString = _by_status('status COLLATE "POSIX" = %(status_{n})s')
# runs_workflow
_LIST_WORKFLOW: LiteralString = _by_status("workflow = %(workflow)s AND status = %(status_{n})s")
# runs_queue
_LIST_QUEUE: LiteralString = _by_status("queue = %(queue)s AND status = %(status_{n})s")
# runs_parent
_LIST_CHILDREN: LiteralString = _listing("""parent_run_id = %(parent_run_id)s
       AND (%(workflow)s::text IS NULL OR workflow = %(workflow)s)
       AND (%(statuses)s::text[] IS NULL OR status = ANY (%(statuses)s))""")
# runs_pkey
_GET: LiteralString = _ROW + "FROM {schema}.runs r WHERE r.run_id = %(run_id)s"
# runs_unlisted
_TO_LIST: LiteralString = (
    _ROW
    + """FROM {schema}.runs r WHERE r.start_digest IS NOT NULL AND (r.indexed IS NULL OR r.cataloged IS NULL)
     ORDER BY r.position LIMIT %(limit)s"""
)

# Five streams by run id, merged into one: four are read no further than the page needs, the last follows children down
# from every run that was cancelled (runs_cancelled, runs_parent).
_TO_REPAIR: LiteralString = """
    WITH RECURSIVE below (run_id, queue, terminal_status, quarantined) AS (
        SELECT r.run_id, r.queue, r.terminal_status, r.quarantined FROM {schema}.runs p
          JOIN {schema}.runs r ON r.parent_run_id = p.run_id
         WHERE p.terminal_status = 'cancelled' AND p.has_children
        UNION
        SELECT r.run_id, r.queue, r.terminal_status, r.quarantined FROM below b
          JOIN {schema}.runs r ON r.parent_run_id = b.run_id)
    (SELECT DISTINCT a.run_id FROM {schema}.attempts a JOIN {schema}.runs r ON r.run_id = a.run_id  -- attempts_repair
      WHERE a.run_id > %(after)s AND a.applied_digest IS NULL
        AND (a.status IS NULL OR a.status IN ('completed', 'failed', 'dead_lettered')
             OR a.attempt_number > 1 AND a.planned_digest IS NULL)
        AND NOT r.quarantined AND (%(queue)s::text IS NULL OR r.queue IS NULL OR r.queue = %(queue)s)
        AND (a.status IS DISTINCT FROM 'dead_lettered' OR a.planned_digest IS NULL OR NOT EXISTS (
                SELECT FROM unnest(%(definitions)s::text[], %(steps)s::text[]) w (definition, step)
                 WHERE w.definition = a.definition AND w.step = a.step))
        AND (a.status IS NULL OR a.attempt_number > 1 AND a.planned_digest IS NULL
             OR NOT EXISTS (SELECT FROM {schema}.attempts s WHERE s.run_id || '' = a.run_id  -- attempts_siblings
                               AND s.idempotency_key = a.idempotency_key AND s.attempt_number > a.attempt_number))
      ORDER BY a.run_id LIMIT %(limit)s)
    UNION
    (SELECT r.run_id FROM {schema}.runs r  -- runs_unfenced
      WHERE r.run_id > %(after)s AND r.unfenced
        AND (%(queue)s::text IS NULL OR r.queue IS NULL OR r.queue = %(queue)s)
      ORDER BY r.run_id LIMIT %(limit)s)
    UNION
    (SELECT r.run_id FROM {schema}.runs r  -- runs_parents, children_pkey, runs_pkey
      WHERE r.run_id > %(after)s AND r.terminal_status IS NULL AND r.has_children AND NOT r.quarantined
        AND (%(queue)s::text IS NULL OR r.queue IS NULL OR r.queue = %(queue)s)
        AND EXISTS (SELECT FROM {schema}.children c WHERE c.run_id = r.run_id AND NOT EXISTS (
                SELECT FROM {schema}.runs k WHERE k.run_id = c.child_run_id AND k.start_digest IS NOT NULL))
      ORDER BY r.run_id LIMIT %(limit)s)
    UNION
    (SELECT r.run_id FROM {schema}.runs r  -- runs_unqueued
      WHERE r.run_id > %(after)s AND r.queue IS NULL AND r.start_digest IS NOT NULL AND r.terminal_status IS NULL
        AND NOT r.quarantined
      ORDER BY r.run_id LIMIT %(limit)s)
    UNION
    (SELECT b.run_id FROM below b
      WHERE b.run_id > %(after)s AND b.terminal_status IS NULL AND NOT b.quarantined
        AND (%(queue)s::text IS NULL OR b.queue IS NULL OR b.queue = %(queue)s)
      ORDER BY b.run_id LIMIT %(limit)s)
    ORDER BY run_id LIMIT %(limit)s"""

# attempts_dead, attempts_siblings
_DEAD: LiteralString = """SELECT to_json(a) FROM {schema}.attempts a
    WHERE a.status = 'dead_lettered' AND a.applied_digest IS NULL AND a.position > %(after)s
      AND (%(queue)s::text IS NULL OR a.queue = %(queue)s)
      AND NOT EXISTS (SELECT FROM {schema}.attempts s WHERE s.run_id || '' = a.run_id
                         AND s.idempotency_key = a.idempotency_key AND s.attempt_number > a.attempt_number)
    ORDER BY a.position LIMIT %(limit)s"""
# attempts_due, from lane to lane and so many of each; attempts_leased; queues
_QUEUES: LiteralString = """WITH RECURSIVE moment AS MATERIALIZED (
        SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS at
    ), lane (queue, definition, rank) AS (
        (SELECT a.queue, a.definition, a.rank FROM {schema}.attempts a
          WHERE a.due_at IS NOT NULL ORDER BY a.queue, a.definition, a.rank LIMIT 1)
        UNION ALL
        SELECT n.* FROM lane l CROSS JOIN LATERAL (
            SELECT a.queue, a.definition, a.rank FROM {schema}.attempts a
             WHERE a.due_at IS NOT NULL AND (a.queue, a.definition, a.rank) > (l.queue, l.definition, l.rank)
             ORDER BY a.queue, a.definition, a.rank LIMIT 1) n
    ), free AS (
        SELECT l.queue, least(sum(v.count), %(limit)s)::int AS visible,
               least(sum(s.count), %(limit)s)::int AS scheduled, min(o.due_at) AS oldest
          FROM moment m CROSS JOIN lane l
          CROSS JOIN LATERAL (SELECT count(*) FROM (
                SELECT FROM {schema}.attempts a
                 WHERE a.queue = l.queue AND a.definition = l.definition AND a.rank = l.rank AND a.due_at IS NOT NULL
                   AND a.due_at <= m.at AND a.status <> 'claimed' ORDER BY a.due_at LIMIT %(limit)s) a) v
          CROSS JOIN LATERAL (SELECT count(*) FROM (
                SELECT FROM {schema}.attempts a
                 WHERE a.queue = l.queue AND a.definition = l.definition AND a.rank = l.rank AND a.due_at IS NOT NULL
                   AND a.due_at > m.at AND a.status <> 'claimed' ORDER BY a.due_at LIMIT %(limit)s) a) s
          CROSS JOIN LATERAL (SELECT (
                SELECT a.due_at FROM {schema}.attempts a
                 WHERE a.queue = l.queue AND a.definition = l.definition AND a.rank = l.rank AND a.due_at IS NOT NULL
                   AND a.due_at <= m.at ORDER BY a.due_at LIMIT 1) AS due_at) o
         GROUP BY l.queue
    ), work AS (
        SELECT f.*, c.count AS claimed, e.count AS expired
          FROM moment m CROSS JOIN free f
          CROSS JOIN LATERAL (SELECT count(*) FROM (
                SELECT FROM {schema}.attempts a WHERE a.queue = f.queue AND a.status = 'claimed'
                   AND a.lease_until > m.at AND a.due_at IS NOT NULL ORDER BY a.lease_until LIMIT %(limit)s) a) c
          CROSS JOIN LATERAL (SELECT count(*) FROM (
                SELECT FROM {schema}.attempts a WHERE a.queue = f.queue AND a.status = 'claimed'
                   AND a.lease_until <= m.at AND a.due_at IS NOT NULL ORDER BY a.lease_until LIMIT %(limit)s) a) e
    )
    SELECT queue, coalesce(q.paused, false), coalesce(w.visible, 0), coalesce(w.scheduled, 0), coalesce(w.claimed, 0),
           coalesce(w.expired, 0), w.oldest
      FROM work w FULL JOIN {schema}.queues q USING (queue) ORDER BY queue"""

# attempts_due, lane by lane, as claim_attempts goes; queues_pkey
_BACKLOG: LiteralString = """WITH RECURSIVE moment AS MATERIALIZED (
        SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS at
    ), wanted AS MATERIALIZED (
        SELECT w.queue FROM unnest(%(queues)s::text[]) w (queue)
         WHERE NOT EXISTS (SELECT FROM {schema}.queues q WHERE q.queue = w.queue AND q.paused)
    ), lane (queue, definition, rank) AS (
        SELECT n.* FROM wanted w CROSS JOIN LATERAL (
            SELECT a.queue, a.definition, a.rank FROM {schema}.attempts a
             WHERE a.queue = w.queue AND a.due_at IS NOT NULL ORDER BY a.definition, a.rank LIMIT 1) n
        UNION ALL
        SELECT n.* FROM lane l CROSS JOIN LATERAL (
            SELECT a.queue, a.definition, a.rank FROM {schema}.attempts a
             WHERE a.queue = l.queue AND a.due_at IS NOT NULL AND (a.definition, a.rank) > (l.definition, l.rank)
             ORDER BY a.definition, a.rank LIMIT 1) n
    )
    SELECT lane.queue, least(count(*), %(limit)s), min(d.due_at) FROM moment m CROSS JOIN lane CROSS JOIN LATERAL (
        SELECT a.due_at FROM {schema}.attempts a
         WHERE a.queue = lane.queue AND a.definition = lane.definition AND a.rank = lane.rank
           AND a.due_at IS NOT NULL AND a.due_at <= m.at
         ORDER BY a.due_at LIMIT %(limit)s) d
     WHERE %(definitions)s::text[] IS NULL OR lane.definition = ANY (%(definitions)s)
     GROUP BY lane.queue ORDER BY lane.queue"""

# children_pkey
_CHILDREN: LiteralString = "SELECT child_run_id FROM {schema}.children WHERE run_id = %(run_id)s ORDER BY child_run_id"
# anomalies_position
_ANOMALIES: LiteralString = """SELECT reason, entry_type, run_id, subject, thread, seq, position FROM (
        SELECT * FROM {schema}.anomalies WHERE position > %(after)s
         ORDER BY position FETCH FIRST %(limit)s ROWS WITH TIES) a ORDER BY position, ordinal"""
# anomalies_run
_RUN_ANOMALIES: LiteralString = """SELECT reason, entry_type, run_id, subject, thread, seq, position FROM (
        SELECT * FROM {schema}.anomalies WHERE run_id = %(run_id)s AND position > %(after)s
         ORDER BY position FETCH FIRST %(limit)s ROWS WITH TIES) a ORDER BY position, ordinal"""
# runs_window, from its end down to the first window that was not started ahead of its time
_CURSOR: LiteralString = """WITH reached AS (
        SELECT window_start FROM {schema}.runs
         WHERE workflow = %(workflow)s AND left(trigger, 200) = left(%(trigger)s, 200) AND trigger = %(trigger)s
           AND window_start IS NOT NULL AND window_start <= started_at + %(ahead)s
         ORDER BY window_start DESC LIMIT 1)
    SELECT (SELECT window_start FROM reached), ARRAY(
        SELECT window_start FROM {schema}.runs
         WHERE workflow = %(workflow)s AND left(trigger, 200) = left(%(trigger)s, 200) AND trigger = %(trigger)s
           AND window_start > coalesce((SELECT window_start FROM reached), '-infinity')
         GROUP BY window_start ORDER BY window_start DESC LIMIT %(limit)s)"""


@checks_arguments
class PostgresQueries:
    """`JournalQueries` on a `PostgresStorage`: a listing costs what it shows, a repair what is wrong.

    What is in no index is filtered row by row: another trigger or version, and runs that started too late or, once a
    page is not full, too early. A repair reads every open run that has children.
    """

    def __init__(self, storage: PostgresStorage) -> None:
        """Bind to a storage."""
        self._storage = storage

    def list_runs(self, where: RunFilter, before: int | None, limit: int) -> list[RunRow]:
        """List runs, newest first, as the contract says."""
        check_listing(where, before, limit)
        if where.statuses == ():
            return []
        text, values = listing(where, before, limit)
        return [_row(row) for row in self._storage.rows(text, values)]

    def get_run(self, run_id: str) -> RunRow | None:
        """Return one run's row."""
        check_text(run_id, "run_id", 1000)
        return next((_row(row) for row in self._storage.rows(_GET, {"run_id": run_id})), None)

    def runs_to_repair(
        self, after: str, limit: int, queue: str | None = None, waiting: Collection[WaitingStep] = ()
    ) -> list[str]:
        """Return runs that a crash may have left incomplete, as the contract says."""
        check_repair(after, limit, queue)
        steps = {"definitions": [step.definition for step in waiting], "steps": [step.step for step in waiting]}
        values = {"after": after, "limit": limit, "queue": queue, **steps}
        return [run_id for (run_id,) in self._storage.rows(_TO_REPAIR, values)]

    def runs_to_list(self, limit: int) -> list[RunRow]:
        """Return started runs without index or catalog fact, oldest first."""
        check_limit(limit)
        return [_row(row) for row in self._storage.rows(_TO_LIST, {"limit": limit})]

    def dead_letters(self, queue: str | None, limit: int, after: int = 0) -> list[Attempt]:
        """Show dead letters that wait for a person, as the contract says."""
        check_repair("", limit, queue)
        check_revision(after, "after")
        values = {"queue": queue, "limit": limit, "after": after}
        return [attempt_from_row(row) for (row,) in self._storage.rows(_DEAD, values)]

    def queues(self) -> list[QueueRow]:
        """Count the claimable work of each queue, as the contract says."""
        values = {"now": self._storage.bound_now, "limit": MOST_COUNTED}
        rows = (QueueRow(*row) for row in self._storage.rows(_QUEUES, values))
        return [row._replace(oldest_due_at=_utc(row.oldest_due_at)) for row in rows]

    def backlog(self, queues: Collection[str], definitions: Collection[str] | None, limit: int) -> list[BacklogRow]:
        """Count what could be claimed now from each of these queues, as the contract says."""
        check_backlog(queues, definitions, limit)
        values = {
            "queues": sorted(set(queues)),
            "definitions": None if definitions is None else list(definitions),
            "limit": limit,
            "now": self._storage.bound_now,
        }
        return [BacklogRow(queue, count, utc(due)) for queue, count, due in self._storage.rows(_BACKLOG, values)]

    def children(self, run_id: str) -> list[str]:
        """Return the children of a run."""
        check_part(run_id, "run_id")
        return [row[0] for row in self._storage.rows(_CHILDREN, {"run_id": run_id})]

    def anomalies(self, run_id: str | None, limit: int, after_position: int = 0) -> list[Anomaly]:
        """Show anomalies by position, as the contract says."""
        check_limit(limit)
        check_revision(after_position, "after_position")
        if run_id is not None:
            check_text(run_id, "run_id", 1000)
        values = {"run_id": run_id, "after": after_position, "limit": limit}
        text = _ANOMALIES if run_id is None else _RUN_ANOMALIES
        return [Anomaly(Reason(reason), *rest) for reason, *rest in self._storage.rows(text, values)]

    def schedule_cursor(self, workflow: str, trigger: str) -> ScheduleCursor:
        """Return how far a cron trigger has come."""
        check_text(workflow, "workflow", 1000)
        check_text(trigger, "trigger", 1000)
        values = {"workflow": workflow, "trigger": trigger, "ahead": AHEAD, "limit": MAX_PAGE}
        ((reached, ahead),) = self._storage.rows(_CURSOR, values)
        return ScheduleCursor(
            _utc(reached), tuple(at for window_start in ahead if (at := _utc(window_start)) is not None)
        )


def listing(where: RunFilter, before: int | None, limit: int) -> tuple[LiteralString, dict[str, Any]]:
    """Return the statement that lists such runs by the most selective index, and its values."""
    values: dict[str, Any] = {
        "before": _LAST if before is None else before,
        "limit": limit,
        "workflow": where.workflow,
        "queue": where.queue,
        "trigger": where.trigger,
        "parent_run_id": where.parent_run_id,
        "definition_version": where.definition_version,
        "started_after": where.started_after,
        "started_before": where.started_before,
        "statuses": None if where.statuses is None else list(where.statuses),
    }
    wanted = RUN_STATUSES if where.statuses is None else where.statuses
    values |= {f"status_{n}": wanted[n] if n < len(wanted) else None for n in range(len(RUN_STATUSES))}
    if where.parent_run_id is not None:
        return _LIST_CHILDREN, values
    if where.workflow is not None:
        return _LIST_WORKFLOW, values
    if where.queue is not None:
        return _LIST_QUEUE, values
    return _LIST, values


def _row(row: tuple[Any, ...]) -> RunRow:
    parsed = RunRow(*row)
    return parsed._replace(
        started_at=_utc(parsed.started_at), ended_at=_utc(parsed.ended_at), paused_at=_utc(parsed.paused_at)
    )


def _utc(value: datetime | None) -> datetime | None:
    return utc(value) if value is not None else None
