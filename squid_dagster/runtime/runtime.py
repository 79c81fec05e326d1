"""`Runtime`: what every command, worker and recovery needs of this process. A value: the journal decides."""

import secrets
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import JsonValue

from squid_dagster.journal import Storage
from squid_dagster.journal.contract.command_target import CommandDecision, CommandTarget
from squid_dagster.journal.contract.dispatch_store import (
    DEFAULT_LEASE,
    ClaimRef,
    Decision,
    DispatchStore,
    Lineage,
    NewRun,
    PlanRequest,
)
from squid_dagster.journal.contract.notifier import CommitNotifier, Notifier
from squid_dagster.journal.contract.queries import JournalQueries
from squid_dagster.journal.contract.worker_liveness import WorkerLiveness
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.unknown_state import StateMissing, UnknownState
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.planner.assumed_state import assumed_state
from squid_dagster.workflow.planner.planner import plan_settled, taken_route
from squid_dagster.workflow.planner.schedule import DEFAULT_QUEUE
from squid_dagster.workflow.registry import Registry


def new_run_id() -> str:
    """Generate the id of a run that has no key: a UUID of version 7, which begins with the time.

    Ids that grow with time keep the newest runs together in every index.
    """
    bits = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return str(uuid.UUID(int=bits & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62))


def random_unit() -> float:
    """Draw a number from 0 up to 1, for jitter."""
    return secrets.randbelow(1 << 30) / (1 << 30)


@dataclass(frozen=True, slots=True, eq=False)
class _Identity:
    """A definition, compared by `is`: another one of the same fingerprint may retry or recover differently."""

    definition: Definition

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same object."""
        return isinstance(other, _Identity) and other.definition is self.definition

    def __hash__(self) -> int:
        """Return the id of the definition, which lives as long as this object."""
        return id(self.definition)


class SuccessKind(NamedTuple):
    """Successes of one step that take one route: what follows is the same but for ids, times and values."""

    identity: _Identity
    step: str
    route: int | None  # its place among those of the step; None if no route has a condition


def _plan_settled(definition: Definition, state: PlanState, request: PlanRequest) -> list[Fact]:
    return plan_settled(
        definition, state, request.settled, request.attempts, request.now, max_fact_bytes=request.max_fact_bytes
    )


@dataclass(frozen=True, slots=True)
class Runtime:
    """The journal with its query side, the definitions of this process, and its defaults."""

    storage: Storage
    dispatch: DispatchStore
    queries: JournalQueries
    liveness: WorkerLiveness
    notifier: Notifier
    registry: Registry
    resources: Mapping[str, object] = field(default_factory=dict)
    queue: str = DEFAULT_QUEUE
    lease: timedelta = DEFAULT_LEASE
    new_run_id: Callable[[], str] = new_run_id
    random_unit: Callable[[], float] = random_unit

    def now(self) -> datetime:
        """Return the journal's time."""
        return self.storage.now()

    def definition_of(self, run_id: str, run: RunProjection | PlanState) -> Definition:
        """Return the definition that a run was started with.

        Raises:
            IncompatibleDefinition: it is not registered here: the run is held until it is.
        """
        start = run.start
        return self.registry.require(
            run_id,
            start.workflow if start else None,
            start.definition_version if start else None,
            start.definition_fingerprint if start else None,
        )

    def plan(self, request: PlanRequest) -> list[Fact]:
        """Plan what follows from settled attempts of one run; the planner of every settlement.

        Nothing follows for a run with an unreadable entry.
        """
        state = self._assumed(request) if isinstance(request.run, UnknownState) else request.run
        if not state.readable:
            return []
        return _plan_settled(self.definition_of(request.run_id, state), state, request)

    def kind_of(self, attempt: Attempt, result: JsonValue) -> SuccessKind | None:
        """Return the kind of a success, from which the same facts follow but for values; None if it has no kind.

        Raises:
            StateMissing: a condition depends on earlier steps of the run.
        """
        definition = self.registry.find(attempt.workflow, attempt.definition_fingerprint, attempt.definition_version)
        if definition is None or attempt.step not in definition.narrow or not attempt.idempotency_key.endswith(":1"):
            return None
        route = None
        if any(candidate.when is not None for candidate in definition.routes.get((attempt.step, "ok"), ())):
            route = taken_route(definition, assumed_state(definition, attempt), attempt.step, result)
            if route is None:
                return None
        return SuccessKind(_Identity(definition), attempt.step, route)

    def plan_kind(self, kind: SuccessKind, request: PlanRequest) -> list[Fact]:
        """Plan what follows from a success of that kind, for any result."""
        definition = kind.identity.definition
        if kind.route is not None:
            definition = definition.taking(kind.step, kind.route)
        return _plan_settled(definition, self._assumed(request), request)

    def _assumed(self, request: PlanRequest) -> PlanState:
        """Return the plan state that can be assumed from one settled attempt. Raises `StateMissing`."""
        attempt = request.settled[0]
        definition = self.registry.find(attempt.workflow, attempt.definition_fingerprint, attempt.definition_version)
        if definition is None or len(request.settled) != 1:
            raise StateMissing(f"run {request.run_id!r} is planned by its state")
        return assumed_state(definition, attempt)

    @property
    def store_wakes(self) -> bool:
        """Whether the store itself wakes workers that listen to this notifier."""
        return isinstance(self.notifier, CommitNotifier) and self.notifier.covers(self.dispatch)

    def start_runs(self, runs: Sequence[NewRun], queues: Collection[str]) -> datetime:
        """Write new runs, as `DispatchStore.start_runs` does, and wake the workers of their queues."""
        at = self.dispatch.start_runs(runs)
        if not self.store_wakes:
            self.notifier.notify(queues)
        return at

    def decide(
        self,
        run_ids: Collection[str],
        decision: Decision,
        *,
        fence: ClaimRef | None = None,
        lineage: Lineage | None = None,
    ) -> list[Fact]:
        """Write what a decision makes of runs, as `DispatchStore.decide` does, and wake workers."""
        return self._wake_workers(self.dispatch.decide(run_ids, decision, fence=fence, lineage=lineage))

    def command(self, targets: Sequence[CommandTarget], decision: CommandDecision) -> list[Fact]:
        """Write what a command makes of runs, as `DispatchStore.command` does, and wake workers."""
        return self._wake_workers(self.dispatch.command(targets, decision))

    def _wake_workers(self, written: list[Fact]) -> list[Fact]:
        queues = {fact.queue for fact in written if fact.type == "attempt_scheduled"}
        if queues and not self.store_wakes:
            self.notifier.notify(queues)  # losing a wakeup costs latency, never work
        return written
