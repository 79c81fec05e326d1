"""`list_runs`: runs by filters, newest first, page by page.

A page costs what it shows, and one bad run is one bad line. The status of a line is that of a snapshot.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypedDict, Unpack

from squid_dagster.inspection.display import plain
from squid_dagster.inspection.hold import HELD, HOLDABLE, Worker, hold_of, status_of
from squid_dagster.inspection.page_cursor import read_cursor, write_cursor
from squid_dagster.journal.contract.queries import RUN_STATUSES, JournalQueries, RunFilter, RunRow
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow.registry import Registry

DEFAULT_LIMIT, MAX_LIMIT = 50, 500
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
        """Return the line as JSON, always with the same keys."""
        whole: dict[str, Any] = plain(self)
        return whole


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs, newest first. `next_cursor` leads to older ones; None when there are none."""

    runs: tuple[RunSummary, ...]
    next_cursor: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the page as JSON, always with the same keys."""
        whole: dict[str, Any] = plain(self)
        return whole


class RunFilters(TypedDict, total=False):
    """Which runs to list; every filter that is given must fit, None does not matter.

    `status` is one of the words that a line shows, or several: what the run's facts say, or "held". `started_after` and
    `started_before` are exclusive.
    """

    workflow: str | None
    status: str | Collection[str] | None
    queue: str | None
    trigger: str | None
    parent_run_id: str | None
    definition_version: str | None
    started_after: datetime | None
    started_before: datetime | None
    open_only: bool


@checked
def list_runs(
    queries: JournalQueries,
    *,
    registry: Registry | None = None,
    workers: Sequence[Worker] | None = None,
    limit: int = DEFAULT_LIMIT,
    cursor: str | None = None,
    **filters: Unpack[RunFilters],
) -> RunPage:
    """List runs, newest first.

    Which runs are held is judged line by line: a page with such a filter may be shorter than `limit` although more runs
    follow. Dead letters are listed by `JournalQueries.dead_letters`.

    Raises:
        InvalidArgument: a filter or limit that makes no sense, or a cursor that is damaged or of another listing.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise InvalidArgument(f"limit must be a whole number from 1 to {MAX_LIMIT}, not {limit!r:.40}")
    wanted = _wanted(filters.get("status"))
    if registry is None and wanted == frozenset({HELD}):
        return RunPage((), None)  # without definitions, no run is held
    stored = None if wanted is None else _stored(wanted)
    where = RunFilter(**{**filters, "status": stored})  # type: ignore[arg-type]  # the keys of RunFilters
    same = plain({**asdict(where), "status": None if wanted is None else sorted(wanted)})
    before = None if cursor is None else read_cursor(cursor, same)
    matching: list[RunRow] = []
    for _ in range(_MAX_SCANS):
        rows = queries.list_runs(where, before, limit + 1)
        for row in rows[:limit]:
            if wanted is None or _status(row, registry, workers) in wanted:
                matching.append(row)
            before = row.position
            if len(matching) == limit:
                break
        is_last = len(rows) <= limit and (not rows or rows[-1].position == before)
        if is_last or len(matching) == limit:
            break
    runs = tuple(_summary(row, registry, workers) for row in matching)
    return RunPage(runs, None if is_last or before is None else write_cursor(before, same))


def _wanted(status: str | Collection[str] | None) -> frozenset[str] | None:
    if status is None:
        return None
    named = (status,) if isinstance(status, str) else status
    if not isinstance(named, Collection) or not all(isinstance(word, str) for word in named):
        raise InvalidArgument(f"status must be a word or several, not {status!r:.80}")
    for word in named:
        if word not in LISTED_STATUSES:
            raise InvalidArgument(f"status {word!r:.80} is unknown: take one of {', '.join(LISTED_STATUSES)}")
    return frozenset(named)


def _stored(wanted: frozenset[str]) -> tuple[str, ...]:
    """Return the statuses that the views have of runs which may be shown with a wanted one."""
    return tuple(sorted((wanted - {HELD}) | (HOLDABLE if HELD in wanted else frozenset())))


def _status(row: RunRow, registry: Registry | None, workers: Sequence[Worker] | None) -> str:
    hold = hold_of(row.workflow, row.definition_version, row.definition_fingerprint, registry, workers)
    return status_of(row.status, hold)


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
