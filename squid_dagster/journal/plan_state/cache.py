"""A cache of the planner's states of runs, each with the revision up to which its thread is folded.

A planner's state is updated by the facts that came since, and is put back once the plan is written. Without it, a
process reads the run's checkpoint and what came since.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.threads import run_thread

_MOST_RUNS, _MOST_WEIGHT = 2_000, 64 << 20


class KnownState(NamedTuple):
    """A state, and the revision of the run's thread up to which it is folded."""

    revision: int
    state: PlanState


class PlanStates:
    """States by run id, bounded in number and in characters; the least recently used one is dropped. Thread-safe."""

    def __init__(self, most_runs: int = _MOST_RUNS, most_weight: int = _MOST_WEIGHT) -> None:
        """Start empty."""
        self._most_runs, self._most_weight, self._weight = most_runs, most_weight, 0
        self._lock = threading.Lock()
        self._known: OrderedDict[str, KnownState] = OrderedDict()

    def take(self, run_id: str) -> KnownState | None:
        """Remove and return the state of a run: a state has one owner at a time."""
        with self._lock:
            return self._remove(run_id)

    def put(self, run_id: str, revision: int, state: PlanState) -> None:
        """Store a state as of that revision, unless it is not `plain` or its run has ended."""
        state.saved, state.changes = None, []
        if not state.plain or state.terminal:
            return
        with self._lock:
            self._remove(run_id)
            self._known[run_id] = KnownState(revision, state)
            self._weight += state.weight
            while len(self._known) > self._most_runs or self._weight > self._most_weight:
                self._remove(next(iter(self._known)))

    def _remove(self, run_id: str) -> KnownState | None:
        known = self._known.pop(run_id, None)
        if known is not None:
            self._weight -= known.state.weight
        return known


def fold_planned(state: PlanState, facts_before: int, planned: Iterable[Fact], run_id: str) -> bool:
    """Fold the planned facts of the run, unless the planner did; return False if it folded only some of them."""
    thread = run_thread(run_id)
    run_facts = [fact for fact in planned if fact.thread == thread]
    folded = state.facts - facts_before
    if not folded:
        for fact in run_facts:
            state.add_fact(fact)
    return folded in (0, len(run_facts))
