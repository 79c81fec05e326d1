"""Whether a run is held: its definition is not registered here, and no live worker announces it.

`status_of` decides the status of every run that is shown, in listings, snapshots, explanations and graphs.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from squid_dagster.protocol.folds.attempt import definition_key
from squid_dagster.workflow.registry import Registry

HELD = "held"
HOLDABLE = frozenset({"started", "running", "idle"})
"""The statuses that `held` replaces. An end, a quarantine and a pause are facts, and are shown before it."""


class Worker(Protocol):
    """A live worker by its liveness row: the queues that it serves, and the definitions that it has (None: any)."""

    @property
    def worker_id(self) -> str:
        """Its name."""

    @property
    def queues(self) -> Sequence[str]:
        """The queues that it serves."""

    @property
    def definitions(self) -> Sequence[str] | None:
        """The keys of the definitions that it executes; None when it takes anything."""

    @property
    def capacity(self) -> int:
        """How many attempts it works on at once."""

    @property
    def running(self) -> int:
        """How many it works on now."""


class Hold(NamedTuple):
    """Why a run is held: the definition that it was started with, and the one that is registered now, if any."""

    kind: str
    workflow: str
    persisted_version: str | None
    persisted_fingerprint: str
    current_version: str | None
    current_fingerprint: str | None


def executes(worker: Worker, definition: str) -> bool:
    """Return whether a worker has this definition."""
    return worker.definitions is None or definition in worker.definitions


def hold_of(
    workflow: str | None,
    version: str | None,
    fingerprint: str | None,
    registry: Registry | None,
    workers: Iterable[Worker] | None,
) -> Hold | None:
    """Return what holds an open run that was started with this definition; None when nothing does.

    - Without a registry, nothing is held: an unknown definition is not a missing one.
    - A registered definition, or a live worker that announces it, means that the run can go on.
    - Otherwise the run is held: by another definition of its workflow that is registered here ("definition_changed"),
      or because none of it is ("definition_missing"). The latter takes the live workers to be known: a workflow that is
      unknown here may be known elsewhere.
    """
    if workflow is None or fingerprint is None or registry is None or registry.find(workflow, fingerprint) is not None:
        return None
    key = definition_key(workflow, fingerprint)
    if workers is not None and any(executes(worker, key) for worker in workers):
        return None
    current = registry.current(workflow)
    if current is None:
        return None if workers is None else Hold("definition_missing", workflow, version, fingerprint, None, None)
    return Hold("definition_changed", workflow, version, fingerprint, current.version, current.fingerprint)


def status_of(status: str, hold: Hold | None) -> str:
    """Return the status that a run is shown with, from the one of its facts and what holds it."""
    return HELD if hold is not None and status in HOLDABLE else status
