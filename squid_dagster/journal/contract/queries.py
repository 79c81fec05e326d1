"""The contract of queries about runs, queues and anomalies, and the rows that they return.

`FoldQueries` reads a fold of the whole journal, on any storage; `PostgresQueries` reads the live views, by the index
named beside each statement. Read-only; promises nothing about facts that are written meanwhile.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from squid_dagster.journal.contract.dispatch_store import check_text
from squid_dagster.journal.contract.storage import check_revision
from squid_dagster.protocol.anomalies import Anomaly
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import InvalidArgument, InvalidThread
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.threads import check_part

# Every value of `RunProjection.status`. Listings by workflow or queue merge one stream for each of them.
OPEN_STATUSES = ("new", "started", "running", "idle", "paused", "quarantined")
RUN_STATUSES = (*OPEN_STATUSES, "completed", "failed", "cancelled")
MAX_PAGE = 10_000


class RunRow(NamedTuple):
    """A run in a listing, without inputs, outputs and errors of its steps."""

    run_id: str
    position: int  # of the run's first fact: newer runs have higher ones
    status: str
    workflow: str | None
    trigger: str | None
    queue: str | None
    definition_version: str | None
    definition_fingerprint: str | None
    parent_run_id: str | None
    replayed_from_run_id: str | None
    started_at: datetime | None
    ended_at: datetime | None
    terminal_status: str | None
    manual_step: str | None
    manual_kind: str | None
    paused_at: datetime | None
    quarantined: bool
    indexed: bool
    cataloged: bool
    anomalies: int


MOST_COUNTED = 10_000  # of each kind of work of a queue


class QueueRow(NamedTuple):
    """How many open attempts a queue has: due and unclaimed, due later, claimed, and claimed with an expired lease.

    Each is counted up to `MOST_COUNTED`, which means that many or more.
    """

    queue: str
    paused: bool
    visible: int
    scheduled: int
    claimed: int
    expired: int
    oldest_due_at: datetime | None  # the earliest due time; None if no attempt is due


class BacklogRow(NamedTuple):
    """How many attempts of a queue could be claimed now, counted up to a limit, and the earliest due time."""

    queue: str
    claimable: int
    oldest_due_at: datetime


@checks_arguments
@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list; a field that is None matches all. Raises `InvalidArgument` for an invalid value.

    `status` is one status or several. `started_after` and `started_before` are exclusive.
    """

    workflow: str | None = None
    status: str | Collection[str] | None = None
    queue: str | None = None
    trigger: str | None = None
    parent_run_id: str | None = None
    definition_version: str | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None
    open_only: bool = False

    def __post_init__(self) -> None:
        """Check all fields: an error is better than a listing that silently shows the wrong runs."""
        for name in ("workflow", "queue", "trigger", "parent_run_id", "definition_version"):
            if (value := getattr(self, name)) is not None:
                check_text(value, name, 1000)
        for name in ("started_after", "started_before"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, datetime) and value.tzinfo is not None):
                raise InvalidArgument(f"{name} must be a time with a zone, not {value!r:.80}")
        if self.status is not None:
            statuses = (self.status,) if isinstance(self.status, str) else self.status
            for status in statuses if isinstance(statuses, Collection) else (statuses,):
                if status not in RUN_STATUSES:
                    raise InvalidArgument(f"status {status!r:.80} is unknown: take one of {', '.join(RUN_STATUSES)}")

    @property
    def statuses(self) -> tuple[str, ...] | None:
        """The statuses that match, None if all do; empty if no run can match."""
        allowed = OPEN_STATUSES if self.open_only else RUN_STATUSES
        if self.status is None:
            return OPEN_STATUSES if self.open_only else None
        named = (self.status,) if isinstance(self.status, str) else self.status
        return tuple(status for status in allowed if status in named)

    def matches(self, row: RunRow) -> bool:
        """Return whether a run matches."""
        statuses, started = self.statuses, row.started_at
        names = ("workflow", "queue", "trigger", "parent_run_id", "definition_version")
        return (
            all(getattr(self, name) in (None, getattr(row, name)) for name in names)
            and (statuses is None or row.status in statuses)
            and (self.started_after is None or (started is not None and started > self.started_after))
            and (self.started_before is None or (started is not None and started < self.started_before))
        )


class WaitingStep(NamedTuple):
    """A step of a definition (see `definition_key`) whose dead letters wait for a person."""

    definition: str
    step: str


class ScheduleCursor(NamedTuple):
    """The start of the latest window that has a run started on time; None if there is none.

    `ahead` are the starts of later windows whose runs were started early, which says nothing about the windows before
    them. A window that is started up to `AHEAD` too early is on time: clocks differ, and no two windows are closer.
    """

    reached: datetime | None = None
    ahead: tuple[datetime, ...] = ()


AHEAD = timedelta(minutes=1)


class JournalQueries(Protocol):
    """Queries about a whole journal. All raise `InvalidArgument` for a bad limit, cursor or text."""

    def list_runs(self, where: RunFilter, before: int | None, limit: int) -> list[RunRow]:
        """List runs, newest first; the next page is before the `position` of this one's last row."""

    def get_run(self, run_id: str) -> RunRow | None:
        """Return one run as a listing shows it, None if no fact names it."""

    def runs_to_repair(
        self, after: str, limit: int, queue: str | None = None, waiting: Collection[WaitingStep] = ()
    ) -> list[str]:
        """Return the runs after that id, in the order of ids, that a crash may have left halfway.

        Either open and not quarantined, with planned work that is not scheduled, an outcome that is not applied, a
        retry that is not planned, a linked child that never started, an ancestor that linked children and was
        cancelled, or no fact on its queue; or ended, with attempts on the queue that are not fenced. Some need no
        repair: recovery checks each. Planned dead letters of the steps in `waiting` are left out: they wait for a
        person. With `queue`, only runs of that queue, and those that have none yet.
        """

    def runs_to_list(self, limit: int) -> list[RunRow]:
        """Return runs that have started and have no index or no catalog fact yet, oldest first."""

    def dead_letters(self, queue: str | None, limit: int, after: int = 0) -> list[Attempt]:
        """Return dead letters that wait for a person: the latest attempt of their visit, not applied, in an open run.

        By `position`, those after `after`; without input and error, which the journal has (`Storage.read_run`).
        """

    def queues(self) -> list[QueueRow]:
        """Count the claimable work of each queue that has any, or was ever paused, by name; up to `MOST_COUNTED` each.

        The cost grows with the counts of each lane: for displays, not for a loop.
        """

    def backlog(self, queues: Collection[str], definitions: Collection[str] | None, limit: int) -> list[BacklogRow]:
        """Count what could be claimed now from each of these queues, up to `limit`, by name; empty ones are left out.

        Counts attempts that are due and unclaimed, and those with an expired lease; nothing of a paused queue, and only
        what `definitions` names (see `definition_key`), unless that is None. Costs one index scan for each lane of the
        queues and the rows that are counted: cheap enough for a loop.
        """

    def anomalies(self, run_id: str | None, limit: int, after_position: int = 0) -> list[Anomaly]:
        """Return anomalies by position, of one run or of all; those of one entry are always on the same page."""

    def children(self, run_id: str) -> list[str]:
        """Return the runs that a run has linked as its children, by id; from the journal itself."""

    def schedule_cursor(self, workflow: str, trigger: str) -> ScheduleCursor:
        """Return the progress of a cron trigger, by the windows that runs were started for."""


def check_limit(limit: int) -> None:
    """Raise `InvalidArgument` unless `limit` is a whole number from 1 to 10,000."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise InvalidArgument(f"limit must be a whole number from 1 to {MAX_PAGE}, not {limit!r:.80}")


def check_listing(where: RunFilter, before: int | None, limit: int) -> None:
    """Raise `InvalidArgument` for an invalid listing."""
    if not isinstance(where, RunFilter):
        raise InvalidArgument(f"where must be a RunFilter, not {where!r:.80}")
    check_revision(before, "before")
    check_limit(limit)


def check_repair(after: str, limit: int, queue: str | None) -> None:
    """Raise `InvalidArgument` for an invalid page of repairs."""
    if after != "":
        check_text(after, "after", 1000)
    check_limit(limit)
    if queue is not None:
        check_text(queue, "queue", 1000)


def check_backlog(queues: Collection[str], definitions: Collection[str] | None, limit: int) -> None:
    """Raise `InvalidArgument` or `InvalidThread` for an invalid backlog query."""
    for name, value in (("queues", queues), ("definitions", definitions)):
        if isinstance(value, str):
            raise InvalidArgument(f"{name} must be a collection of texts, not the text {value!r:.80}")
    for queue in queues:
        check_part(queue, "queue")
    for definition in definitions or ():
        check_text(definition, "a definition", 2000)
    check_limit(limit)


def parent_of(context: dict[str, Any]) -> str | None:
    """Read the parent's run id from a run's start context; None if it names none that can exist."""
    parent = context.get("parent")
    run_id = parent.get("run_id") if isinstance(parent, dict) else None
    try:
        return check_part(run_id, "run_id") if run_id is not None else None
    except InvalidThread:
        return None


def window_start(context: dict[str, Any]) -> datetime | None:
    """Read the start of the cron window from a run's start context; None if there is none that can be parsed."""
    value: Any = context
    for name in ("schedule", "intended_window", "start_at"):
        value = value.get(name) if isinstance(value, dict) else None
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else None
        return parsed.astimezone(UTC) if parsed is not None and parsed.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
