"""Plan states compared: the fold of a run's own thread, fact by fact, and what the whole run says at the end."""

from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection

_SAME = (
    "run_id",
    "start",
    "planned",
    "open",
    "launches",
    "undo_failures",
    "failure",
    "manual_state",
    "done",
    "planned_visits",
    "applied_visits",
    "terminal_status",
    "quarantined",
    "readable",
    "status",
)


def assert_same_state(folded: PlanState, run: RunProjection) -> None:
    """Raise unless the fold, which is plain, equals what the whole run says."""
    whole = PlanState.of(run)
    for name in _SAME:
        assert getattr(folded, name) == getattr(whole, name), name
    assert _steps(folded) == _steps(whole)
    assert list(folded.to_undo.items()) == list(whole.to_undo.items()), "in the order in which steps were done"
    for key, planned in run.planned.items():
        assert planned.runnable is not None
        visit, step = planned.runnable.idempotency_key, planned.runnable.step
        assert folded.is_closed(key, visit, step) == whole.is_closed(key, visit, step), key


def _steps(state: PlanState) -> dict[str, tuple[object, ...]]:
    # A whole run holds neither the order of decisions and visits, nor what it waited for when it ended.
    return {
        name: (0 if state.terminal else step.visits, step.applied, step.output, step.has_output)
        for name, step in state.steps.items()
        if step.applied or not state.terminal
    }
