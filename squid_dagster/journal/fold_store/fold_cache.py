"""What this process has folded of a storage's threads: queues, the planner's states of runs, and the keys of runs.

A cache: threads only grow, so each fold is read once and then costs what was appended since. It is never trusted: a
writer names the revisions that it decided by, and the storage refuses the commit if a thread has moved on.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from threading import RLock
from typing import Generic, Protocol, TypeVar

from squid_dagster.journal.contract.command_target import SignalKey
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.fold_store.queue_index import QueueIndex
from squid_dagster.journal.plan_state.cache import KnownState, PlanStates
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import Conflict
from squid_dagster.protocol.facts import ChildRunStarted, RunSignalReceived
from squid_dagster.protocol.folds.dispatch import RunDispatch
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.threads import dispatch_thread, parse_thread, run_thread

_MAX_RUNS = 2_000  # whose keys of children and commands are cached


class ThreadFold(Protocol):
    """A fold of one thread, updated in place."""

    def add(self, entry: Entry) -> None:
        """Fold one entry, in place. Never raises."""


F = TypeVar("F", bound=ThreadFold)


class ThreadFolds(Generic[F]):
    """Folds by thread; beyond `most` of them, the least recently used one is dropped. Not safe between threads."""

    def __init__(self, storage: Storage, make: Callable[[], F], most: int) -> None:
        """Start empty; `make` returns the fold of an empty thread."""
        self._storage, self._make, self._most = storage, make, most
        self._known: OrderedDict[str, tuple[int, F]] = OrderedDict()

    def read(self, thread: str) -> tuple[int, F]:
        """Update the fold of a thread; return the thread's revision and the fold."""
        revision, fold = self._known.get(thread) or (0, self._make())
        entries = self._storage.read(thread, after=revision)
        self._known.pop(thread, None)  # a fold that is interrupted halfway is dropped
        for entry in entries:
            fold.add(entry)
            revision = entry.seq
        self._known[thread] = revision, fold
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return revision, fold

    def forget(self, thread: str) -> None:
        """Drop the fold of a thread, so that the next read starts from the beginning."""
        self._known.pop(thread, None)


class RunKeys:
    """A run's child keys, and where the first command of each idempotency key stands, without its content.

    Unreadable entries are left out.
    """

    def __init__(self) -> None:
        """Start with an empty thread."""
        self.children: set[str] = set()
        self.signals: dict[SignalKey, int] = {}  # sequence numbers

    def add(self, entry: Entry) -> None:
        """Fold one entry."""
        fact = entry.fact
        if isinstance(fact, ChildRunStarted):
            self.children.add(fact.child_key)
        elif isinstance(fact, RunSignalReceived) and fact.idempotency_key is not None:
            self.signals.setdefault(SignalKey(fact.signal_type, fact.idempotency_key), entry.seq)


class FoldCache:
    """The folds of one storage. Hold `lock` while a fold is updated and read, never during a commit."""

    def __init__(self, storage: Storage) -> None:
        """Bind to a storage; nothing is read yet."""
        self.storage = storage
        self.lock = RLock()
        self._queues = ThreadFolds(storage, QueueIndex, sys.maxsize)
        self._states = PlanStates()
        self._keys = ThreadFolds(storage, RunKeys, _MAX_RUNS)

    def queue(self, queue: str) -> tuple[int, QueueIndex]:
        """Update a queue's index; return the revision of its thread and the index."""
        return self._queues.read(dispatch_thread(queue))

    def keys(self, run_id: str) -> RunKeys:
        """Update and return the keys of a run's own thread."""
        return self._keys.read(run_thread(run_id))[1]

    def state(self, run_id: str) -> KnownState:
        """Update and return the planner's state of a run; it costs what was appended since the last time."""
        revision, state = self._states.take(run_id) or KnownState(0, PlanState())
        thread = run_thread(run_id)
        for entry in self.storage.read(thread, after=revision):
            state.add(entry)
            revision = entry.seq
        if not state.plain:
            state = PlanState.of(RunProjection.fold(self.storage.read(thread)))
        self._states.put(run_id, revision, state)
        return KnownState(revision, state)

    def run(self, index: QueueIndex, run_id: str) -> RunDispatch:
        """Return a run's part of the queue, read-only, and fenced if its own thread says that it has stopped."""
        part = index.run(run_id)
        if not part.fenced:
            state = self.state(run_id).state
            if state.stopped:
                index.stop(run_id, ended=state.terminal, quarantined=state.quarantined)
        return part

    def drop_ended(self, index: QueueIndex, run_ids: Iterable[str]) -> None:
        """Drop the states of runs that have just ended, and stop them in the index."""
        with self.lock:
            for run_id in run_ids:
                index.stop(run_id, ended=True, quarantined=False)
                self._states.take(run_id)

    def check_deletion(self, conflict: Conflict) -> None:
        """Drop the folds of a thread that is shorter than it was: it was deleted."""
        if conflict.actual < conflict.expected:
            with self.lock:
                self._queues.forget(conflict.thread)
                self._keys.forget(conflict.thread)
                self._states.take(parse_thread(conflict.thread).part)
