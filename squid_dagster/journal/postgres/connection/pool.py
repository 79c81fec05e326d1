"""Connections: one SQLAlchemy pool per storage, with psycopg underneath.

Owns how a connection is made, checked, handed out and put back. Errors leave here as those of the contract.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from psycopg import Connection, IsolationLevel
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow
from psycopg.types.json import set_json_loads
from pydantic_core import from_json
from sqlalchemy import Engine, NullPool, Pool, create_engine, event, exc
from sqlalchemy.engine import make_url

from squid_dagster.journal.network import NetworkBounds, tcp_settings
from squid_dagster.journal.postgres.connection.failures import translated
from squid_dagster.journal.postgres.connection.inherited_sockets import (
    close_lost,
    is_intact,
    register_socket,
)
from squid_dagster.journal.postgres.connection.probe import (
    Guard,
    Watch,
    guard_first_statements,
    guarded_connecting,
    unguard,
)
from squid_dagster.journal.postgres.connection.session_settings import ISOLATION, StartupOptions, adjust, restore
from squid_dagster.journal.tiers import normalized_url
from squid_dagster.protocol.errors import SquidError

_startup: WeakKeyDictionary[Engine, StartupOptions] = WeakKeyDictionary()  # of the engines of `make_engine`

PgConnection = Connection[TupleRow]
Explainer = Callable[[psycopg.Error], SquidError | None]


def make_engine(url: str, pool_size: int = 5, bounds: NetworkBounds | None = None) -> Engine:
    """Create an engine for a Postgres URL, without connecting. Network parameters in the URL take precedence.

    Statements are never prepared by name, so that it works behind a transaction pooler.
    """
    parsed = make_url(normalized_url(url))
    if isinstance(password := parsed.query.get("password"), str):
        # In the place where SQLAlchemy hides it.
        parsed = parsed.difference_update_query(["password"]).set(password=password)
    settings = {"application_name": "squid_dagster", **tcp_settings(bounds or NetworkBounds())}
    engine = create_engine(
        parsed,
        pool_size=pool_size,
        max_overflow=pool_size,
        hide_parameters=True,
        connect_args={
            "prepare_threshold": None,
            **{name: value for name, value in settings.items() if name not in parsed.query},
        },
    )
    event.listen(engine, "connect", lambda connection, _: set_json_loads(from_json, connection))
    guard_first_statements(engine)
    _startup[engine] = StartupOptions(engine)
    return engine


def make_watch(engine: Engine, bounds: NetworkBounds | None = None) -> Watch:
    """Create what bounds the waits of an engine's connections; its probes connect as the engine does."""
    guard_first_statements(engine)
    return Watch(partial(connect, engine), bounds or NetworkBounds())


def make_step_engine(engine: Engine, watch: Watch) -> Engine:
    """Create an engine for steps, which keep connections for long: however many, the other engine's pool stays free.

    Its connections are made like the other engine's, watched, and tested before use. Their SQL is not ours, so they
    have the defaults of their role; but for the isolation level and the encoding, which our SQL relies on.
    """
    return create_engine(
        engine.url,
        creator=partial(_connect_for_steps, engine, watch),
        isolation_level="READ COMMITTED",
        pool_size=5,
        max_overflow=-1,
        pool_pre_ping=True,
        hide_parameters=True,
    )


def make_schema_engine(engine: Engine, watch: Watch) -> Engine:
    """Create an engine for work on the schema: connections made like the other engine's, watched, and not pooled."""
    schema_engine: Engine = create_engine(
        engine.url,
        creator=partial(connect, engine, watch.guard),
        isolation_level="READ COMMITTED",
        poolclass=NullPool,
        hide_parameters=True,
    )
    return schema_engine


def connect(engine: Engine, guard: Guard | None = None) -> PgConnection:
    """Open a connection as the engine does, outside its pool; `guard` bounds all its waits.

    Raises:
        StorageUnavailable: the database cannot be reached.
    """
    with _connecting(engine, guard):
        pooled = engine.pool.recreate().connect()
    connection: Any = pooled.driver_connection  # detaching removes the reference
    pooled.detach()
    assert isinstance(connection, psycopg.Connection)  # noqa: S101  no other driver is supported
    register_socket(connection)
    return connection


@contextmanager
def _connecting(engine: Engine, guard: Guard | None) -> Iterator[None]:
    """Guard the connections that are opened in a block; raise their errors as those of the contract."""
    try:
        with guarded_connecting(guard):
            yield
    except (exc.SQLAlchemyError, psycopg.Error, OSError) as error:
        if isinstance(error, OSError) and error.errno is None:  # raised by a signal handler, such as a TimeoutError
            raise
        raise translated(engine, error) from None


def _connect_for_steps(engine: Engine, watch: Watch) -> PgConnection:
    startup = _startup.get(engine)
    with startup.left_out() if startup is not None else nullcontext():
        connection = connect(engine, watch.guard)
    try:
        connection.autocommit = True
        adjust(connection)
        connection.autocommit = False
    except psycopg.Error as error:
        connection.close()
        raise translated(engine, error, lost=True) from error
    return connection


class ConnectionPool:
    """Watched psycopg connections of an engine's pool, in autocommit mode; if one breaks, the pool starts anew."""

    def __init__(self, engine: Engine, watch: Watch | None = None) -> None:
        """Bind to an engine's pool."""
        self.engine = engine
        self._watch = watch or make_watch(engine)

    def connection(self, explain: Explainer | None = None) -> "PooledConnection":
        """Return a connection for a `with` block; `explain` may return a better error for what the database refuses."""
        return PooledConnection(self, explain)

    def close(self) -> None:
        """Close all idle connections. Those in use are closed when they are released."""
        self.engine.dispose()

    def acquire(self) -> "_Checkout":
        """Check a connection out of the pool. Raises `StorageUnavailable`."""
        pool = self.engine.pool
        proxied, connection = self._acquire_raw()
        while not is_intact(connection):
            proxied.detach()
            close_lost(connection, proxied)
            proxied, connection = self._acquire_raw()
        checkout = _Checkout(pool, proxied, connection, connection.autocommit, connection.isolation_level)
        self._watch.guard(connection)
        try:
            connection.autocommit = True
            connection.isolation_level = ISOLATION
            connection.prepare_threshold = None
            former = adjust(connection)
        except psycopg.Error as error:
            lost = connection.closed
            self.release(checkout)
            raise translated(self.engine, error, lost=lost) from error
        return checkout._replace(former=former) if former else checkout

    def _acquire_raw(self) -> tuple[Any, Any]:
        with _connecting(self.engine, self._watch.guard):
            proxied = self.engine.raw_connection()
        connection: Any = proxied.driver_connection
        register_socket(connection)
        return proxied, connection

    def release(self, checkout: "_Checkout") -> None:
        """Put a connection back into its pool."""
        if not is_intact(checkout.connection) and not close_lost(checkout.connection, checkout.proxied):
            checkout.proxied.detach()
            return
        _reset_and_release(self.engine, checkout)
        if self.engine.pool is not checkout.pool:
            checkout.pool.dispose()  # the engine has a new pool: nothing else closes what came back to the old one


class _Checkout(NamedTuple):
    """A connection that is out of its pool, with the state that it had there."""

    pool: Pool
    proxied: Any
    connection: PgConnection
    autocommit: bool
    isolation_level: IsolationLevel | None
    former: Mapping[str, str] = MappingProxyType({})  # the values of settings that were changed


class PooledConnection:
    """A connection for a `with` block, which repeats nothing: see `retry_if_safe`.

    Raises:
        StorageUnavailable: the database cannot be reached or cannot do this now, or the connection broke on the way.
        StorageRefused: the database refuses what it was asked.
    """

    __slots__ = ("_checkout", "_explain", "_handled", "_pool")

    def __init__(self, pool: ConnectionPool, explain: Explainer | None) -> None:
        """Use `ConnectionPool.connection`."""
        self._pool = pool
        self._explain = explain
        self._checkout: _Checkout | None = None

    def __enter__(self) -> PgConnection:
        self._handled = sys.exception()
        self._checkout = self._pool.acquire()
        return self._checkout.connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        checkout, self._checkout = self._checkout, None
        assert checkout is not None  # noqa: S101  entered
        connection = checkout.connection
        try:
            if isinstance(error, psycopg.Error):
                if (explained := self._explained(error)) is not None:
                    raise explained from None
                lost = connection.broken or connection.closed or not is_intact(connection)
                raise translated(self._pool.engine, error, lost=lost) from error
            if isinstance(error, OSError) and not is_intact(connection):
                # psycopg waited for a descriptor that other code has closed. Any other one is the caller's own.
                raise translated(self._pool.engine, error, lost=True) from error
        finally:
            if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                # This server is not the primary any more, or was made read-only: a new session may reach another one.
                connection.close()
            self._pool.release(checkout)

    def _explained(self, error: psycopg.Error) -> BaseException | None:
        """Return the contract's own error, or what a signal raised meanwhile, if it is one of these."""
        explained = self._explain(error) if self._explain is not None else None
        return _interruption(error, self._handled) if explained is None else explained


def pooled_connection(engine: Engine) -> PooledConnection:
    """Return a connection of an engine's pool for a `with` block."""
    return ConnectionPool(engine).connection()


def _interruption(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """Return what a signal handler raised while we waited; psycopg raises an error of its own over it.

    An error that the caller was already handling is no interruption. Neither is an error of the system about the
    socket, such as EBADF after a step has closed it: by that, the connection is lost.
    """
    context = error.__context__
    while context is not None and context is not handled and _is_io_error(context):
        context = context.__context__
    return None if context is handled else context


def _is_io_error(error: BaseException) -> bool:
    """Return whether an error is of psycopg or of the system; what a signal handler raises has no error number."""
    return isinstance(error, psycopg.Error) or (isinstance(error, OSError) and error.errno is not None)


def _reset_and_release(engine: Engine, checkout: _Checkout) -> None:
    proxied, connection = checkout.proxied, checkout.connection
    try:
        if connection.broken or connection.closed:
            # Most likely the server restarted: all pooled connections are broken.
            proxied.invalidate()
            engine.dispose()
            return
        if connection.info.transaction_status == TransactionStatus.ACTIVE:
            # A signal interrupted the wait for a statement that still runs: it must not commit later.
            connection.cancel_safe(timeout=5)
            proxied.invalidate()
            return
        connection.rollback()
        restore(connection, checkout.former)
        connection.isolation_level = checkout.isolation_level
        connection.autocommit = checkout.autocommit
    except psycopg.Error:  # interrupted by a signal in the middle of a message
        proxied.invalidate()
    finally:
        unguard(connection)
        proxied.close()
