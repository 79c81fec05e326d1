"""The values of a run at one revision: its payload, and the outputs of its steps by their names. Pure."""

from collections import ChainMap
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.workflow.definition import Definition


class Outputs(Mapping[str, JsonValue]):
    """The latest outputs of steps by their names, looked up one by one."""

    __slots__ = ("_definition", "_state")

    def __init__(self, definition: Definition, state: PlanState) -> None:
        """Set the definition and the run's state."""
        self._definition, self._state = definition, state

    def __getitem__(self, name: str) -> JsonValue:
        """Return the latest output of that name. Raises `KeyError` while there is none."""
        step = self._state.steps.get(self._definition.producers[name])
        if step is None or not step.has_output:
            raise KeyError(name)
        return step.output

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of outputs that exist."""
        return (name for name in self._definition.producers if name in self)

    def __len__(self) -> int:
        """Count the outputs that exist."""
        return sum(1 for _ in self)


def outputs_of(definition: Definition, run: RunProjection) -> dict[str, JsonValue]:
    """Return all outputs of a run whose whole thread was folded."""
    return dict(Outputs(definition, PlanState.of(run)))


def known_values(
    definition: Definition, state: PlanState, new: Mapping[str, JsonValue] | None = None
) -> Mapping[str, JsonValue]:
    """Return outputs over payload by name, and `new` over both."""
    return ChainMap(dict(new or {}), Outputs(definition, state), payload_of(state))  # type: ignore[arg-type]  # read only


def payload_of(run: PlanState | RunProjection) -> JsonObject:
    """Return the payload that the run was started with."""
    return run.start.input if run.start is not None else {}


def state_of(run: PlanState | RunProjection) -> PlanState:
    """Return a state that may be changed: the argument, or one made of a run whose whole thread was folded."""
    return run if isinstance(run, PlanState) else PlanState.of(run)
