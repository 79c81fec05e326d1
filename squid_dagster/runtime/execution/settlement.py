"""`settle`: record outcomes of claims, many in one commit, with everything that follows from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pydantic import JsonValue

from squid_dagster.journal import quarantine
from squid_dagster.journal.contract.dispatch_store import (
    Answer,
    Deferred,
    Failed,
    Interrupted,
    PlanRequest,
    Settlement,
)
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import InvalidFact, SquidError, StorageRefused
from squid_dagster.protocol.facts import AttemptScheduled, Fact
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.folds.unknown_state import UnknownState
from squid_dagster.runtime.execution.step_execution import error_map
from squid_dagster.runtime.runtime import Runtime, SuccessKind

logger = redacting_logger(__name__)


@dataclass(slots=True)
class Settled:
    """The answers in the order of the settlements, and the delays after which work that follows is due."""

    answers: list[Answer]
    delays: list[timedelta] = field(default_factory=list)


@dataclass(slots=True)
class _Planner:
    """The runtime's planner, which records what it has scheduled."""

    runtime: Runtime
    queues: set[str] = field(default_factory=set)
    delays: list[timedelta] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)

    def __call__(self, request: PlanRequest) -> Sequence[Fact]:
        if not isinstance(request.run, UnknownState) and not request.run.readable:
            self.unreadable.add(request.run_id)
        facts = self.runtime.plan(request)
        for fact in facts:
            if isinstance(fact, AttemptScheduled):
                self.queues.add(fact.queue)
                self.delays.append(_from_now(fact.visible_at, request.now))
        return facts

    def kind_of(self, attempt: Attempt, result: JsonValue) -> SuccessKind | None:
        """Return the kind of a success, as `Runtime.kind_of`."""
        return self.runtime.kind_of(attempt, result)

    def plan_kind(self, kind: SuccessKind, request: PlanRequest) -> Sequence[Fact]:
        """Plan what follows from a success of that kind, as `Runtime.plan_kind`."""
        return self.runtime.plan_kind(kind, request)

    def note_scheduled(self, queue: str) -> None:
        """Record an attempt that a template has scheduled: it is due at once."""
        self.queues.add(queue)
        self.delays.append(timedelta(0))


def _from_now(at: datetime, now: datetime) -> timedelta:
    return max(at - now, timedelta(0))


def settle(runtime: Runtime, settlements: Sequence[Settlement]) -> Settled:
    """Record outcomes and wake workers for what follows. The answer to a refused member has its error.

    An outcome that cannot be written (a text that Postgres cannot hold) is recorded as a failure that says why; one
    that can is recorded as it is, even if nothing can follow. A run with an unreadable entry is quarantined: its
    outcome is recorded, and nothing follows from it.

    Raises:
        StorageUnavailable: the database cannot be reached; repeating is safe.
    """
    planner = _Planner(runtime)
    answers = runtime.dispatch.settle(settlements, planner)
    refused = [i for i, answer in enumerate(answers) if isinstance(answer.error, InvalidFact | StorageRefused)]
    if refused:
        again = [Settlement(settlements[i].ref, unwritable(answers[i].error)) for i in refused]
        for i, answer in zip(refused, runtime.dispatch.settle(again, planner), strict=True):
            answers[i] = answer
    for settlement in settlements:
        outcome = settlement.outcome
        if isinstance(outcome, Deferred | Interrupted):
            planner.delays.append(outcome.after)
        elif isinstance(outcome, Failed) and outcome.retry is not None:
            planner.delays.append(outcome.retry.after)
    for run_id in planner.unreadable:
        _quarantine(runtime, run_id)
    if planner.queues:
        runtime.notifier.notify(planner.queues)
    return Settled(answers, planner.delays)


def _quarantine(runtime: Runtime, run_id: str) -> None:
    """Quarantine a run; if that fails, recovery does it, and the answers of other runs are returned all the same."""
    try:
        quarantine(runtime.storage, runtime.storage.read_run(run_id))
    except SquidError as error:
        logger.warning("run %s could not be quarantined now, recovery will try again: %s", run_id, error)


def unwritable(error: Exception | None) -> Failed:
    """Return the failure of a step whose outcome cannot be written."""
    return Failed(error_map("unwritable_outcome", f"the step's outcome cannot be written down: {error}"))
