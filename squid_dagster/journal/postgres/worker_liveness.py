"""Worker liveness on Postgres: a table beside the journal, from which nothing is derived. No rebuild touches it."""

import json
from dataclasses import fields
from datetime import timedelta
from typing import Any, LiteralString

from squid_dagster.journal.contract.worker_liveness import (
    FORGOTTEN_AFTER,
    WorkerRow,
    check_alive_within,
    check_worker_id,
    checked,
)
from squid_dagster.journal.postgres.entry_reader import utc
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.argument_checks import checks_arguments

# presence_pkey. One statement, so one commit, which does not wait for the disk: what a crash loses is reported again.
# Two that sweep at once do not wait for each other. The table holds one row per worker: sweeping reads all of them.
_REPORT: LiteralString = """WITH moment AS MATERIALIZED (
        SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS at, set_config('synchronous_commit', 'off', true)
    ), swept AS (
        DELETE FROM {schema}.presence WHERE worker_id IN (
            SELECT p.worker_id FROM {schema}.presence p, moment m
             WHERE p.seen_at <= m.at - %(forgotten_after)s::interval AND p.worker_id <> %(worker_id)s
               FOR UPDATE OF p SKIP LOCKED)
    )
    INSERT INTO {schema}.presence (worker_id, kind, queues, definitions, host, pid, started_at, seen_at, capacity,
                                   running, details)
    SELECT %(worker_id)s, %(kind)s, %(queues)s::text[], %(definitions)s::text[], %(host)s, %(pid)s, m.at, m.at,
           %(capacity)s, %(running)s, %(details)s::json FROM moment m
        ON CONFLICT (worker_id) DO UPDATE SET
           (kind, queues, definitions, host, pid, seen_at, capacity, running, details) = (
           EXCLUDED.kind, EXCLUDED.queues, EXCLUDED.definitions, EXCLUDED.host, EXCLUDED.pid, EXCLUDED.seen_at,
           EXCLUDED.capacity, EXCLUDED.running, EXCLUDED.details)"""
_WITHDRAW: LiteralString = "DELETE FROM {schema}.presence WHERE worker_id = %(worker_id)s"
_WORKERS: LiteralString = """SELECT worker_id, kind, queues, definitions, host, pid, started_at, seen_at, capacity,
        running, details
      FROM {schema}.presence
     WHERE seen_at > coalesce(%(now)s::timestamptz, clock_timestamp()) - %(alive_within)s::interval
     ORDER BY worker_id"""
_COLUMNS = tuple(field.name for field in fields(WorkerRow))  # in the order of _WORKERS


@checks_arguments
class PostgresLiveness:
    """`WorkerLiveness` on a `PostgresStorage`: every process that uses the journal sees the same workers."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Bind to a storage."""
        self._storage = storage

    def report(self, worker: WorkerRow) -> None:
        """Report that a worker is alive, as the contract says. Raises `StorageUnavailable`."""
        row = checked(worker)
        values = {
            "worker_id": row.worker_id,
            "kind": row.kind,
            "queues": list(row.queues),
            "definitions": None if row.definitions is None else list(row.definitions),
            "host": row.host,
            "pid": row.pid,
            "capacity": row.capacity,
            "running": row.running,
            "details": json.dumps(row.details),
            "now": self._storage.bound_now,
            "forgotten_after": FORGOTTEN_AFTER,
        }
        self._storage.change(_REPORT, values)

    def withdraw(self, worker_id: str) -> None:
        """Delete the row of a worker that has ended."""
        check_worker_id(worker_id)
        self._storage.change(_WITHDRAW, {"worker_id": worker_id})

    def workers(self, alive_within: timedelta) -> list[WorkerRow]:
        """Return the workers that reported within that time."""
        check_alive_within(alive_within)
        rows = self._storage.rows(_WORKERS, {"now": self._storage.bound_now, "alive_within": alive_within})
        return [_worker(row) for row in rows]


def _worker(row: tuple[Any, ...]) -> WorkerRow:
    columns = dict(zip(_COLUMNS, row, strict=True))
    for name in ("queues", "definitions"):
        columns[name] = None if columns[name] is None else tuple(columns[name])
    for name in ("started_at", "seen_at"):
        columns[name] = utc(columns[name])
    return WorkerRow(**columns)
