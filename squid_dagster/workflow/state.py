"""What a run knows at a moment: its payload, the outputs of its steps, and which visits are where. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import JsonValue

from squid_dagster.protocol.anomalies import Reason
from squid_dagster.protocol.facts import Runnable, RunnableApplied
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.run import RunProjection
from squid_dagster.workflow.declared import FAIL
from squid_dagster.workflow.definition import Definition

COMPENSATE = "compensate:"  # a step's name cannot hold ':', so that no step is taken for a compensation


class Visit(NamedTuple):
    """One visit of a step whose outcome is part of the run."""

    runnable: Runnable
    fact: RunnableApplied

    @property
    def succeeded(self) -> bool:
        """Tell whether the step succeeded, whatever followed from that."""
        return (self.fact.transition or {}).get("on") != "error"


def is_unreadable(run: RunProjection) -> bool:
    """Tell whether an entry of the run's own thread cannot be read: nothing is to be decided without it."""
    return any(found.reason is Reason.MALFORMED_ENTRY for found in run.anomalies)


def visits(run: RunProjection) -> Iterator[Visit]:
    """Give all applied visits, in the order in which they were applied."""
    for key, applied in run.applied.items():
        planned = run.planned.get(key)
        if planned is not None and planned.runnable is not None and applied.fact is not None:
            yield Visit(planned.runnable, applied.fact)


def outputs_of(definition: Definition, run: RunProjection) -> dict[str, JsonValue]:
    """Give the outputs of finished steps by their names; of a step that was visited again, the latest one."""
    found: dict[str, JsonValue] = {}
    for visit in visits(run):
        step = definition.steps.get(visit.runnable.step)
        if step is not None and step.output is not None and visit.succeeded:
            found[step.output] = visit.fact.result
    for resolution in run.resolutions:
        step = definition.steps.get(resolution.step)
        if step is not None and step.output is not None:
            found[step.output] = resolution.result
    return found


def payload_of(run: RunProjection) -> JsonObject:
    """Give the payload that the run was started with."""
    return run.start.input if run.start is not None else {}


def visit_count(run: RunProjection, step: str) -> int:
    """Count how often a step was entered so far."""
    planned = {
        each.runnable.idempotency_key
        for each in run.planned.values()
        if each.runnable is not None and each.runnable.step == step
    }
    waiting = run.manual_state is not None and run.manual_state.step == step
    return len(planned) + sum(each.step == step for each in run.resolutions) + waiting


def open_visits(run: RunProjection) -> set[str]:
    """Give the idempotency keys of visits that were planned and have no outcome yet."""
    keys: dict[str, bool] = {}
    for key, each in run.planned.items():
        if each.runnable is not None:
            visit = each.runnable.idempotency_key
            keys[visit] = keys.get(visit, False) or key in run.applied
    return {visit for visit, done in keys.items() if not done}


def failure_of(run: RunProjection) -> JsonObject | None:
    """Give the error that the run is going to fail with, once everything is undone; None while it is not failing."""
    transitions = [visit.fact.transition for visit in visits(run) if not visit.runnable.step.startswith(COMPENSATE)]
    for transition in [*transitions, *(each.transition for each in run.resolutions)]:
        if transition is not None and transition.get("to") == FAIL:
            error = transition.get("error")
            return error if isinstance(error, dict) else {}
    return None
