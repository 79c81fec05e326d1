"""What can be asked of a journal about runs, queues and anomalies: the contract, and the values it answers with.

`FoldQueries` answers from a fold of everything, on any storage; `PostgresQueries` from the live views, by the index
named beside each statement. Reads only, and promises nothing about facts that are written meanwhile.
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

# Every status that `RunProjection.status` gives. Listings by workflow or queue merge one stream for each of them.
OPEN_STATUSES = ("new", "started", "running", "idle", "paused", "quarantined")
RUN_STATUSES = (*OPEN_STATUSES, "completed", "failed", "cancelled")
MAX_PAGE = 10_000


class RunRow(NamedTuple):
    """What a listing knows about a run: nothing that a step was given, gave back or failed with."""

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
    """How much open work a queue has: due and unclaimed, due later, held, and held beyond its lease.

    Each is counted up to `MOST_COUNTED`, which stands for so many or more.
    """

    queue: str
    paused: bool
    visible: int
    scheduled: int
    claimed: int
    expired: int
    oldest_due_at: datetime | None  # since when the attempt that is due for longest is due; None when none is


class BacklogRow(NamedTuple):
    """How much of a queue could be claimed now, counted up to a limit, and since when the oldest of it is due."""

    queue: str
    claimable: int
    oldest_due_at: datetime


@checks_arguments
@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list; what is None does not matter. Raises `InvalidArgument` for a value that makes no sense.

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
        """Check everything; a listing that silently shows the wrong runs is worse than an error."""
        for name in ("workflow", "queue", "trigger", "parent_run_id", "definition_version"):
            if (value := getattr(self, name)) is not None:
                check_text(value, name, 1000)
        for name in ("started_after", "started_before"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, datetime) and value.tzinfo is not None):
                raise InvalidArgument(f"{name} must be a time with a zone, not {value!r:.80}")
        if self.status is not None:
            named = (self.status,) if isinstance(self.status, str) else self.status
            for status in named if isinstance(named, Collection) else (named,):
                if status not in RUN_STATUSES:
                    raise InvalidArgument(f"status {status!r:.80} is unknown: take one of {', '.join(RUN_STATUSES)}")

    @property
    def statuses(self) -> tuple[str, ...] | None:
        """The statuses that are wanted, None when any is; empty when no run can be."""
        allowed = OPEN_STATUSES if self.open_only else RUN_STATUSES
        if self.status is None:
            return OPEN_STATUSES if self.open_only else None
        named = (self.status,) if isinstance(self.status, str) else self.status
        return tuple(status for status in allowed if status in named)

    def matches(self, row: RunRow) -> bool:
        """Tell whether a run is wanted."""
        statuses, started = self.statuses, row.started_at
        wanted = ("workflow", "queue", "trigger", "parent_run_id", "definition_version")
        return (
            all(getattr(self, name) in (None, getattr(row, name)) for name in wanted)
            and (statuses is None or row.status in statuses)
            and (self.started_after is None or (started is not None and started > self.started_after))
            and (self.started_before is None or (started is not None and started < self.started_before))
        )


class WaitingStep(NamedTuple):
    """A step of a definition (see `definition_key`) whose dead letters wait for a person."""

    definition: str
    step: str


class ScheduleCursor(NamedTuple):
    """The start of the latest window that was started once its time had come; None when there was none.

    `ahead` are the starts of later windows: they were started ahead of their time, and say nothing about those before
    them. A window that is started up to `AHEAD` too early is on time: clocks differ, and no two windows are closer.
    """

    reached: datetime | None = None
    ahead: tuple[datetime, ...] = ()


AHEAD = timedelta(minutes=1)


class JournalQueries(Protocol):
    """Questions about a whole journal. All raise `InvalidArgument` for a bad limit, cursor or text."""

    def list_runs(self, where: RunFilter, before: int | None, limit: int) -> list[RunRow]:
        """List runs, newest first; the next page is before the `position` of this one's last row."""

    def get_run(self, run_id: str) -> RunRow | None:
        """Give what a listing would show of one run, None when no fact names it."""

    def runs_to_repair(
        self, after: str, limit: int, queue: str | None = None, waiting: Collection[WaitingStep] = ()
    ) -> list[str]:
        """Give the runs after that id, in the order of ids, that a crash may have left halfway.

        Either open and not quarantined, with planned work that is not scheduled, an outcome that is not applied, a
        retry that is not planned, a linked child that never started, a run somewhere above it that linked children and
        was cancelled, or no word of it on its queue; or ended, with attempts on the queue that nobody fenced. Some need
        nothing: whoever repairs looks closer. Planned dead letters of the steps in `waiting` are left out: they wait
        for a person. With `queue`, only runs of that queue, and those that have none yet.
        """

    def runs_to_list(self, limit: int) -> list[RunRow]:
        """Give runs that have started and have no index or no catalog fact yet, oldest first."""

    def dead_letters(self, queue: str | None, limit: int, after: int = 0) -> list[Attempt]:
        """Show dead letters that wait for a person: the latest attempt of their visit, not applied, in an open run.

        By `position`, those after `after`; without input and error, which the journal has (`Storage.read_run`).
        """

    def queues(self) -> list[QueueRow]:
        """Count the claimable work of each queue that has any, or was ever paused, by name; up to `MOST_COUNTED` each.

        Costs what it counts of each lane: for a person who looks, not for a loop.
        """

    def backlog(self, queues: Collection[str], definitions: Collection[str] | None, limit: int) -> list[BacklogRow]:
        """Count what could be claimed now from each of these queues, up to `limit`, by name; empty ones are left out.

        Counts attempts that are due and unclaimed, and those beyond their lease; nothing of a paused queue, and only
        what `definitions` names (see `definition_key`), unless that is None. Costs a look at each lane of the queues
        and the rows that are counted: for a loop.
        """

    def anomalies(self, run_id: str | None, limit: int, after_position: int = 0) -> list[Anomaly]:
        """Show anomalies by position, of one run or of all; one entry's are never split over two pages."""

    def children(self, run_id: str) -> list[str]:
        """Return the runs that a run has linked as its children, by id; as they stand in the journal now."""

    def schedule_cursor(self, workflow: str, trigger: str) -> ScheduleCursor:
        """Return how far a cron trigger has come, by the windows that runs were started for."""


def check_limit(limit: int) -> None:
    """Raise `InvalidArgument` unless `limit` is a whole number from 1 to 10,000."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise InvalidArgument(f"limit must be a whole number from 1 to {MAX_PAGE}, not {limit!r:.80}")


def check_listing(where: RunFilter, before: int | None, limit: int) -> None:
    """Raise `InvalidArgument` for a listing that makes no sense."""
    if not isinstance(where, RunFilter):
        raise InvalidArgument(f"where must be a RunFilter, not {where!r:.80}")
    check_revision(before, "before")
    check_limit(limit)


def check_repair(after: str, limit: int, queue: str | None) -> None:
    """Raise `InvalidArgument` for a page of repairs that makes no sense."""
    if after != "":
        check_text(after, "after", 1000)
    check_limit(limit)
    if queue is not None:
        check_text(queue, "queue", 1000)


def check_backlog(queues: Collection[str], definitions: Collection[str] | None, limit: int) -> None:
    """Raise `InvalidArgument` or `InvalidThread` for a look at a backlog that makes no sense."""
    for name, value in (("queues", queues), ("definitions", definitions)):
        if isinstance(value, str):
            raise InvalidArgument(f"{name} must be a collection of texts, not the text {value!r:.80}")
    for queue in queues:
        check_part(queue, "queue")
    for definition in definitions or ():
        check_text(definition, "a definition", 2000)
    check_limit(limit)


def parent_of(context: dict[str, Any]) -> str | None:
    """Read the parent's run id from what a run was started with; None when it names none that can exist."""
    parent = context.get("parent")
    run_id = parent.get("run_id") if isinstance(parent, dict) else None
    try:
        return check_part(run_id, "run_id") if run_id is not None else None
    except InvalidThread:
        return None


def window_start(context: dict[str, Any]) -> datetime | None:
    """Read the start of the cron window from what a run was started with; None when it says none that can be read."""
    found: Any = context
    for name in ("schedule", "intended_window", "start_at"):
        found = found.get(name) if isinstance(found, dict) else None
    try:
        read = datetime.fromisoformat(found) if isinstance(found, str) else None
        return read.astimezone(UTC) if read is not None and read.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
