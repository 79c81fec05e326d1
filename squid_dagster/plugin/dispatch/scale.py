"""How many drain runs to launch, from due attempts and live workers. Pure.

Every drain run that the sensor launches serves all of its queues, taking turns between them: a small queue does
not wait for a full one, however few runs there are.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import NamedTuple

from squid_dagster.journal.contract.queries import BacklogRow
from squid_dagster.journal.contract.worker_liveness import WorkerRow

PATIENCE = timedelta(seconds=10)  # an attempt due for longer, while all its workers are busy, needs another run


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The options of a sensor."""

    queues: tuple[str, ...]
    definitions: frozenset[str]
    run_kind: str  # of the liveness rows of drain runs
    location: str
    code_version: str
    max_in_flight: int
    attempts_per_run: int


class Launch(NamedTuple):
    """How many runs to launch, and the reason."""

    runs: int
    reason: str


def launches(
    scale: Scale, backlog: Sequence[BacklogRow], workers: Collection[WorkerRow], launching: int, now: datetime
) -> Launch:
    """Compute how many runs to launch; `launching` runs are launched and have no liveness row yet.

    A queue without a worker gets a run at once; beyond that, there is one for every `attempts_per_run` that are due,
    and one more when all workers are busy and an attempt has been due for ten seconds. Plain workers count like runs.
    """
    serving = [row for row in workers if any(_serves(row, due.queue, scale) for due in backlog)]
    alive = [row for row in workers if _is_drain(row, scale)]
    room = scale.max_in_flight - len(alive) - launching
    total = sum(due.claimable for due in backlog)
    unserved = [due.queue for due in backlog if not any(_serves(row, due.queue, scale) for row in serving)]
    wanted = ceil(total / scale.attempts_per_run) - len(serving) - launching
    if launching == 0:
        late = any(now - due.oldest_due_at > PATIENCE for due in backlog)
        if unserved or (late and all(row.running >= row.capacity for row in serving)):
            wanted = max(wanted, 1)
    reason = f"{total} due on {', '.join(due.queue for due in backlog)}; {len(alive)} drain runs alive"
    reason += f", {len(serving) - sum(row in alive for row in serving)} other workers, {launching} runs being launched"
    if wanted <= 0:
        return Launch(0, f"{reason}: enough")
    if room <= 0:
        return Launch(0, f"{reason}: max_in_flight is {scale.max_in_flight}")
    return Launch(min(wanted, room), reason)


def _serves(row: WorkerRow, queue: str, scale: Scale) -> bool:
    has_all = row.definitions is None or scale.definitions.issubset(row.definitions)
    return row.capacity > 0 and queue in row.queues and has_all and not _is_old(row, scale)


def _is_drain(row: WorkerRow, scale: Scale) -> bool:
    """Return whether a row is a drain run of the sensor's; one for fewer queues, launched by hand, is not."""
    return row.kind == scale.run_kind and all(_serves(row, queue, scale) for queue in scale.queues)


def _is_old(row: WorkerRow, scale: Scale) -> bool:
    """Return whether a row is a drain run of this location with other code: it is about to stop."""
    mine = row.kind == scale.run_kind and row.details.get("location") == scale.location
    return mine and row.details.get("code_version") != scale.code_version
