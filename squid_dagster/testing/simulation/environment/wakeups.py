"""Wakeups between simulated processes: each may be late, lost or doubled."""

from collections.abc import Collection
from dataclasses import dataclass, field

from squid_dagster.journal.contract.notifier import check_queues, known_queues
from squid_dagster.testing.simulation.environment.machine import WaiterQueue
from squid_dagster.testing.simulation.environment.storage import SharedState
from squid_dagster.testing.simulation.faults import Kind, Place

_LATER = 0.05  # seconds after which a doubled wakeup comes again


@dataclass(slots=True, eq=False)
class SimulatedListener:
    """A `Listener` of one process."""

    hub: "Wakeups"
    queues: frozenset[str]
    _rung: bool = False
    _closed: bool = False
    _waiters: WaiterQueue = field(default_factory=WaiterQueue)

    def wait(self, timeout: float) -> bool:
        """Wait for a wakeup; return whether there was one."""
        if not self._rung and not self._closed:
            self._waiters.wait(max(0.0, timeout))
        rung, self._rung = self._rung and not self._closed, False
        return rung

    def wake(self) -> None:
        """Wake the waiting threads."""
        self._rung = True
        self._waiters.wake()

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        self.hub.listeners.pop(id(self), None)
        self._waiters.wake()


@dataclass(slots=True, eq=False)
class Wakeups:
    """A `Notifier` that all processes share."""

    shared: SharedState
    listeners: dict[int, SimulatedListener] = field(default_factory=dict)

    def notify(self, queues: Collection[str]) -> None:
        """Wake the listeners of these queues, unless the wakeup is lost."""
        thread = self.shared.machine.current()
        known = known_queues(queues)
        if thread is not None:
            thread.points += 1
            fault = self.shared.plan.at_wakeup(Place(thread.name, thread.points))
            if fault is not None and fault.kind is Kind.WAKEUP_LOST:
                return
            if fault is not None and fault.kind is Kind.WAKEUP_DOUBLED:
                thread.process.spawn(lambda: self._again(known), "wakeup")
        self._wake(known)

    def _again(self, queues: frozenset[str]) -> None:
        self.shared.machine.wait(_LATER)
        self._wake(queues)

    def _wake(self, queues: frozenset[str]) -> None:
        for listener in list(self.listeners.values()):
            if listener.queues & queues:
                listener.wake()

    def listen(self, queues: Collection[str]) -> SimulatedListener:
        """Return a new listener for these queues."""
        listener = SimulatedListener(self, check_queues(queues))
        self.listeners[id(listener)] = listener
        return listener

    def close(self) -> None:
        """Close nothing: wakeups are sent at once."""
