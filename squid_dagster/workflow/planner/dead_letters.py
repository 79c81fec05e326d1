"""Dead letters: from which of them a run goes on by itself, and which wait for a person. Pure."""

from squid_dagster.protocol.folds.visits import COMPENSATE
from squid_dagster.workflow.definition import Definition


def goes_on_from_dead_letter(definition: Definition, step: str, *, failing: bool) -> bool:
    """Return whether something follows from a dead letter of this step: an error route, or the undoing of its run."""
    if step.startswith(COMPENSATE):
        return False
    return failing or bool(definition.routes.get((step, "error")))


def waiting_steps(definition: Definition) -> frozenset[str]:
    """Return the steps whose dead letters wait for a person whatever their run has been through.

    A run that is failing goes on from every dead letter. It stays open only to undo what it has done: without any
    compensation, a run that fails has ended.
    """
    undone = [name for name, step in definition.steps.items() if step.compensation is not None]
    names = [*definition.steps, *(COMPENSATE + name for name in undone)]
    return frozenset(name for name in names if not goes_on_from_dead_letter(definition, name, failing=bool(undone)))
