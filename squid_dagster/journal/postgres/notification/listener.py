"""LISTEN for wakeups: one thread and one connection per listener, probed, and opened again whenever it breaks."""

import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus
from sqlalchemy import Engine

from squid_dagster.journal.contract.notifier import WakeupEvent
from squid_dagster.journal.postgres.connection.failures import unavailable
from squid_dagster.journal.postgres.connection.inherited_sockets import close_lost, is_intact
from squid_dagster.journal.postgres.connection.pool import PgConnection, connect
from squid_dagster.journal.postgres.connection.probe import deadline
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import StorageUnavailable

logger = redacting_logger(__name__)

# Sends a wakeup on that channel by another connection, and calls back once it was sent.
EchoSender = Callable[[str, Callable[[], None]], None]

_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.1, 30.0  # before connecting again
_SELECT_SECONDS = 5.0  # of one select, which does not notice descriptors that are closed meanwhile
_JOIN_SECONDS = 30.0  # longer than an attempt to connect may take
_FINE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


@dataclass(frozen=True, slots=True)
class ListenerTimes:
    """How long a listener waits, in seconds.

    `quiet`: for a notification until it sends a query; `answer`: for the result of a query; `echo`: for a notification
    to itself; `rest`: before it connects again if that did not arrive, as behind a transaction pooler.
    """

    quiet: float = 30.0
    answer: float = 10.0
    echo: float = 10.0
    rest: float = 600.0


class NotificationMissing(Exception):
    """Notifications are sent and do not arrive."""


class PostgresListener:
    """A `Listener` on a Postgres channel. While it is not connected, `wait` returns after its timeout."""

    def __init__(
        self,
        engine: Engine,
        channel: str,
        queues: frozenset[str],
        echo: EchoSender,
        patience: ListenerTimes | None = None,
    ) -> None:
        """Use `PostgresNotifier.listen`."""
        self._engine = engine
        self._channel, self._own_channel = channel, f"{channel}_{token_hex(8)}"
        self._queues = queues
        self._echo = echo
        self._patience = patience or ListenerTimes()
        self._wakeup = WakeupEvent()
        self._echoed = False
        self._warned = False
        self._stopping = threading.Event()
        self._stop_receiver, self._stop_sender = socket.socketpair()
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="squid-listener", daemon=True)
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """Wait for a wakeup."""
        return self._wakeup.wait(timeout)

    def wake(self) -> None:
        """Wake the threads that wait here."""
        self._wakeup.set()

    def close(self) -> None:
        """Stop listening: end thread and session. A thread that is connecting ends after its timeout."""
        self._wakeup.close()
        with self._closing:
            if not self._stopping.is_set():
                self._stopping.set()
                with suppress(OSError):  # a step has closed it: the thread checks `_stopping`
                    self._stop_sender.send(b".")
            self._thread.join(_JOIN_SECONDS)
            if not self._thread.is_alive():
                with suppress(OSError):  # a step has closed them
                    self._stop_receiver.close()
                    self._stop_sender.close()

    def _run(self) -> None:
        delay = _FIRST_DELAY_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._listen()
            except NotificationMissing as error:
                self._warn(str(error))
                self._stopping.wait(self._patience.rest)
            except StorageUnavailable as error:
                self._warn(str(error))
            except (psycopg.Error, OSError) as error:
                self._warn(str(unavailable(self._engine, error)))
            except Exception:
                logger.exception("listening failed, work is found by polling until it is tried again")
            if time.monotonic() - began > _LONGEST_DELAY_SECONDS:
                delay = _FIRST_DELAY_SECONDS  # it was connected for a while
            # With jitter, so that not all listeners of a server that restarts connect at the same time.
            self._stopping.wait(delay * random.uniform(0.5, 1))  # noqa: S311  nothing secret about it
            delay = min(2 * delay, _LONGEST_DELAY_SECONDS)

    def _listen(self) -> None:
        """Connect and listen until stopped. Raises if the connection cannot be opened, breaks, or is deaf."""
        guard = deadline(self._patience.answer)  # of queries while connecting: `_Session` has bounds of its own
        with _closing(connect(self._engine, guard)) as connection, selectors.DefaultSelector() as selector:
            selector.register(self._stop_receiver, selectors.EVENT_READ)
            selector.register(connection.fileno(), selectors.EVENT_READ)
            session = _Session(connection, selector, self._stopping, self._receive)
            channels = sql.Identifier(self._channel), sql.Identifier(self._own_channel)
            listen = sql.SQL("SET application_name = 'squid_dagster listener'; LISTEN {}; LISTEN {}").format(*channels)
            session.query(listen.as_bytes(connection), self._patience.answer)
            self._echoed = False
            echo = _Echo()
            self._wakeup.set()  # wakeups that were sent before this are lost
            while not self._stopping.is_set():
                if not self._echoed:
                    self._check_echo(session, echo)
                session.receive(self._patience.quiet)
                session.query(b"SELECT 1", self._patience.answer)

    def _check_echo(self, session: "_Session", echo: "_Echo") -> None:
        if echo.sent_at is None:
            self._echo(self._own_channel, echo.was_sent)
        elif time.monotonic() - echo.sent_at > self._patience.echo:
            session.query(b"UNLISTEN *", self._patience.answer)
            raise NotificationMissing(
                "hints are sent and do not arrive, as behind a transaction pooler: give a listen_url without one"
            )

    def _receive(self, channel: str, payload: str) -> None:
        if channel == self._own_channel:
            self._echoed, self._warned = True, False
            return
        if payload in self._queues:
            self._wakeup.set()

    def _warn(self, what: str) -> None:
        if not self._warned and not self._stopping.is_set():
            logger.warning("no hints about queues %s, work is found by polling: %s", sorted(self._queues), what)
        self._warned = True


@contextmanager
def _closing(connection: PgConnection) -> Iterator[PgConnection]:
    """Close a connection at the end of a block, unless its descriptor was reused by then."""
    try:
        yield connection
    finally:
        if is_intact(connection):
            connection.close()
        else:
            close_lost(connection)


class _Echo:
    """When the notification to the listener itself was sent; None as long as sending fails."""

    sent_at: float | None = None

    def was_sent(self) -> None:
        self.sent_at = time.monotonic()


class _Session:
    """A session that receives notifications and sends queries, without blocking longer than allowed."""

    def __init__(
        self,
        connection: PgConnection,
        selector: selectors.BaseSelector,
        stopping: threading.Event,
        on_notification: Callable[[str, str], None],
    ) -> None:
        self._pgconn = connection.pgconn
        self._selector = selector
        self._stopping = stopping
        self._on_notification = on_notification

    def receive(self, seconds: float) -> None:
        """Pass on notifications, for so long or until stopped; raise `psycopg.Error` if the connection breaks."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._stopping.is_set():
            self._consume(left)

    def query(self, query: bytes, seconds: float) -> None:
        """Execute a query; raise `psycopg.Error` if it is refused, or not answered in time."""
        self._pgconn.send_query(query)
        until = time.monotonic() + seconds
        while not self._stopping.is_set():
            self._pgconn.flush()
            if (left := until - time.monotonic()) <= 0:
                raise psycopg.OperationalError(f"the server has not answered for {seconds:g} seconds")
            self._consume(left)
            while not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    return
                if result.status not in _FINE:
                    raise psycopg.OperationalError(result.error_message.decode(errors="replace"))

    def _consume(self, seconds: float) -> None:
        """Wait for input, at most so long, and pass on the notifications in it."""
        self._selector.select(min(seconds, _SELECT_SECONDS))
        self._pgconn.consume_input()
        while (notice := self._pgconn.notifies()) is not None:
            self._on_notification(notice.relname.decode(), notice.extra.decode())
