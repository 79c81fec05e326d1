"""Planner's states of runs, as this process knows them, each with the revision up to which its thread is folded.

A cache: a planner's state is brought up to date by the facts that came since, and is handed back once the plan is
written. Losing one costs a read of the run's thread.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.plan_state import PlanState
from squid_dagster.protocol.threads import run_thread

_MOST_RUNS = 2_000


class KnownState(NamedTuple):
    """A state, and the revision of the run's thread that it stands for."""

    revision: int
    state: PlanState


class PlanStates:
    """States by run id; the least recently used ones go first. Safe between threads."""

    def __init__(self, most_runs: int = _MOST_RUNS) -> None:
        """Begin without any."""
        self._most_runs = most_runs
        self._lock = threading.Lock()
        self._known: OrderedDict[str, KnownState] = OrderedDict()

    def take(self, run_id: str) -> KnownState | None:
        """Remove and return what is known of a run: a state has one owner at a time."""
        with self._lock:
            return self._known.pop(run_id, None)

    def put(self, run_id: str, revision: int, state: PlanState) -> None:
        """Keep a state that stands for that revision, unless it is of no more use."""
        state.saved, state.changes = None, []
        if not state.plain or state.terminal:
            return
        with self._lock:
            self._known[run_id] = KnownState(revision, state)
            self._known.move_to_end(run_id)
            while len(self._known) > self._most_runs:
                self._known.popitem(last=False)


def fold_planned(state: PlanState, facts_before: int, planned: Iterable[Fact], run_id: str) -> bool:
    """Fold what was planned about the run, unless the planner did; return False if it folded a part of it."""
    thread = run_thread(run_id)
    mine = [fact for fact in planned if fact.thread == thread]
    folded = state.facts - facts_before
    if not folded:
        for fact in mine:
            state.add_fact(fact)
    return folded in (0, len(mine))
