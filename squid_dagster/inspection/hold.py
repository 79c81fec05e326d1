"""Who could execute a run: its definition here, the workers that announce it elsewhere, and what holds it otherwise."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from squid_dagster.protocol.folds.attempt import definition_key
from squid_dagster.workflow.registry import Registry


class Worker(Protocol):
    """What a live worker says of itself: which queues it serves, and which definitions it has (None: any)."""

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
    """Tell whether a worker has this definition."""
    return worker.definitions is None or definition in worker.definitions


def hold_of(
    workflow: str | None,
    version: str | None,
    fingerprint: str | None,
    registry: Registry | None,
    workers: Iterable[Worker] | None,
) -> Hold | None:
    """Say what holds an open run that was started with this definition; None when nothing does, or nothing is known.

    It is held when another definition of its workflow is registered here and its own one is not ("definition_changed").
    A workflow that is unknown here may be known elsewhere: only where workers are given too does its absence count
    ("definition_missing"). A live worker that announces the definition always means that the run can go on.
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
