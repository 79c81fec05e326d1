"""What should have followed from the facts of a run, and is on no record: a crash, or a definition, was in between.

Pure. Recovery writes these facts, `squid doctor` counts the runs that lack some, explanations name them.
"""

from dataclasses import dataclass

from squid_dagster.protocol.facts import ChildRunStarted, Runnable
from squid_dagster.protocol.folds.attempt import Attempt, AttemptStatus
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run_unit import RunUnit, planned_but_unscheduled
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.planner.dead_letters import goes_on_from_dead_letter
from squid_dagster.workflow.planner.schedule import unprogressed


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFacts:
    """What a run lacks. Of attempts: those with an outcome on record from which nothing follows yet, oldest first.

    `dead_letters` wait for a person, as far as the definition is known; nothing is missing there. `links` are the child
    runs that the run has linked: one without a thread of its own has never started, which only a storage knows.
    """

    fence: bool = False  # the run has ended, and its queue still gives claims
    queue: bool = False  # the run has started, and no queue knows it
    schedules: tuple[Runnable, ...] = ()  # planned, and not on the queue
    settled: tuple[Attempt, ...] = ()  # all of the four kinds below
    results: tuple[Attempt, ...] = ()  # completed, and not applied
    failures: tuple[Attempt, ...] = ()  # failed for good, or a dead letter that the run goes on from
    retries: tuple[Attempt, ...] = ()  # failed, with a retry on the queue that the run has not planned
    dead_letters: tuple[Attempt, ...] = ()
    links: tuple[ChildRunStarted, ...] = ()


def missing_facts(unit: RunUnit, definition: Definition | None) -> MissingFacts:
    """Return what a run lacks; nothing but the fence once it has ended, and nothing while it is quarantined."""
    run, dispatch = unit.run, unit.dispatch
    if run.stopped:
        return MissingFacts(fence=run.terminal and dispatch.unfenced)
    settled = unprogressed(run, dispatch.attempts)
    failing = PlanState.of(run).failure is not None
    failed: list[Attempt] = []
    retried: list[Attempt] = []
    left: list[Attempt] = []
    waiting: list[Attempt] = []
    for attempt in settled:
        if attempt.status is AttemptStatus.FAILED:
            retry = f"{attempt.idempotency_key}:{attempt.attempt_number + 1}"
            (retried if retry in dispatch.attempts else failed).append(attempt)
        elif attempt.status is AttemptStatus.DEAD_LETTERED:
            goes_on = definition is not None and goes_on_from_dead_letter(definition, attempt.step, failing=failing)
            (left if goes_on else waiting).append(attempt)
    return MissingFacts(
        queue=run.start is not None and dispatch.queue is None,
        schedules=tuple(planned_but_unscheduled(run, dispatch)),
        settled=tuple(settled),
        results=tuple(attempt for attempt in settled if attempt.status is AttemptStatus.COMPLETED),
        failures=(*failed, *left),
        retries=tuple(retried),
        dead_letters=tuple(waiting),
        links=tuple(child.fact for child in run.children.values() if child.fact is not None),
    )
