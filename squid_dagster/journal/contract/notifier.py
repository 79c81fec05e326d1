"""Wakeups: hints that a queue may have work, so that workers need not poll often.

Losing one costs latency, never work.
"""

import threading
import time
from collections.abc import Collection
from typing import Protocol, runtime_checkable
from weakref import WeakSet

from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.per_storage import shared
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.threads import check_part, is_part

logger = redacting_logger(__name__)

_LISTEN_AGAIN_SECONDS = 5.0  # between two tries to listen, if the notifier fails


class Listener(Protocol):
    """A listener for wakeups of some queues. Close it when it is no longer needed."""

    def wait(self, timeout: float) -> bool:
        """Wait for a wakeup, at most `timeout` seconds; return whether there may be work.

        Many wakeups since the last wait count as one. True without any work is possible, for example after a
        reconnect: the caller finds nothing, and waits again. A closed listener returns False at once.
        """

    def wake(self) -> None:
        """Wake the waiting thread, or the next one that waits. For another thread of the same process."""

    def close(self) -> None:
        """Stop listening and wake the waiting thread. May be called more than once."""


class Notifier(Protocol):
    """A sender of wakeups to listeners in this process and in all others that share the storage.

    A host may pass its own one to `Squid(notifier=...)`, for example on its message broker. Workers that listen there
    are woken by it; without any wakeup, they poll.
    """

    def notify(self, queues: Collection[str]) -> None:
        """Send a wakeup for these queues, after the commit of their work. Returns soon and never raises."""

    def listen(self, queues: Collection[str]) -> Listener:
        """Open a listener for wakeups of these queues.

        Raises:
            InvalidArgument, InvalidThread: no queue, or an invalid name.
        """

    def close(self) -> None:
        """Send what is still to be sent. Listeners are closed by their callers."""


@runtime_checkable
class CommitNotifier(Protocol):
    """A notifier whose listeners are woken by the commits of some dispatch stores, without `notify`."""

    def covers(self, store: object) -> bool:
        """Return whether the starts and decisions of this store wake its listeners."""


class GuardedNotifier:
    """A wrapper of the host's notifier: its exceptions are logged, fail no command and end no worker.

    The host closes its notifier itself.
    """

    def __init__(self, given: Notifier) -> None:
        """Wrap a notifier.

        Raises:
            InvalidArgument: it lacks methods of a `Notifier`.
        """
        missing = [name for name in ("notify", "listen", "close") if not callable(getattr(given, name, None))]
        if missing:
            raise InvalidArgument(f"notifier is a {type(given).__name__} without {', '.join(missing)}: see Notifier")
        self._given = given

    @classmethod
    def of(cls, notifier: Notifier) -> "GuardedNotifier":
        """Wrap a notifier, unless it is wrapped already. Raises as the constructor."""
        return notifier if isinstance(notifier, cls) else cls(notifier)

    def notify(self, queues: Collection[str]) -> None:
        """Send a wakeup for these queues."""
        self.try_notify(queues)

    def try_notify(self, queues: Collection[str]) -> bool:
        """Send a wakeup for these queues; return whether that succeeded."""
        try:
            self._given.notify(queues)
        except Exception as error:  # noqa: BLE001  code of the host's; whatever it raises, the work is on record
            logger.warning("cannot notify workers, who will find their work by polling: %r", error)
            return False
        return True

    def listen(self, queues: Collection[str]) -> "GuardedListener":
        """Open a listener; if the host's notifier fails to, it is called again later.

        Raises:
            InvalidArgument, InvalidThread: no queue, or an invalid name.
        """
        check_queues(queues)
        return GuardedListener(self._given, queues)

    def close(self) -> None:
        """Keep the host's notifier open: the host closes it."""


class GuardedListener:
    """A wrapper of a listener of the host's notifier. While there is none, waits time out, and `wake` still ends them.

    An exception of the host's listener is logged once, until it works again; a listener whose wait fails is replaced.
    """

    def __init__(self, notifier: Notifier, queues: Collection[str]) -> None:
        """Start to listen. Never raises what the notifier raises."""
        self._notifier, self._queues = notifier, queues
        self._wakeup = WakeupEvent()  # ends a wait while there is no listener, or one whose `wake` fails
        self._changing = threading.Lock()
        self._closed = False
        self._failing: set[str] = set()
        self._listen_at = 0.0
        self._listener: Listener | None = None
        self._listen()

    def wait(self, timeout: float) -> bool:
        """Wait for a wakeup."""
        ends = time.monotonic() + timeout
        if self._wakeup.wait(0):
            return True
        listener = self._listen()
        if listener is not None and not self._closed:
            try:
                woken = bool(listener.wait(timeout))
            except Exception as error:  # noqa: BLE001  code of the host's: workers still poll
                self._note("wait", error)
                self._drop(listener)
            else:
                self._failing.discard("wait")
                if woken:
                    return not self._closed
        # If the host's listener returns early without a wakeup: otherwise the caller would loop without a pause.
        return self._wakeup.wait(ends - time.monotonic())

    def wake(self) -> None:
        """End the wait of the thread that waits here."""
        listener = self._listener
        if listener is not None:
            try:
                listener.wake()
            except Exception as error:  # noqa: BLE001  code of the host's
                self._note("wake", error)
            else:
                self._failing.discard("wake")
                if self._listener is listener:
                    return
        self._wakeup.set()

    def close(self) -> None:
        """Stop listening."""
        with self._changing:
            self._closed = True
            listener, self._listener = self._listener, None
        self._wakeup.close()
        if listener is not None:
            self._close(listener)

    def _listen(self) -> Listener | None:
        """Return the listener; open one if there is none, at most every few seconds. None while that fails."""
        if self._listener is not None or self._closed or time.monotonic() < self._listen_at:
            return self._listener
        try:
            listener = self._notifier.listen(self._queues)
        except Exception as error:  # noqa: BLE001  code of the host's
            self._note("listen", error)
            self._listen_at = time.monotonic() + _LISTEN_AGAIN_SECONDS
            return None
        self._failing.discard("listen")
        with self._changing:
            if not self._closed:
                self._listener = listener
                return listener
        self._close(listener)
        return None

    def _drop(self, listener: Listener) -> None:
        with self._changing:
            self._listener = None
            self._listen_at = time.monotonic() + _LISTEN_AGAIN_SECONDS
        self._close(listener)

    def _close(self, listener: Listener) -> None:
        try:
            listener.close()
        except Exception as error:  # noqa: BLE001  code of the host's; nothing is expected of it any more
            self._note("close", error)

    def _note(self, what: str, error: Exception) -> None:
        if what not in self._failing:
            self._failing.add(what)
            logger.warning("the host's notifier fails, and workers find work by polling: %s: %r", what, error)


class WakeupEvent:
    """A flag that any thread may set, and that one wait clears."""

    def __init__(self) -> None:
        """Start cleared."""
        self._changed = threading.Condition()
        self._is_set = False
        self._closed = False

    def set(self) -> None:
        """Wake the waiting thread, or the next one."""
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def wait(self, timeout: float) -> bool:
        """Wait until the event is set, at most `timeout` seconds; clear it, and return whether it was set."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_set or self._closed, max(0.0, timeout))
            was_set, self._is_set = self._is_set and not self._closed, False
            return was_set

    def close(self) -> None:
        """End the wait, and return False from all later ones."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def known_queues(queues: Collection[str]) -> frozenset[str]:
    """Return the valid names of queues: no listener has another one, and a hint is not worth an error."""
    return frozenset(queue for queue in queues if is_part(queue))


def check_queues(queues: Collection[str]) -> frozenset[str]:
    """Return the queues as a set; raise `InvalidArgument` or `InvalidThread` for none, or for an invalid name."""
    if isinstance(queues, str) or not queues:
        raise InvalidArgument(f"queues must be a collection of at least one name, not {queues!r:.80}")
    return frozenset(check_part(queue, "queue") for queue in queues)


@checks_arguments
class LocalNotifier:
    """Wakeups within one process, between all users of the same storage object."""

    def __init__(self, storage: Storage) -> None:
        """Bind to a storage object."""
        self._listeners = shared(storage, _ListenerSet)

    def notify(self, queues: Collection[str]) -> None:
        """Send a wakeup for these queues."""
        self._listeners.notify(known_queues(queues))

    def listen(self, queues: Collection[str]) -> "LocalListener":
        """Open a listener."""
        listener = LocalListener(self._listeners, check_queues(queues))
        self._listeners.add(listener)
        return listener

    def close(self) -> None:
        """Return at once: all wakeups were sent."""


class LocalListener:
    """A `Listener` within one process."""

    def __init__(self, listeners: "_ListenerSet", queues: frozenset[str]) -> None:
        """Use `LocalNotifier.listen`."""
        self.queues = queues
        self._listeners = listeners
        self._wakeup = WakeupEvent()

    def wait(self, timeout: float) -> bool:
        """Wait for a wakeup."""
        return self._wakeup.wait(timeout)

    def wake(self) -> None:
        """End the wait of the thread that waits here."""
        self._wakeup.set()

    def close(self) -> None:
        """Stop listening."""
        self._listeners.discard(self)
        self._wakeup.close()


class _ListenerSet:
    """The listeners of one storage object, weakly referenced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: WeakSet[LocalListener] = WeakSet()

    def add(self, listener: LocalListener) -> None:
        with self._lock:
            self._listeners.add(listener)

    def discard(self, listener: LocalListener) -> None:
        with self._lock:
            self._listeners.discard(listener)

    def notify(self, queues: frozenset[str]) -> None:
        with self._lock:
            matching = [listener for listener in self._listeners if listener.queues & queues]
        for listener in matching:
            listener.wake()
