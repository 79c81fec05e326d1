"""Listing runs: newest first, by filters, page by page. A page costs what it shows, and one bad run is one bad line."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from squid_dagster.inspection.display import plain
from squid_dagster.inspection.hold import Worker, hold_of
from squid_dagster.inspection.page_cursor import read_cursor, write_cursor
from squid_dagster.journal.contract.queries import RUN_STATUSES, JournalQueries, RunFilter, RunRow
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow.registry import Registry

DEFAULT_LIMIT, MAX_LIMIT = 50, 500
HELD = "held"
# What a held run is by its facts alone. An end, a quarantine and a pause are told before that it is held.
_HOLDABLE = frozenset({"started", "running", "idle"})
LISTED_STATUSES = (*RUN_STATUSES, HELD)
_MAX_SCANS = 20  # pages that are looked at for one; a page may then be short, and its cursor leads on


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of a listing. It holds nothing that a step was given, gave back or failed with."""

    run_id: str
    workflow: str | None
    trigger: str | None
    queue: str | None
    status: str
    terminal: bool
    terminal_status: str | None
    definition_version: str | None
    definition_fingerprint: str | None
    parent_run_id: str | None
    replayed_from_run_id: str | None
    started_at: datetime | None
    ended_at: datetime | None
    manual_step: str | None
    manual_kind: str | None
    paused_at: datetime | None
    quarantined: bool
    indexed: bool
    cataloged: bool
    anomalies: int

    def to_dict(self) -> dict[str, Any]:
        """Give the line as JSON, always with the same keys."""
        whole: dict[str, Any] = plain(self)
        return whole


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs, newest first. `next_cursor` leads to older ones; None when there are none."""

    runs: tuple[RunSummary, ...]
    next_cursor: str | None

    def to_dict(self) -> dict[str, Any]:
        """Give the page as JSON, always with the same keys."""
        whole: dict[str, Any] = plain(self)
        return whole


@checked
def list_runs(
    queries: JournalQueries,
    *,
    registry: Registry | None = None,
    workers: Sequence[Worker] | None = None,
    workflow: str | None = None,
    status: str | Collection[str] | None = None,
    queue: str | None = None,
    trigger: str | None = None,
    parent_run_id: str | None = None,
    definition_version: str | None = None,
    started_after: datetime | None = None,
    started_before: datetime | None = None,
    open_only: bool = False,
    limit: int = DEFAULT_LIMIT,
    cursor: str | None = None,
) -> RunPage:
    """List runs, newest first; every filter that is given must fit.

    `status` is one of the words that a line shows, or several: what the run's facts say, or "held" where a registered
    definition says so. Which runs are held is found out line by line: a page with such a filter may be shorter than
    `limit` although more runs follow. Dead letters are found with `JournalQueries.dead_letters`.

    Raises:
        InvalidArgument: a filter or limit that makes no sense, or a cursor that is damaged or of another listing.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise InvalidArgument(f"limit must be a whole number from 1 to {MAX_LIMIT}, not {limit!r:.40}")
    wanted = _wanted(status)
    where = RunFilter(
        workflow=workflow,
        status=None if wanted is None else _stored(wanted),
        queue=queue,
        trigger=trigger,
        parent_run_id=parent_run_id,
        definition_version=definition_version,
        started_after=started_after,
        started_before=started_before,
        open_only=open_only,
    )
    filters = plain({**asdict(where), "status": None if wanted is None else sorted(wanted)})
    before = None if cursor is None else read_cursor(cursor, filters)
    found: list[RunRow] = []
    for _ in range(_MAX_SCANS):
        rows = queries.list_runs(where, before, limit + 1)
        for row in rows[:limit]:
            if wanted is None or _status(row, registry, workers) in wanted:
                found.append(row)
            before = row.position
            if len(found) == limit:
                break
        more = len(rows) > limit or (bool(rows) and rows[-1].position != before)
        if not more or len(found) == limit:
            break
    runs = tuple(_summary(row, registry, workers) for row in found)
    return RunPage(runs, write_cursor(before, filters) if more and before is not None else None)


def _wanted(status: str | Collection[str] | None) -> frozenset[str] | None:
    if status is None:
        return None
    named = (status,) if isinstance(status, str) else status
    if not isinstance(named, Collection) or not all(isinstance(each, str) for each in named):
        raise InvalidArgument(f"status must be a word or several, not {status!r:.80}")
    for each in named:
        if each not in LISTED_STATUSES:
            raise InvalidArgument(f"status {each!r:.80} is unknown: take one of {', '.join(LISTED_STATUSES)}")
    return frozenset(named)


def _stored(wanted: frozenset[str]) -> tuple[str, ...]:
    """Give the statuses that facts alone tell, among which the wanted ones are found."""
    return tuple(sorted((wanted - {HELD}) | (_HOLDABLE if HELD in wanted else frozenset())))


def _status(row: RunRow, registry: Registry | None, workers: Sequence[Worker] | None) -> str:
    if row.status not in _HOLDABLE:
        return row.status
    hold = hold_of(row.workflow, row.definition_version, row.definition_fingerprint, registry, workers)
    return row.status if hold is None else HELD


def _summary(row: RunRow, registry: Registry | None, workers: Sequence[Worker] | None) -> RunSummary:
    return RunSummary(
        run_id=row.run_id,
        workflow=row.workflow,
        trigger=row.trigger,
        queue=row.queue,
        status=_status(row, registry, workers),
        terminal=row.terminal_status is not None,
        terminal_status=row.terminal_status,
        definition_version=row.definition_version,
        definition_fingerprint=row.definition_fingerprint,
        parent_run_id=row.parent_run_id,
        replayed_from_run_id=row.replayed_from_run_id,
        started_at=row.started_at,
        ended_at=row.ended_at,
        manual_step=row.manual_step,
        manual_kind=row.manual_kind,
        paused_at=row.paused_at,
        quarantined=row.quarantined,
        indexed=row.indexed,
        cataloged=row.cataloged,
        anomalies=row.anomalies,
    )
