"""Lists of a queue's attempts, read without locks: those that may be claimed, and those whose lease has run out.

Claims do not go through here: see `claim_attempts.sql`.
"""

from collections.abc import Collection
from typing import LiteralString

from squid_dagster.journal.contract.dispatch_store import check_definitions
from squid_dagster.journal.contract.storage import check_revision
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.rows import attempt_from_row
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.threads import check_part

# attempts_due, lane by lane, as claim_attempts goes. Lanes are few: other definitions' lanes are skipped.
_VISIBLE: LiteralString = """WITH RECURSIVE lane (definition, rank) AS (
        (SELECT a.definition, a.rank FROM {schema}.attempts a
          WHERE a.queue = %(queue)s AND a.due_at IS NOT NULL ORDER BY a.definition, a.rank LIMIT 1)
        UNION ALL
        SELECT n.definition, n.rank FROM lane l CROSS JOIN LATERAL (
            SELECT a.definition, a.rank FROM {schema}.attempts a
             WHERE a.queue = %(queue)s AND a.due_at IS NOT NULL AND (a.definition, a.rank) > (l.definition, l.rank)
             ORDER BY a.definition, a.rank LIMIT 1) n
    )
    SELECT to_json(d) FROM lane CROSS JOIN LATERAL (
        SELECT * FROM {schema}.attempts a
         WHERE a.queue = %(queue)s AND a.definition = lane.definition AND a.rank = lane.rank AND a.due_at IS NOT NULL
           AND a.due_at <= (SELECT coalesce(%(now)s, clock_timestamp())) AND a.status <> 'claimed'
         ORDER BY a.due_at, a.position LIMIT %(limit)s) d
     WHERE %(definitions)s::text[] IS NULL OR lane.definition = ANY (%(definitions)s)
     ORDER BY d.rank, d.due_at, d.position LIMIT %(limit)s"""
# attempts_leased; reads past those of other definitions
_EXPIRED: LiteralString = """SELECT to_json(a) FROM {schema}.attempts a
    WHERE queue = %(queue)s AND status = 'claimed' AND lease_until <= (SELECT coalesce(%(now)s, clock_timestamp()))
      AND due_at IS NOT NULL AND (deliveries >= max_deliveries OR NOT %(spent)s)
      AND (%(definitions)s::text[] IS NULL OR definition = ANY (%(definitions)s))
    ORDER BY lease_until, position LIMIT %(limit)s"""


def visible_attempts(
    storage: PostgresStorage, queue: str, limit: int, definitions: Collection[str] | None
) -> list[Attempt]:
    """Return unclaimed attempts that are due, in claim order."""
    return _attempts(storage, _VISIBLE, queue, limit, definitions)


def expired_attempts(
    storage: PostgresStorage, queue: str, limit: int, definitions: Collection[str] | None, *, spent: bool = False
) -> list[Attempt]:
    """Return claimed attempts whose lease has run out; with `spent`, only those whose deliveries are spent."""
    return _attempts(storage, _EXPIRED, queue, limit, definitions, spent=spent)


def _attempts(
    storage: PostgresStorage,
    text: LiteralString,
    queue: str,
    limit: int,
    definitions: Collection[str] | None,
    **values: object,
) -> list[Attempt]:
    check_part(queue, "queue")
    check_revision(limit, "limit")
    check_definitions(definitions)
    keys = None if definitions is None else list(definitions)
    values |= {"queue": queue, "now": storage.bound_now, "limit": limit, "definitions": keys}
    return [attempt_from_row(row[0]) for row in storage.rows(text, values)]
