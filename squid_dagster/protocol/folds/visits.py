"""Visits of steps: how their keys are read, and the applied ones of a folded run. Owns no state."""

from collections.abc import Iterator
from typing import NamedTuple

from squid_dagster.protocol.facts import Runnable, RunnableApplied
from squid_dagster.protocol.folds.run import RunProjection

COMPENSATE = "compensate:"  # a step's name cannot hold ':', so that no step is taken for a compensation


class Visit(NamedTuple):
    """One visit of a step whose outcome is part of the run."""

    runnable: Runnable
    fact: RunnableApplied

    @property
    def succeeded(self) -> bool:
        """Whether the step succeeded, whatever followed from that."""
        return succeeded(self.fact)


def succeeded(applied: RunnableApplied) -> bool:
    """Return whether an applied outcome is a success, whatever followed from it."""
    return (applied.transition or {}).get("on") != "error"


def visits(run: RunProjection) -> Iterator[Visit]:
    """Yield all applied visits, in the order in which they were applied."""
    for key, applied in run.applied.items():
        planned = run.planned.get(key)
        if planned is not None and planned.runnable is not None and applied.fact is not None:
            yield Visit(planned.runnable, applied.fact)


def visit_number(visit_key: str) -> int:
    """Return the number of a visit by its idempotency key; 0 for a key of another form."""
    text = visit_key.rpartition(":")[2]
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0


def visit_of(run_id: str, key: str) -> tuple[str, str]:
    """Return the visit that an attempt belongs to by its runnable key, and its step."""
    visit = key.rpartition(":")[0]
    return visit, visit.removeprefix(f"{run_id}:").rpartition(":")[0]


def undone_visit(runnable: Runnable) -> tuple[str, int] | None:
    """Return the step and the visit that a runnable undoes; None if it is no compensation."""
    if not runnable.step.startswith(COMPENSATE):
        return None
    return runnable.step.removeprefix(COMPENSATE), visit_number(runnable.idempotency_key)
