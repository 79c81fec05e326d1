"""Liveness rows of workers, upserted every few seconds; read by explanations and sensors. Advisory only.

A missing row means that nothing is known. Claims and leases do not depend on it.
"""

import json
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Protocol

from squid_dagster.journal.contract.dispatch_store import check_text
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.per_storage import shared
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.threads import check_part
from squid_dagster.redaction import redacted_error

FORGOTTEN_AFTER = timedelta(days=1)  # an older row is deleted by the next report
MAX_DETAILS_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One process, or one part of it, that takes work from queues."""

    worker_id: str
    kind: str = "worker"  # "dagster_run" and so on
    queues: tuple[str, ...]
    definitions: tuple[str, ...] | None = None  # what it can execute, as `definition_key` spells it; None: anything
    host: str
    pid: int
    started_at: datetime | None = None  # the first report, by the storage's clock; set by the storage
    seen_at: datetime | None = None  # the last report, by the storage's clock; set by the storage
    capacity: int = 1
    running: int = 0
    details: dict[str, Any] = field(default_factory=dict)


class WorkerLiveness(Protocol):
    """The liveness rows of a journal. Times are the storage's own: wrong clocks of workers do not matter."""

    def report(self, worker: WorkerRow) -> None:
        """Upsert the row of a worker; delete rows that are older than a day.

        Keys of `details` that look like secrets are redacted.

        Raises:
            InvalidArgument, InvalidThread: an invalid row; nothing was changed.
        """

    def withdraw(self, worker_id: str) -> None:
        """Delete the row of a worker; no error if there is none."""

    def workers(self, alive_within: timedelta) -> list[WorkerRow]:
        """Return the workers that reported within that time, by id."""


@checks_arguments
class MemoryLiveness:
    """Liveness in this process, beside any storage: all users of the same storage object share the rows."""

    def __init__(self, storage: Storage) -> None:
        """Bind to a storage, whose clock decides."""
        self._storage = storage
        self._table = shared(storage, _LivenessTable)

    def report(self, worker: WorkerRow) -> None:
        """Upsert the row of a worker, as the contract says."""
        row = checked(worker)
        now = self._storage.now()
        with self._table.lock:
            rows = self._table.rows
            known = rows.get(row.worker_id)
            rows[row.worker_id] = replace(row, started_at=known.started_at if known else now, seen_at=now)
            for old in [name for name, one in rows.items() if not _seen_since(one, now - FORGOTTEN_AFTER)]:
                del rows[old]

    def withdraw(self, worker_id: str) -> None:
        """Delete the row of a worker."""
        check_worker_id(worker_id)
        with self._table.lock:
            self._table.rows.pop(worker_id, None)

    def workers(self, alive_within: timedelta) -> list[WorkerRow]:
        """Return the workers that reported within that time."""
        check_alive_within(alive_within)
        since = self._storage.now() - alive_within
        with self._table.lock:
            rows = list(self._table.rows.values())
        return sorted((row for row in rows if _seen_since(row, since)), key=lambda row: row.worker_id)


@dataclass(slots=True)
class _LivenessTable:
    """The rows of one storage object."""

    rows: dict[str, WorkerRow] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


def _seen_since(row: WorkerRow, moment: datetime) -> bool:
    return row.seen_at is not None and row.seen_at > moment


def checked(worker: WorkerRow) -> WorkerRow:
    """Normalize a row; raise `InvalidArgument` or `InvalidThread` for an invalid one."""
    if not isinstance(worker, WorkerRow):
        raise InvalidArgument(f"worker must be a WorkerRow, not {worker!r:.80}")
    check_worker_id(worker.worker_id)
    for name in ("kind", "host"):
        check_text(getattr(worker, name), name, 1000)
    for name in ("queues", "definitions"):
        values = getattr(worker, name)
        if isinstance(values, str) or (values is None and name == "queues"):
            raise InvalidArgument(f"{name} must be a tuple of texts, not {values!r:.80}")
    for queue in worker.queues:
        check_part(queue, "queue")
    for definition in worker.definitions or ():
        check_text(definition, "a definition", 2000)
    for name in ("pid", "capacity", "running"):
        number = getattr(worker, name)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**31:
            raise InvalidArgument(f"{name} must be a whole number from 0 on, not {number!r:.80}")
    definitions = None if worker.definitions is None else tuple(worker.definitions)
    return replace(worker, queues=tuple(worker.queues), definitions=definitions, details=_details(worker.details))


def check_worker_id(worker_id: str) -> None:
    """Raise `InvalidArgument` unless it is a text of 1 to 200 characters."""
    check_text(worker_id, "worker_id", 200)


def _details(details: dict[str, Any]) -> dict[str, Any]:
    """Return a redacted copy of the details, of JSON values only."""
    if not isinstance(details, dict):
        raise InvalidArgument(f"details must be a JSON object, not a {type(details).__name__}")
    try:
        text = json.dumps(redacted_error(details), ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"details must be a JSON object: {error}") from None
    if size > MAX_DETAILS_BYTES:
        raise InvalidArgument(f"details take {size:,} bytes, more than the {MAX_DETAILS_BYTES:,} allowed: say less")
    if "\\u0000" in text:
        raise InvalidArgument("details hold a NUL character, which Postgres cannot store: remove it")
    copy: dict[str, Any] = json.loads(text)
    return copy


def check_alive_within(alive_within: timedelta) -> None:
    """Raise `InvalidArgument` unless it is a positive time of at most a day; older rows are deleted anyway."""
    if not isinstance(alive_within, timedelta) or not timedelta(0) < alive_within <= FORGOTTEN_AFTER:
        raise InvalidArgument(f"alive_within must be a timedelta above zero and up to a day, not {alive_within!r}")
