"""Hints by NOTIFY, sent after the commit and outside of its transaction: inside, its global lock would slow writers.

A hint is a commit of its own that does not wait for the disk. How one listens is in `listener`.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import LiteralString, NamedTuple

from squid_dagster.journal.contract.notifier import check_queues, known_queues
from squid_dagster.journal.postgres.connection.failures import retry_if_safe
from squid_dagster.journal.postgres.connection.pool import make_engine
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.notification.listener import ListenerTimes, PostgresListener
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import SquidError

logger = redacting_logger(__name__)

WINDOW_SECONDS = 0.005  # in which one queue is told about at most once
_FLUSH_SECONDS = 30

_NOTIFY: LiteralString = """SELECT pg_notify(channel, payload), set_config('synchronous_commit', 'off', true)
    FROM unnest(%s::text[], %s::text[]) AS hint (channel, payload)"""


class Wakeup(NamedTuple):
    """One notification."""

    channel: str
    payload: str


_Pending = dict[Wakeup, list[Callable[[], None]]]  # what is to be sent, and whom to tell when it was


@checks_arguments
class PostgresNotifier:
    """`Notifier` on a `PostgresStorage`: one channel per schema, whose payloads are queues.

    Listeners need a connection of their own that stays with one session of the server. Where the storage's URL leads to
    a transaction pooler, `listen_url` names the server itself; without it listening is in vain there, and a warning
    says so.
    """

    def __init__(
        self, storage: PostgresStorage, listen_url: str | None = None, *, patience: ListenerTimes | None = None
    ) -> None:
        """Bind to a storage, without connecting. Raises `InvalidArgument` for a URL that cannot be used."""
        self._storage = storage
        self._listen_engine = make_engine(listen_url, pool_size=1) if listen_url is not None else storage.engine
        self._channel = storage.channel
        self._patience = patience
        self._sender = Sender(self._send, WINDOW_SECONDS)
        self._failing = False

    def notify(self, queues: Collection[str]) -> None:
        """Say that these queues have news. Within a few milliseconds, many become one; the last is never dropped."""
        self._sender.add(Wakeup(self._channel, queue) for queue in known_queues(queues))

    def covers(self, store: object) -> bool:
        """Return whether a store sends its hints by itself, right behind its commits."""
        return isinstance(store, PostgresDispatchStore)

    def listen(self, queues: Collection[str]) -> PostgresListener:
        """Begin to listen, in a thread of its own; it connects, and connects again, by itself."""
        return PostgresListener(self._listen_engine, self._channel, check_queues(queues), self._echo, self._patience)

    def close(self) -> None:
        """Send what is still to be sent, if the database can be reached."""
        self._sender.flush(_FLUSH_SECONDS)

    def _echo(self, channel: str, then: Callable[[], None]) -> None:
        self._sender.add([Wakeup(channel, "")], then)

    def _send(self, hints: list[Wakeup]) -> bool:
        """Send hints in one commit; tell whether it worked. What is lost here is found by polling."""
        values = ([hint.channel for hint in hints], [hint.payload for hint in hints])

        def send() -> None:
            with self._storage.connection() as connection:
                connection.execute(self._storage.sql(_NOTIFY), values)

        try:
            retry_if_safe(send)
        except SquidError as error:
            if not self._failing:
                logger.warning("cannot notify workers, who will find their work by polling: %s", error)
            self._failing = True
            return False
        self._failing = False
        return True


class Sender:
    """Sends hints, each at once, but never twice within a window.

    What may be sent now is sent by whoever brings it: a short round trip, where waking a thread would take longer. What
    has to wait is left to a thread that lives as long as there is any. It is no daemon: a process which ends has sent
    its last hint.
    """

    def __init__(self, send: Callable[[list[Wakeup]], bool], window_seconds: float) -> None:
        """Give the function that sends, and tells whether it could."""
        self._send = send
        self._window = window_seconds
        self._changed = threading.Condition()
        self._pending: _Pending = {}
        self._sent_at: dict[Wakeup, float] = {}
        self._busy = False

    def add(self, hints: Iterable[Wakeup], then: Callable[[], None] | None = None) -> None:
        """Take hints to be sent; `then` is called for each that was."""
        with self._changed:
            for hint in hints:
                self._pending.setdefault(hint, []).extend([then] if then is not None else [])
            if self._busy or not self._pending:
                self._changed.notify_all()  # whoever waits for another hint's window may take these along
                return
            self._busy = True
            ready = self._ready(time.monotonic())
        if ready:
            self._deliver(ready)
        with self._changed:
            if not self._pending:
                self._busy = False
                self._changed.notify_all()
                return
        if threading.main_thread().is_alive():
            threading.Thread(target=self._run, name="squid-notifier", daemon=False).start()
        else:  # the interpreter is on its way out and waits for no more threads
            self._run()

    def flush(self, timeout: float) -> None:
        """Wait until everything was sent, at most so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, timeout)

    def _run(self) -> None:
        try:
            while (ready := self._take()) is not None:
                self._deliver(ready)
        except BaseException:
            self._give_up()
            raise

    def _deliver(self, ready: _Pending) -> None:
        try:
            sent = self._send(list(ready))
        except BaseException:
            self._give_up()
            raise
        if sent:
            for then in (then for waiting in ready.values() for then in waiting):
                then()

    def _give_up(self) -> None:
        with self._changed:  # the next hint begins anew
            self._busy = False
            self._changed.notify_all()

    def _ready(self, now: float) -> _Pending:
        """Take the hints that may be sent now."""
        self._sent_at = {hint: at for hint, at in self._sent_at.items() if at + self._window > now}
        ready = {hint: self._pending.pop(hint) for hint in list(self._pending) if hint not in self._sent_at}
        self._sent_at |= dict.fromkeys(ready, now)
        return ready

    def _take(self) -> _Pending | None:
        """Wait for hints that may be sent now; None, and nobody is busy any more, when there are none at all."""
        with self._changed:
            while True:
                now = time.monotonic()
                if ready := self._ready(now):
                    return ready
                if not self._pending:
                    self._busy = False  # in the same breath as the look at what is pending, or a hint would be lost
                    self._changed.notify_all()
                    return None
                self._changed.wait(min(self._sent_at[hint] for hint in self._pending) + self._window - now)
