"""Wakeups by NOTIFY, sent after the commit and outside of its transaction: inside, its global lock would slow writers.

A wakeup is a commit of its own that does not wait for the disk. LISTEN is in `listener.py`.
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

WINDOW_SECONDS = 0.005  # in which a queue is notified at most once
_FLUSH_SECONDS = 30

_NOTIFY: LiteralString = """SELECT pg_notify(channel, payload), set_config('synchronous_commit', 'off', true)
    FROM unnest(%s::text[], %s::text[]) AS hint (channel, payload)"""


class Wakeup(NamedTuple):
    """One notification."""

    channel: str
    payload: str


_Pending = dict[Wakeup, list[Callable[[], None]]]  # to be sent, with the functions to call once it was


@checks_arguments
class PostgresNotifier:
    """`Notifier` on a `PostgresStorage`: one channel per schema, whose payloads are queues.

    A listener needs a connection of its own that stays with one session of the server. If the storage's URL is that of
    a transaction pooler, `listen_url` is that of the server; without it no wakeup arrives, and a warning says so.
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
        """Notify listeners of these queues. Calls within a few milliseconds become one; the last is never dropped."""
        self._sender.add(Wakeup(self._channel, queue) for queue in known_queues(queues))

    def covers(self, store: object) -> bool:
        """Return whether a store sends its wakeups by itself, right after its commits."""
        return isinstance(store, PostgresDispatchStore)

    def listen(self, queues: Collection[str]) -> PostgresListener:
        """Start a listener in a thread of its own, which connects again by itself."""
        return PostgresListener(self._listen_engine, self._channel, check_queues(queues), self._echo, self._patience)

    def close(self) -> None:
        """Send pending wakeups, if the database can be reached."""
        self._sender.flush(_FLUSH_SECONDS)

    def _echo(self, channel: str, then: Callable[[], None]) -> None:
        self._sender.add([Wakeup(channel, "")], then)

    def _send(self, wakeups: list[Wakeup]) -> bool:
        """Send wakeups in one commit; return whether it worked. Work without a wakeup is found by polling."""
        values = ([wakeup.channel for wakeup in wakeups], [wakeup.payload for wakeup in wakeups])

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
    """Sends wakeups, each at once, but never twice within a window.

    A wakeup that may be sent now is sent by the calling thread: a short round trip takes less time than waking another
    thread. One that has to wait is left to a thread that lives as long as any is pending. It is no daemon: a process
    that ends has sent its last wakeup.
    """

    def __init__(self, send: Callable[[list[Wakeup]], bool], window_seconds: float) -> None:
        """Send by a function that returns whether it worked."""
        self._send = send
        self._window = window_seconds
        self._changed = threading.Condition()
        self._pending: _Pending = {}
        self._sent_at: dict[Wakeup, float] = {}
        self._busy = False

    def add(self, wakeups: Iterable[Wakeup], then: Callable[[], None] | None = None) -> None:
        """Add wakeups to be sent; call `then` for each once it was."""
        with self._changed:
            for wakeup in wakeups:
                self._pending.setdefault(wakeup, []).extend([then] if then is not None else [])
            if self._busy or not self._pending:
                self._changed.notify_all()  # the thread that waits for another wakeup's window may send these too
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
        else:  # the interpreter shuts down and waits for no new threads
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
        with self._changed:  # the next wakeup starts another thread
            self._busy = False
            self._changed.notify_all()

    def _ready(self, now: float) -> _Pending:
        """Remove and return the wakeups that may be sent now."""
        self._sent_at = {wakeup: at for wakeup, at in self._sent_at.items() if at + self._window > now}
        ready = {wakeup: self._pending.pop(wakeup) for wakeup in list(self._pending) if wakeup not in self._sent_at}
        self._sent_at |= dict.fromkeys(ready, now)
        return ready

    def _take(self) -> _Pending | None:
        """Wait for wakeups that may be sent now; without any pending, reset `_busy` and return None."""
        with self._changed:
            while True:
                now = time.monotonic()
                if ready := self._ready(now):
                    return ready
                if not self._pending:
                    self._busy = False  # under the same lock as the check for pending ones, or one would be lost
                    self._changed.notify_all()
                    return None
                self._changed.wait(min(self._sent_at[wakeup] for wakeup in self._pending) + self._window - now)
