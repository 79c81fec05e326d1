"""`Case`: what every answer about a run is made from. Its facts, definition, queue and workers at one moment.

Pure. Of a moment in the past only the facts and the definition are known: which workers were alive then, which
definitions they had, and whether the queue was paused, is in no fact of the run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from squid_dagster.inspection.hold import Hold, Worker, hold_of, status_of
from squid_dagster.inspection.run_record import Record
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.facts import AttemptReleased
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.attempt import Attempt, AttemptStatus, claim_order
from squid_dagster.protocol.folds.launches import Launch, latest_launches
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.workflow.definition import Definition, StepDefinition
from squid_dagster.workflow.external_step import is_external
from squid_dagster.workflow.planner.missing_facts import MissingFacts, missing_facts
from squid_dagster.workflow.registry import Registry


class QueueState(NamedTuple):
    """Whether a queue gives claims; of a paused one its latest comment as a fact and since when, if they are known."""

    queue: str
    paused: bool
    fact: Entry | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One run at one moment. Attempts are sorted into what can be done about them; none once the run has stopped.

    `queue_state` and `workers` are None where they are not known, as of every moment in the past.
    """

    record: Record
    now: datetime
    definition: Definition | None
    hold: Hold | None
    queue_state: QueueState | None
    workers: tuple[Worker, ...] | None
    visible: tuple[Attempt, ...]
    external: tuple[Attempt, ...]  # due, and for another system to do: no worker can claim them
    scheduled: tuple[Attempt, ...]
    claimed: tuple[Attempt, ...]
    expired: tuple[Attempt, ...]
    missing: MissingFacts
    failure: JsonObject | None

    @property
    def run(self) -> RunProjection:
        """What the run's own thread says."""
        return self.record.unit.run

    @property
    def queue(self) -> str | None:
        """The queue that the run's work goes through."""
        start = self.run.start
        return self.record.unit.dispatch.queue or (start.queue if start is not None else None)

    @property
    def queue_paused(self) -> bool:
        """Whether the run's queue is known to give no claims."""
        state = self.queue_state
        return state is not None and state.paused and state.queue == self.queue

    @property
    def status(self) -> str:
        """The status that the run is shown with: that of its own thread, or `held`. The same as in a listing."""
        return status_of(self.run.status, self.hold)

    @property
    def past(self) -> bool:
        """Whether the moment is in the past."""
        return self.record.as_of is not None

    def deferral_of(self, attempt: Attempt) -> AttemptReleased | None:
        """Return the fact by which a step has put an attempt off, if that is why it is visible when it is."""
        entry = self.record.last("attempt_released", attempt.runnable_key)
        fact = entry.fact if entry is not None else None
        if attempt.owner_id is not None or not isinstance(fact, AttemptReleased) or fact.counted:
            return None
        return fact if fact.visible_at == attempt.visible_at else None

    def launch_of(self, attempt: Attempt) -> Launch | None:
        """Return the latest request for work elsewhere that an attempt waits for; None before the first."""
        return latest_launches(self.run.command_history).get(attempt.runnable_key)

    def step_of(self, attempt: Attempt) -> StepDefinition | None:
        """Return the definition of an attempt's step, where it is known."""
        return self.definition.steps.get(attempt.step) if self.definition is not None else None


def make_case(
    record: Record,
    now: datetime,
    *,
    registry: Registry | None = None,
    queue_state: QueueState | None = None,
    workers: Sequence[Worker] | None = None,
) -> Case:
    """Sort a run's attempts by what can be done about them, at the record's moment or `now`. Never raises.

    A run is held by what is registered and announced now: no run of the past is.
    """
    run, dispatch = record.unit.run, record.unit.dispatch
    if record.as_of is not None:
        now, queue_state, workers = record.as_of, None, None
    start = run.start
    definition = hold = None
    if start is not None and registry is not None:
        workflow, fingerprint = start.workflow, start.definition_fingerprint
        definition = registry.find(workflow, fingerprint, start.definition_version)
        if not run.stopped and record.as_of is None:
            hold = hold_of(workflow, start.definition_version, fingerprint, registry, workers)
    open_ = [] if run.stopped or dispatch.stopped else list(dispatch.open_attempts())
    held = [attempt for attempt in open_ if attempt.status is AttemptStatus.CLAIMED]
    free = [attempt for attempt in open_ if attempt.status is not AttemptStatus.CLAIMED]
    return Case(
        record=record,
        now=now,
        definition=definition,
        hold=hold,
        queue_state=queue_state,
        workers=None if workers is None else tuple(workers),
        visible=_in_order(attempt for attempt in free if attempt.visible_at <= now and not is_external(attempt)),
        external=_in_order(attempt for attempt in free if attempt.visible_at <= now and is_external(attempt)),
        scheduled=tuple(sorted((e for e in free if e.visible_at > now), key=lambda e: (e.visible_at, e.runnable_key))),
        claimed=_in_order(attempt for attempt in held if not attempt.expired(now)),
        expired=_in_order(attempt for attempt in held if attempt.expired(now)),
        missing=missing_facts(record.unit, definition),
        failure=PlanState.of(run).failure,
    )


def _in_order(attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    return tuple(sorted(attempts, key=claim_order))
