"""Bounds on every wait for the network, and a probe that distinguishes a slow answer from a lost one.

The kernel ends a connection whose packets are not acknowledged (`network.py`). It does not notice an answer that is
lost behind a proxy, a pooler or a firewall that acknowledges for the server. So a wait without any answer for a while
asks the server, by another connection, whether it works on the statement. If it does, the wait goes on, however long
that takes. If it does not, twice in a row, the connection is closed: its statement fails as with any lost connection.

SQLAlchemy executes statements on the first connection of an engine: `guarded_connecting` bounds these.
"""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from enum import Enum
from time import monotonic
from typing import Any, TypeVar
from weakref import ref

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine, event

from squid_dagster.journal.network import NetworkBounds
from squid_dagster.journal.postgres.connection.inherited_sockets import is_intact, register_socket
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import SquidError

logger = redacting_logger(__name__)

T = TypeVar("T")
_Waiting = Generator[Any, Any, T]

Guard = Callable[[psycopg.Connection[Any]], None]
"""Bounds all waits of a connection from now on."""

# A session that works on a statement is active and does not wait for its client; one whose state we may not see might.
# A session that is younger than our wait may be another one with the same process id: it is not terminated.
_PROBE = """WITH session AS (SELECT pid, state IS NULL OR state = 'disabled'
        OR state = 'active' AND wait_event_type IS DISTINCT FROM 'Client' AS works,
        least(xact_start, query_start) < clock_timestamp() - make_interval(secs => %(silent)s) AS as_long,
        backend_start < clock_timestamp() - make_interval(secs => %(silent)s) AS ours
    FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = session_user)
SELECT pg_backend_pid(),
    (SELECT works FROM session WHERE pid = %(pid)s),
    (SELECT ours FROM session WHERE pid = %(pid)s),
    EXISTS (SELECT FROM session WHERE works AND as_long)"""
_TERMINATE = "SELECT pg_terminate_backend(%(pid)s)"


class ProbeResult(Enum):
    """What the server does about a statement."""

    AT_WORK = "the server works on it"
    UNKNOWN = "the server answers, but does not tell"
    LOST = "the server does not work on it"
    UNREACHABLE = "the server cannot be reached"


class Watch:
    """Bounds the waits of an engine's connections. `connect` opens a connection whose waits the given guard bounds."""

    def __init__(self, connect: Callable[[Guard], psycopg.Connection[Any]], bounds: NetworkBounds) -> None:
        """Bind to the function that connects, without connecting."""
        self.bounds = bounds
        self._connect = connect

    def guard(self, connection: psycopg.Connection[Any]) -> None:
        """Bound all waits of a connection from now on."""
        _bound(connection, lambda guarded: _Silence(self, guarded))

    def probe(self, connection: psycopg.Connection[Any], silent_seconds: float, *, terminate: bool) -> ProbeResult:
        """Return what the server does about a connection; `terminate` a session that does not work for it."""
        try:
            with closing(self._connect(deadline(self.bounds.probe))) as other:
                other.autocommit = True
                pid = connection.info.backend_pid
                values = {"pid": pid, "silent": silent_seconds}
                row = other.execute(_PROBE, values).fetchone()
                assert row is not None  # noqa: S101  an aggregate
                if row[0] != other.info.backend_pid:  # a pooler: neither the sessions nor their process ids are ours
                    return ProbeResult.AT_WORK if row[3] else ProbeResult.LOST
                if row[1]:
                    return ProbeResult.AT_WORK
                if terminate and row[2]:  # it may hold locks, and may still receive our statement
                    other.execute(_TERMINATE, values)
                return ProbeResult.LOST
        except (psycopg.Error, SquidError) as error:
            # Too many connections, or just starting: the server is up, and may work on it.
            return ProbeResult.UNKNOWN if "FATAL" in str(error) else ProbeResult.UNREACHABLE


def deadline(seconds: float) -> Guard:
    """Return a guard that ends all waits of a connection that many seconds after it was set."""

    def guard(connection: psycopg.Connection[Any]) -> None:
        ends_at = monotonic() + seconds
        _bound(connection, lambda guarded: _Deadline(guarded, ends_at, seconds))

    return guard


class _New(threading.local):
    """The guard of the connections that a thread opens."""

    guard: Guard | None = None


_new = _New()


@contextmanager
def guarded_connecting(guard: Guard | None) -> Iterator[None]:
    """Guard the connections that this thread opens in a block, by engines passed to `guard_first_statements`."""
    former, _new.guard = _new.guard, guard
    try:
        yield
    finally:
        _new.guard = former


def guard_first_statements(engine: Engine) -> None:
    """Apply `guarded_connecting` to an engine's connections before their first statement, SQLAlchemy's own included."""
    if not event.contains(engine, "connect", _guard_new):
        event.listen(engine, "connect", _guard_new, insert=True)


def _guard_new(connection: object, _: object) -> None:
    if _new.guard is not None and isinstance(connection, psycopg.Connection):
        register_socket(connection)  # for `_finish`
        _new.guard(connection)


def unguard(connection: psycopg.Connection[Any]) -> None:
    """Remove the bounds on the waits of a connection."""
    vars(connection).pop("wait", None)


class _Silence:
    """How long a connection has received nothing, during one wait."""

    __slots__ = ("_connection", "_logged", "_pause", "_probe_at", "_received_at", "_suspected", "_watch")

    def __init__(self, watch: Watch, connection: psycopg.Connection[Any]) -> None:
        self._watch = watch
        self._connection = connection
        self._pause = watch.bounds.silence
        self._logged = False
        self.reset()

    def reset(self) -> None:
        """Reset the time without an answer: something was received."""
        self._suspected = False
        self._received_at = monotonic()
        self._probe_at = self._received_at + self._watch.bounds.silence

    def check(self) -> None:
        """Query the server by another connection, if it is time to. Raises `OperationalError` if it does not work."""
        began = monotonic()
        if began < self._probe_at or self._connection.pgconn.transaction_status != TransactionStatus.ACTIVE:
            return
        bounds = self._watch.bounds
        result = self._watch.probe(self._connection, began - self._received_at, terminate=self._suspected)
        at_work = result is ProbeResult.AT_WORK
        if result is ProbeResult.UNKNOWN:
            at_work = began - self._received_at < bounds.untold
        if not at_work:
            if self._suspected:
                self._give_up(result)
            self._suspected = True
            self._probe_at = monotonic() + bounds.confirmation
            return
        if not self._logged:
            logger.info("Postgres has not answered for %.1f s: %s", began - self._received_at, result.value)
        self._suspected, self._logged = False, True
        self._pause = min(2 * self._pause, max(bounds.silence, bounds.longest_pause))
        self._probe_at = monotonic() + self._pause

    def _give_up(self, result: ProbeResult) -> None:
        silent = monotonic() - self._received_at
        _finish(self._connection)
        logger.warning("a connection is given up: no answer from Postgres for %.1f s, %s", silent, result.value)
        raise psycopg.OperationalError(f"no answer for {silent:.1f} seconds: {result.value}")


class _Deadline:
    """The time at which all waits of a connection end."""

    __slots__ = ("_connection", "_ends_at", "_seconds")

    def __init__(self, connection: psycopg.Connection[Any], ends_at: float, seconds: float) -> None:
        self._connection = connection
        self._ends_at = ends_at
        self._seconds = seconds

    def reset(self) -> None:
        """Keep the deadline, which is that of the whole answer."""

    def check(self) -> None:
        if monotonic() > self._ends_at:
            _finish(self._connection)
            raise psycopg.OperationalError(f"no answer for {self._seconds:g} seconds")


def _finish(connection: psycopg.Connection[Any]) -> None:
    """Close a connection, unless its descriptor was reused meanwhile."""
    if is_intact(connection):
        connection.pgconn.finish()


def _bound(
    connection: psycopg.Connection[Any], begin: Callable[[psycopg.Connection[Any]], _Silence | _Deadline]
) -> None:
    """Bound each wait of a connection by what `begin` returns for it."""
    reference = ref(connection)  # an attribute of the connection must not keep it alive

    def wait(waiting: _Waiting[T], *arguments: Any, **options: Any) -> T:
        guarded = reference()
        assert guarded is not None  # noqa: S101  it is being used
        return type(guarded).wait(guarded, _watched(waiting, begin(guarded)), *arguments, **options)

    connection.wait = wait  # type: ignore[method-assign, assignment]


def _watched(waiting: _Waiting[T], watch: _Silence | _Deadline) -> _Waiting[T]:
    """Iterate what psycopg waits for, and check the bounds whenever nothing is received."""
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if ready:
                watch.reset()
            else:
                watch.check()
            wanted = waiting.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result
