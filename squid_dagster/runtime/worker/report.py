"""What a worker tells when it ends."""

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
    refused: SquidError | None  # the result came too late, and was dropped
    seconds: float  # from the call of the step to its return


@dataclass(slots=True)
class WorkerReport:
    """What a worker did. `refused` are results that came too late, `released` attempts given back unfinished.

    `abandoned` are steps that were cancelled and did not end; `gave_up` says why it stopped by itself, if it did.
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
        """Say it in one line."""
        counts = ("claimed", "completed", "failed", "retried", "deferred", "released", "refused", "abandoned")
        told = ", ".join(f"{name} {getattr(self, name)}" for name in counts if getattr(self, name) or name == "claimed")
        return f"worker {self.worker_id}: {told}, in {self.seconds:.1f} s and {self.commits} commits"
