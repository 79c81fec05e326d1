"""The plan state that is assumed of a run with one open visit, from what is known when its step is claimed. Pure.

In a chain, the step's definition, its input and its result determine what comes next, whatever the run did before: its
thread need not be read. A plan that looks at more raises `StateMissing`. The store checks, when it writes, that no
other visit of the run is open.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pydantic import JsonValue

from squid_dagster.protocol.facts import Runnable
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.folds.plan_state import PlanState, StepState
from squid_dagster.protocol.folds.unknown_state import StateMissing
from squid_dagster.protocol.threads import idempotency_key
from squid_dagster.workflow.definition import Definition

_MOST_STEPS = 50  # done before; for a longer chain, the state is read
_DONE = StepState(visits=1, applied=1)


class _TakenInput(Mapping[str, JsonValue]):
    """The values that a step took, which the run still has. Any other name raises `StateMissing`."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, JsonValue]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> JsonValue:
        if name not in self._values:
            raise StateMissing(f"{name!r} was not taken by the step before")
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return self[name] is not None or True  # type: ignore[index]  # a text; raises if it is not known

    def __iter__(self) -> Iterator[str]:
        raise StateMissing("not all values are known")

    def __len__(self) -> int:
        raise StateMissing("not all values are known")


class _AssumedStart(NamedTuple):
    """The fields of a `RunStarted` that the planner reads."""

    workflow: str | None
    input: Mapping[str, JsonValue]
    queue: str
    priority: int
    definition_version: str | None
    definition_fingerprint: str | None


def assumed_state(definition: Definition, attempt: Attempt) -> PlanState:
    """Return the state of the attempt's run, as far as its one open visit determines it. Raises `StateMissing`."""
    step, run_id = attempt.step, attempt.run_id
    done = definition.narrow.get(step)
    if (
        done is None
        or len(done) > _MOST_STEPS
        or definition.steps[step].priority is not None
        or attempt.input is None
        or attempt.idempotency_key != idempotency_key(run_id, step, 1)
    ):
        raise StateMissing(f"what follows from {attempt.runnable_key!r} depends on what its run did before")
    start = _AssumedStart(
        attempt.workflow,
        _TakenInput(attempt.input),
        attempt.queue,
        attempt.priority,
        attempt.definition_version,
        attempt.definition_fingerprint,
    )
    runnable = Runnable.model_construct(
        run_id=run_id,
        queue=attempt.queue,
        priority=attempt.priority,
        runnable_key=attempt.runnable_key,
        idempotency_key=attempt.idempotency_key,
        attempt_number=attempt.attempt_number,
        step=step,
        input=attempt.input,
        visible_at=attempt.visible_at,
    )
    return PlanState(
        run_id=run_id,
        start=start,  # type: ignore[arg-type]  # it has what the planner asks for
        steps={**dict.fromkeys(done, _DONE), step: StepState(visits=1)},
        planned={attempt.runnable_key: runnable},
        open={attempt.idempotency_key: attempt.attempt_number},
        done=len(done),
        planned_visits=1,
        assumed=True,
    )
