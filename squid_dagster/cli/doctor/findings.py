"""What the doctor's checks read, and what they report: seven codes that stay the same."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from squid_dagster.api import Squid
    from squid_dagster.journal import PostgresStorage
    from squid_dagster.journal.contract.worker_liveness import WorkerRow
    from squid_dagster.workflow.registry import Registry

SCHEMA_DRIFT = "schema_drift"
VIEWS_DIFFER = "views_differ"
CLOCK_SKEW = "clock_skew"
STUCK_RUNS = "stuck_runs"
QUEUE_WITHOUT_WORKER = "queue_without_worker"
WORKFLOW_NOT_LOADABLE = "workflow_not_loadable"
DAGSTER_ELSEWHERE = "dagster_elsewhere"
CODES = (
    SCHEMA_DRIFT,
    VIEWS_DIFFER,
    CLOCK_SKEW,
    STUCK_RUNS,
    QUEUE_WITHOUT_WORKER,
    WORKFLOW_NOT_LOADABLE,
    DAGSTER_ELSEWHERE,
)


class Finding(NamedTuple):
    """One thing that is wrong, and what to do about it."""

    code: str
    detail: str
    remedy: str


class CheckUnavailable(Exception):
    """A check cannot be made, for this reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorContext:
    """What the checks read, and the limits that they judge by."""

    storage: "PostgresStorage"
    squid: "Squid"
    workers: "list[WorkerRow]"  # alive, and taking work
    registry: "Registry | None"  # None: no module was named
    not_loaded: str | None  # why the modules that were named cannot be used
    now: datetime  # by the database
    stuck_after: timedelta
    max_skew: timedelta
    dagster: str | None  # the address of a webserver
    seconds: Callable[[], float]  # this machine's clock, since 1970
    progress: Callable[[int], None]


Check = Callable[[DoctorContext], list[Finding]]


def some(names: list[str], most: int = 5) -> str:
    """Return the first few names, and how many there are beyond."""
    beyond = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + beyond
