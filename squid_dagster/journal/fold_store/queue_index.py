"""The index of one queue, folded from its thread: the parts of its runs, and its open attempts in claim order.

Folded in place by the rules of `protocol/folds/dispatch.py`, entry by entry. Claims and settlements look attempts up by
key: the cost is the same beside ten attempts and ten thousand, be they siblings, earlier visits or other runs.
"""

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from heapq import merge
from typing import Any

from squid_dagster.protocol.entries import Entry, run_of
from squid_dagster.protocol.folds.attempt import Attempt, AttemptStatus, claim_order, definition_key
from squid_dagster.protocol.folds.dispatch import RunDispatch, apply_dispatch, apply_queue


class DueOrder:
    """Open attempts: by due time until they are due, and then by definition, in claim order."""

    def __init__(self) -> None:
        """Start empty."""
        self._open: dict[int, Attempt] = {}  # by position
        self._later: list[tuple[datetime, int]] = []
        self._lanes: dict[tuple[str, bool], list[tuple[int, datetime, int]]] = {}  # by definition, and whether claimed

    def put(self, attempt: Attempt) -> None:
        """Insert an attempt, or replace its earlier state; remove it if it is finished."""
        self.remove(attempt)
        if attempt.due_at is not None:
            self._open[attempt.position] = attempt
            insort(self._later, (attempt.due_at, attempt.position))

    def remove(self, attempt: Attempt) -> None:
        """Remove an attempt, whatever its state is now."""
        known = self._open.pop(attempt.position, None)
        if known is not None and not _removed(self._lanes.get(_lane(known), []), claim_order(known)):
            _removed(self._later, (known.due_at, known.position))

    def due(self, at: datetime, definitions: Collection[str] | None, claimed: Collection[bool]) -> Iterator[Attempt]:
        """Yield the attempts that are due at that time, in claim order; insert and remove none meanwhile."""
        end = bisect_right(self._later, (at, sys.maxsize))
        for _, position in self._later[:end]:
            attempt = self._open[position]
            insort(self._lanes.setdefault(_lane(attempt), []), claim_order(attempt))
        del self._later[:end]
        named = {definition for definition, _ in self._lanes} if definitions is None else frozenset(definitions)
        lanes = (self._lanes.get((definition, held), ()) for definition in named for held in claimed)
        for _, due_at, position in merge(*lanes):
            if due_at <= at:  # the clock may have been set back since the attempt came into its lane
                yield self._open[position]


def _lane(attempt: Attempt) -> tuple[str, bool]:
    definition = definition_key(attempt.workflow, attempt.definition_fingerprint)
    return definition, attempt.status is AttemptStatus.CLAIMED


def _removed(values: list[Any], value: object) -> bool:
    """Remove a value from a sorted list; return whether it was there."""
    place = bisect_left(values, value)
    if place == len(values) or values[place] != value:
        return False
    del values[place]
    return True


@dataclass(slots=True)
class _Run:
    """A run's part of the queue, and the keys of its attempts by visit."""

    dispatch: RunDispatch = field(default_factory=RunDispatch)
    visits: dict[str, list[str]] = field(default_factory=dict)


class QueueIndex:
    """The fold of one queue's thread. Not safe between threads."""

    def __init__(self) -> None:
        """Start with an empty queue."""
        self._runs: dict[str, _Run] = {}
        self._queues: dict[str, bool] = {}
        self._order = DueOrder()
        self._stopped: list[_Run] = []  # runs whose attempts are still to be removed from the order

    @property
    def paused(self) -> bool:
        """Whether the queue gives no claims."""
        return any(self._queues.values())

    def add(self, entry: Entry) -> None:
        """Fold one entry of the queue's thread, in place."""
        fact: Any = entry.fact
        run_id = run_of(fact)
        if run_id is None:
            apply_queue(self._queues, [], entry)
            return
        run = self._runs.setdefault(run_id, _Run())
        keys = (getattr(fact, "runnable_key", None), getattr(fact, "retry_runnable_key", None))
        attempts, was_stopped = run.dispatch.attempts, run.dispatch.stopped
        new_keys = [key for key in keys if key not in attempts]
        apply_dispatch(run.dispatch, entry)
        for key in new_keys:
            if key in attempts:
                run.visits.setdefault(attempts[key].idempotency_key, []).append(key)
        if run.dispatch.stopped:
            if not was_stopped:
                self._stopped.append(run)
            return
        for key in keys:
            if key in attempts:
                self._order.put(attempts[key])

    def run(self, run_id: str) -> RunDispatch:
        """Return a run's part itself, read-only; an empty one for a run that is not on the queue."""
        return self._runs.setdefault(run_id, _Run()).dispatch

    def part(self, run_id: str, keys: Iterable[str], visit: str | None = None) -> RunDispatch:
        """Return a copy of a run's part that holds these attempts, the others of their visits, and all of one visit."""
        run = self._runs.setdefault(run_id, _Run())
        whole = run.dispatch
        visits = dict.fromkeys(whole.attempts[key].idempotency_key for key in keys if key in whole.attempts)
        if visit is not None and visit in run.visits:
            visits[visit] = None
        return RunDispatch(
            whole.queue,
            whole.fenced,
            whole.quarantined,
            whole.unfenced,
            {key: whole.attempts[key] for visit_key in visits for key in run.visits[visit_key]},
            {visit_key: whole.tokens[visit_key] for visit_key in visits if visit_key in whole.tokens},
        )

    def stop(self, run_id: str, *, ended: bool, quarantined: bool) -> None:
        """Stop a run that has ended or is quarantined by its own thread: neither is ever undone."""
        run = self._runs.setdefault(run_id, _Run())
        known = run.dispatch.fenced, run.dispatch.quarantined
        run.dispatch.fenced |= ended
        run.dispatch.quarantined |= quarantined
        if known != (run.dispatch.fenced, run.dispatch.quarantined):
            self._stopped.append(run)

    def claimable(self, at: datetime, definitions: Collection[str] | None) -> Iterator[Attempt]:
        """Yield what a claim may take or dead-letter at that time, in claim order. A paused queue has none."""
        return iter(()) if self.paused else self._due(at, definitions, (False, True))

    def visible(self, at: datetime, definitions: Collection[str] | None) -> Iterator[Attempt]:
        """Yield unclaimed attempts whose time has come, in claim order, whether the queue is paused or not."""
        return self._due(at, definitions, (False,))

    def expired(self, at: datetime, definitions: Collection[str] | None) -> Iterator[Attempt]:
        """Yield claimed attempts whose lease has run out, in claim order."""
        return self._due(at, definitions, (True,))

    def _due(self, at: datetime, definitions: Collection[str] | None, claimed: Collection[bool]) -> Iterator[Attempt]:
        for run in self._stopped:
            for attempt in run.dispatch.attempts.values():
                self._order.remove(attempt)
            if run.dispatch.fenced:  # no writer can act on its attempts any more
                run.dispatch.attempts, run.dispatch.tokens, run.visits = {}, {}, {}
        self._stopped = []
        return self._order.due(at, definitions, claimed)
