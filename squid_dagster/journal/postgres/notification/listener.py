"""Listening for hints: one thread and one connection per listener, probed, and made again whenever it breaks."""

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

# Has a hint sent on that channel by another connection, and calls back once it was sent.
EchoSender = Callable[[str, Callable[[], None]], None]

_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.1, 30.0  # before connecting again
_LOOK_SECONDS = 5.0  # between two looks at what a selector does not tell: descriptors that were closed meanwhile
_JOIN_SECONDS = 30.0  # longer than an attempt to connect may take
_FINE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


@dataclass(frozen=True, slots=True)
class ListenerTimes:
    """How long a listener waits, in seconds: for a word until it asks for one, for the answer, and for its own echo.

    One that did not hear its echo is deaf, behind a transaction pooler for example; it rests before it tries again.
    """

    quiet: float = 30.0
    answer: float = 10.0
    echo: float = 10.0
    rest: float = 600.0


class NotificationMissing(Exception):
    """Hints are sent and do not arrive."""


class PostgresListener:
    """A `Listener` on a Postgres channel. While it is not connected, `wait` takes its time and that is all."""

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
        self._hears = False
        self._warned = False
        self._stopping = threading.Event()
        self._stop_seen, self._stop_told = socket.socketpair()
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="squid-listener", daemon=True)
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """Wait for news."""
        return self._wakeup.wait(timeout)

    def wake(self) -> None:
        """Wake whoever waits here."""
        self._wakeup.set()

    def close(self) -> None:
        """Stop listening: thread and session are gone then. One that is just connecting may need its time-out first."""
        self._wakeup.close()
        with self._closing:
            if not self._stopping.is_set():
                self._stopping.set()
                with suppress(OSError):  # a step has closed it: the thread looks by itself
                    self._stop_told.send(b".")
            self._thread.join(_JOIN_SECONDS)
            if not self._thread.is_alive():
                with suppress(OSError):  # a step was faster
                    self._stop_seen.close()
                    self._stop_told.close()

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
                delay = _FIRST_DELAY_SECONDS  # it had been well for a while
            # Not all listeners of a server that restarts should be back in the same instant.
            self._stopping.wait(delay * random.uniform(0.5, 1))  # noqa: S311  nothing secret about it
            delay = min(2 * delay, _LONGEST_DELAY_SECONDS)

    def _listen(self) -> None:
        """Connect, and hear until told to stop. Raises when the connection cannot be made, breaks, or is of no use."""
        guard = deadline(self._patience.answer)  # of what is asked while connecting: `_Line` has its own
        with _closing(connect(self._engine, guard)) as connection, selectors.DefaultSelector() as selector:
            selector.register(self._stop_seen, selectors.EVENT_READ)
            selector.register(connection.fileno(), selectors.EVENT_READ)
            line = _Line(connection, selector, self._stopping, self._heard)
            channels = sql.Identifier(self._channel), sql.Identifier(self._own_channel)
            listen = sql.SQL("SET application_name = 'squid_dagster listener'; LISTEN {}; LISTEN {}").format(*channels)
            line.ask(listen.as_bytes(connection), self._patience.answer)
            self._hears = False
            echo = _Echo()
            self._wakeup.set()  # what was said until now was missed
            while not self._stopping.is_set():
                if not self._hears:
                    self._check_hearing(line, echo)
                line.hear(self._patience.quiet)
                line.ask(b"SELECT 1", self._patience.answer)

    def _check_hearing(self, line: "_Line", echo: "_Echo") -> None:
        if echo.sent_at is None:
            self._echo(self._own_channel, echo.was_sent)
        elif time.monotonic() - echo.sent_at > self._patience.echo:
            line.ask(b"UNLISTEN *", self._patience.answer)
            raise NotificationMissing(
                "hints are sent and do not arrive, as behind a transaction pooler: give a listen_url without one"
            )

    def _heard(self, channel: str, payload: str) -> None:
        if channel == self._own_channel:
            self._hears, self._warned = True, False
            return
        if payload in self._queues:
            self._wakeup.set()

    def _warn(self, what: str) -> None:
        if not self._warned and not self._stopping.is_set():
            logger.warning("no hints about queues %s, work is found by polling: %s", sorted(self._queues), what)
        self._warned = True


@contextmanager
def _closing(connection: PgConnection) -> Iterator[PgConnection]:
    """Close a connection at the end of a block, unless its number leads elsewhere by then."""
    try:
        yield connection
    finally:
        if is_intact(connection):
            connection.close()
        else:
            close_lost(connection)


class _Echo:
    """When the hint that a connection should hear again was sent; never, as long as sending fails."""

    sent_at: float | None = None

    def was_sent(self) -> None:
        self.sent_at = time.monotonic()


class _Line:
    """A connection that is heard and asked without blocking any longer than allowed."""

    def __init__(
        self,
        connection: PgConnection,
        selector: selectors.BaseSelector,
        stopping: threading.Event,
        heard: Callable[[str, str], None],
    ) -> None:
        self._pgconn = connection.pgconn
        self._selector = selector
        self._stopping = stopping
        self._heard = heard

    def hear(self, seconds: float) -> None:
        """Pass on what is said, for so long or until told to stop; raise `psycopg.Error` when the connection breaks."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._stopping.is_set():
            self._take_in(left)

    def ask(self, query: bytes, seconds: float) -> None:
        """Have a query answered; raise `psycopg.Error` if it is refused, or not answered in time."""
        self._pgconn.send_query(query)
        until = time.monotonic() + seconds
        while not self._stopping.is_set():
            self._pgconn.flush()
            if (left := until - time.monotonic()) <= 0:
                raise psycopg.OperationalError(f"the server has not answered for {seconds:g} seconds")
            self._take_in(left)
            while not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    return
                if result.status not in _FINE:
                    raise psycopg.OperationalError(result.error_message.decode(errors="replace"))

    def _take_in(self, seconds: float) -> None:
        """Wait for input, at most so long, and pass on the notifications in it."""
        self._selector.select(min(seconds, _LOOK_SECONDS))
        self._pgconn.consume_input()
        while (notice := self._pgconn.notifies()) is not None:
            self._heard(notice.relname.decode(), notice.extra.decode())
