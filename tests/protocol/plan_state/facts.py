"""Folds of a run's facts into the planner's state, compared with the whole run."""

from typing import Any

from squid_dagster.protocol import Fact
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.visits import COMPENSATE
from tests.facts import RUN, OnThread, entries, key, planned, runnable, signal
from tests.plan_states import assert_same_state

VISIT = f"{RUN}:charge:1"
OK: dict[str, Any] = {"transition": {"from": "charge", "on": "ok", "to": "ship"}}
ERROR: dict[str, Any] = {"transition": {"from": "charge", "on": "error", "to": "fail", "error": {"code": "no"}}}


def fold(*items: Fact | OnThread) -> PlanState:
    """Fold a run's thread, and compare it with the whole run wherever it is plain."""
    state, run = PlanState(), RunProjection()
    for entry in entries(items):
        state.add(entry)
        run = RunProjection.fold([entry], onto=run)
        if state.plain:
            assert_same_state(state, run)
    return state


def undo(visit: int = 1, **fields: Any) -> Fact:
    """Plan the compensation of a visit."""
    return planned(runnable(step=f"{COMPENSATE}charge", visit=visit, **fields))


def launch_of(kind: str, attempt: int = 1, **payload: Any) -> Fact:
    return signal(signal_type=kind, payload={"runnable_key": key(attempt=attempt), "launcher": "l", **payload})
