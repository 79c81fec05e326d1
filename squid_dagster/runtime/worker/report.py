"""The report of a worker, and what it tells about each settled attempt."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from squid_dagster.journal.contract.dispatch_store import Outcome
from squid_dagster.protocol.errors import SquidError
from squid_dagster.protocol.folds.attempt import Attempt


class SettledAttempt(NamedTuple):
    """One attempt that a worker has settled."""

    attempt: Attempt  # as it was claimed
    outcome: Outcome  # of a transactional step that succeeded: Completed(None)
    refused: SquidError | None  # why the result was dropped: it came too late
    seconds: float  # from the call of the step to its return


@dataclass(slots=True)
class WorkerReport:
    """The counts of a worker. `refused` are results that came too late, `released` attempts that were not finished.

    `abandoned` are steps that were cancelled and did not end; `gave_up` is why it stopped by itself, if it did.
    """

    worker_id: str
    claimed: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    deferred: int = 0
    released: int = 0
    refused: int = 0
    abandoned: int = 0
    commits: int = 0
    seconds: float = 0.0
    steps: Counter[str] = field(default_factory=Counter)
    gave_up: str | None = None

    def __str__(self) -> str:
        """Return the counts in one line."""
        counts = ("claimed", "completed", "failed", "retried", "deferred", "released", "refused", "abandoned")
        text = ", ".join(f"{name} {getattr(self, name)}" for name in counts if getattr(self, name) or name == "claimed")
        return f"worker {self.worker_id}: {text}, in {self.seconds:.1f} s and {self.commits} commits"
