"""Hints that a queue has news, so that whoever waits need not poll often. Losing one costs latency, never work."""

import threading
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Protocol, runtime_checkable
from weakref import WeakSet

from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.per_storage import shared
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import InvalidArgument, InvalidThread
from squid_dagster.protocol.threads import check_part

logger = redacting_logger(__name__)

_LISTEN_AGAIN_SECONDS = 5.0  # between two tries to listen by a notifier that fails


class Listener(Protocol):
    """Somebody who waits for news of some queues. To be closed when no longer needed."""

    def wait(self, timeout: float) -> bool:
        """Wait for news, at most so many seconds; tell whether there may be some.

        Many notifications since the last wait count as one. True without any news is possible, after a connection
        came back for example: look, find nothing, wait again. A closed listener answers False at once.
        """

    def wake(self) -> None:
        """Wake whoever waits here, or the next one who will. For another thread of the same process."""

    def close(self) -> None:
        """Stop listening and wake whoever waits. May be called more than once."""


class Notifier(Protocol):
    """Tells listeners, in this process and wherever the storage is shared, about queues with news.

    A host may hand one of its own to `Squid(notifier=...)`, on a broker that it has, for example. Workers that listen
    there hear what it is told; without any of it, they poll.
    """

    def notify(self, queues: Collection[str]) -> None:
        """Say that these queues have news, after the commit that made them. Returns soon and never raises."""

    def listen(self, queues: Collection[str]) -> Listener:
        """Begin to listen for news of these queues.

        Raises:
            InvalidArgument, InvalidThread: no queue, or a name that is none.
        """

    def close(self) -> None:
        """Send what is still to be sent. Listeners are closed by whoever opened them."""


@runtime_checkable
class CommitNotifier(Protocol):
    """A notifier whose listeners hear from some dispatch stores without being told by `notify`."""

    def covers(self, store: object) -> bool:
        """Return whether the starts and decisions of this store wake its listeners."""


class GuardedNotifier:
    """A notifier that was handed over: what it raises is logged, fails no command and ends no worker.

    It is not ours to close.
    """

    def __init__(self, given: Notifier) -> None:
        """Wrap it.

        Raises:
            InvalidArgument: it has not the methods of a `Notifier`.
        """
        missing = [name for name in ("notify", "listen", "close") if not callable(getattr(given, name, None))]
        if missing:
            raise InvalidArgument(f"notifier is a {type(given).__name__} without {', '.join(missing)}: see Notifier")
        self._given = given

    @classmethod
    def of(cls, notifier: Notifier) -> "GuardedNotifier":
        """Return the notifier, guarded once. Raises as the constructor."""
        return notifier if isinstance(notifier, cls) else cls(notifier)

    def notify(self, queues: Collection[str]) -> None:
        """Say that these queues have news."""
        self.try_notify(queues)

    def try_notify(self, queues: Collection[str]) -> bool:
        """Say that these queues have news; return whether that went well."""
        try:
            self._given.notify(queues)
        except Exception as error:  # noqa: BLE001  code of the host's; whatever it raises, the work is on record
            logger.warning("cannot notify workers, who will find their work by polling: %r", error)
            return False
        return True

    def listen(self, queues: Collection[str]) -> "GuardedListener":
        """Begin to listen; where the given one cannot now, it is asked again later.

        Raises:
            InvalidArgument, InvalidThread: no queue, or a name that is none.
        """
        check_queues(queues)
        return GuardedListener(self._given, queues)

    def close(self) -> None:
        """Leave it open, for whoever handed it over."""


class GuardedListener:
    """A `Listener` of a notifier that was handed over. Without one, waits last their time, and `wake` still ends them.

    What the given one raises is logged once, until it works again; one whose wait fails is replaced.
    """

    def __init__(self, notifier: Notifier, queues: Collection[str]) -> None:
        """Begin to listen. Never raises what the notifier raises."""
        self._notifier, self._queues = notifier, queues
        self._wakeup = WakeupEvent()  # ends a wait while there is no listener, or one whose `wake` fails
        self._changing = threading.Lock()
        self._closed = False
        self._failing: set[str] = set()
        self._listen_at = 0.0
        self._listener: Listener | None = None
        self._listen()

    def wait(self, timeout: float) -> bool:
        """Wait for news."""
        ends = time.monotonic() + timeout
        if self._wakeup.wait(0):
            return True
        listener = self._listen()
        if listener is not None and not self._closed:
            try:
                news = bool(listener.wait(timeout))
            except Exception as error:  # noqa: BLE001  code of the host's: polling is the floor
                self._note("wait", error)
                self._drop(listener)
            else:
                self._failing.discard("wait")
                if news:
                    return not self._closed
        # One that answers before its time without any news would keep its caller turning.
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
        """Return the listener; where there is none, ask for one, now and then. None while it cannot be had."""
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
    """What all listeners share: a flag that many may raise, and that one wait takes down."""

    def __init__(self) -> None:
        """Start cleared."""
        self._changed = threading.Condition()
        self._is_set = False
        self._closed = False

    def set(self) -> None:
        """Wake the one who waits, or the next."""
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
        """Answer False from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def known_queues(queues: Collection[str]) -> frozenset[str]:
    """Give those that are names of queues: nobody can listen to any other, and no hint is worth an error."""
    found = set()
    for queue in queues:
        with suppress(InvalidThread):
            found.add(check_part(queue, "queue"))
    return frozenset(found)


def check_queues(queues: Collection[str]) -> frozenset[str]:
    """Give the queues as a set; raise `InvalidArgument` or `InvalidThread` when there is none, or one is no name."""
    if isinstance(queues, str) or not queues:
        raise InvalidArgument(f"queues must be a collection of at least one name, not {queues!r:.80}")
    return frozenset(check_part(queue, "queue") for queue in queues)


@checks_arguments
class LocalNotifier:
    """Hints within one process: all who use the same storage object hear each other."""

    def __init__(self, storage: Storage) -> None:
        """Bind to a storage object."""
        self._room = shared(storage, _Room)

    def notify(self, queues: Collection[str]) -> None:
        """Say that these queues have news."""
        self._room.notify(known_queues(queues))

    def listen(self, queues: Collection[str]) -> "LocalListener":
        """Begin to listen."""
        listener = LocalListener(self._room, check_queues(queues))
        self._room.join(listener)
        return listener

    def close(self) -> None:
        """Nothing is left to be sent: everybody was told at once."""


class LocalListener:
    """A `Listener` within one process."""

    def __init__(self, room: "_Room", queues: frozenset[str]) -> None:
        """Use `LocalNotifier.listen`."""
        self.queues = queues
        self._room = room
        self._wakeup = WakeupEvent()

    def wait(self, timeout: float) -> bool:
        """Wait for news."""
        return self._wakeup.wait(timeout)

    def wake(self) -> None:
        """End the wait of the thread that waits here."""
        self._wakeup.set()

    def close(self) -> None:
        """Stop listening."""
        self._room.leave(self)
        self._wakeup.close()


class _Room:
    """The listeners of one storage object; one that nobody holds any more is forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: WeakSet[LocalListener] = WeakSet()

    def join(self, listener: LocalListener) -> None:
        with self._lock:
            self._listeners.add(listener)

    def leave(self, listener: LocalListener) -> None:
        with self._lock:
            self._listeners.discard(listener)

    def notify(self, queues: frozenset[str]) -> None:
        with self._lock:
            told = [listener for listener in self._listeners if listener.queues & queues]
        for listener in told:
            listener.wake()
