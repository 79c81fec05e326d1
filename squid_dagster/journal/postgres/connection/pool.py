"""Connections: one SQLAlchemy pool per storage, psycopg underneath, and errors that say what to do."""

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
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
    guarding_new,
    unguard,
)
from squid_dagster.journal.postgres.connection.session_settings import ISOLATION, StartupOptions, adjust, restore
from squid_dagster.journal.tiers import normalized_url
from squid_dagster.protocol.errors import SquidError

_startup: WeakKeyDictionary[Engine, StartupOptions] = WeakKeyDictionary()  # of engines that were made here

PgConnection = Connection[TupleRow]
Explainer = Callable[[psycopg.Error], SquidError | None]


def make_engine(url: str, pool_size: int = 5, bounds: NetworkBounds | None = None) -> Engine:
    """Make an engine for a Postgres URL; nothing is connected yet. What the URL says of the network stands.

    Statements are never prepared by name, so that it works behind a transaction pooler.
    """
    parsed = make_url(normalized_url(url))
    if isinstance(password := parsed.query.get("password"), str):
        # Where SQLAlchemy knows it for one, and hides it.
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
    """Make what bounds the waits of an engine's connections; its probes connect as the engine does."""
    guard_first_statements(engine)
    return Watch(partial(connect, engine), bounds or NetworkBounds())


def make_step_engine(engine: Engine, watch: Watch) -> Engine:
    """Make an engine for those who keep a connection for long: however many they are, the other has its own left.

    Its connections are made as the other's are, watched, and tried before they are handed out. They have the defaults
    of their role, since their SQL is not ours, but for the isolation level and the encoding, that ours relies on.
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
    """Make an engine for work on the schema, whose connections are made as the other's are, watched, and not kept."""
    made: Engine = create_engine(
        engine.url,
        creator=partial(connect, engine, watch.guard),
        isolation_level="READ COMMITTED",
        poolclass=NullPool,
        hide_parameters=True,
    )
    return made


def connect(engine: Engine, guard: Guard | None = None) -> PgConnection:
    """Make a new connection as the engine makes them, that its pool knows nothing of; `guard` bounds all its waits.

    Raises:
        StorageUnavailable: the database cannot be reached.
    """
    try:
        with guarding_new(guard):
            made = engine.pool.recreate().connect()
    except (exc.SQLAlchemyError, psycopg.Error, OSError) as error:
        if isinstance(error, OSError) and error.errno is None:  # of a signal's handler, such as a TimeoutError
            raise
        raise translated(engine, error) from None
    connection: Any = made.driver_connection  # before it is detached: afterwards nobody knows it
    made.detach()
    assert isinstance(connection, psycopg.Connection)  # noqa: S101  no other driver is supported
    register_socket(connection)
    return connection


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
    """Lends watched psycopg connections of an engine's pool, in autocommit mode; if one broke, the pool starts anew."""

    def __init__(self, engine: Engine, watch: Watch | None = None) -> None:
        """Lend from an engine's pool."""
        self.engine = engine
        self._watch = watch or make_watch(engine)

    def lend(self, explain: Explainer | None = None) -> "PooledConnection":
        """Lend one for a `with` block; `explain` may know better words for what the database refuses there."""
        return PooledConnection(self, explain)

    def close(self) -> None:
        """Give all connections back to the database. What is lent comes back later, and is closed then."""
        self.engine.dispose()

    def take(self) -> "_Lent":
        """Give a connection. Raises `StorageUnavailable`."""
        pool = self.engine.pool
        fairy, connection = self._take_pooled()
        while not is_intact(connection):
            fairy.detach()
            close_lost(connection, fairy)
            fairy, connection = self._take_pooled()
        lent = _Lent(pool, fairy, connection, connection.autocommit, connection.isolation_level)
        self._watch.guard(connection)
        try:
            connection.autocommit = True
            connection.isolation_level = ISOLATION
            connection.prepare_threshold = None
            former = adjust(connection)
        except psycopg.Error as error:
            lost = connection.closed
            self.give_back(lent)
            raise translated(self.engine, error, lost=lost) from error
        return lent._replace(former=former) if former else lent

    def _take_pooled(self) -> tuple[Any, Any]:
        try:
            with guarding_new(self._watch.guard):
                fairy = self.engine.raw_connection()
        except (exc.SQLAlchemyError, psycopg.Error, OSError) as error:
            if isinstance(error, OSError) and error.errno is None:  # of a signal's handler, such as a TimeoutError
                raise
            raise translated(self.engine, error) from None
        connection: Any = fairy.driver_connection
        register_socket(connection)
        return fairy, connection

    def give_back(self, lent: "_Lent") -> None:
        """Give a connection back to its pool."""
        if not is_intact(lent.connection) and not close_lost(lent.connection, lent.fairy):
            lent.fairy.detach()
            return
        _give_back(self.engine, lent)
        if self.engine.pool is not lent.pool:
            lent.pool.dispose()  # the engine began anew meanwhile: nobody else closes what came back to the old pool


class _Lent(NamedTuple):
    """A connection that is out of its pool, and how it was found there."""

    pool: Pool
    fairy: Any
    connection: PgConnection
    autocommit: bool
    isolation_level: IsolationLevel | None
    former: Mapping[str, str] = MappingProxyType({})  # settings that were otherwise


class PooledConnection:
    """A connection for a `with` block.

    Nothing is repeated here: see `retry_if_safe`.

    Raises:
        StorageUnavailable: the database cannot be reached or cannot do this now, or the connection broke on the way.
        StorageRefused: the database refuses what it was asked.
    """

    __slots__ = ("_explain", "_handled", "_lender", "_lent")

    def __init__(self, lender: ConnectionPool, explain: Explainer | None) -> None:
        """Use `ConnectionPool.lend`."""
        self._lender = lender
        self._explain = explain
        self._lent: _Lent | None = None

    def __enter__(self) -> PgConnection:
        self._handled = sys.exception()
        self._lent = self._lender.take()
        return self._lent.connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        lent, self._lent = self._lent, None
        assert lent is not None  # noqa: S101  entered
        try:
            if isinstance(error, psycopg.Error):
                if (known := self._known(error)) is not None:
                    raise known from None
                lost = lent.connection.broken or lent.connection.closed or not is_intact(lent.connection)
                raise translated(self._lender.engine, error, lost=lost) from error
            if isinstance(error, OSError) and not is_intact(lent.connection):
                # psycopg waited for a descriptor that was closed behind its back. Any other one is the caller's own.
                raise translated(self._lender.engine, error, lost=True) from error
        finally:
            if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                # This server is not the primary any more, or was made read-only: other sessions may find another one.
                lent.connection.close()
            self._lender.give_back(lent)

    def _known(self, error: psycopg.Error) -> BaseException | None:
        """Return the contract's own error, or what a signal raised meanwhile, if it is one of these."""
        explained = self._explain(error) if self._explain is not None else None
        return _interruption(error, self._handled) if explained is None else explained


def borrow(engine: Engine) -> PooledConnection:
    """Lend a connection of an engine."""
    return ConnectionPool(engine).lend()


def _interruption(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """Return what a signal raised while we waited; psycopg, busy with its pipeline, answers with an error of its own.

    What the caller was already handling when it came to us is no interruption. Neither is what the system said of the
    socket, such as EBADF after a step has closed it: the connection is lost by that.
    """
    context = error.__context__
    while context is not None and context is not handled and _is_of_the_wait(context):
        context = context.__context__
    return None if context is handled else context


def _is_of_the_wait(error: BaseException) -> bool:
    """Return whether an error is of psycopg or of the system; what a signal's handler raises has no error number."""
    return isinstance(error, psycopg.Error) or (isinstance(error, OSError) and error.errno is not None)


def _give_back(engine: Engine, lent: _Lent) -> None:
    fairy, connection = lent.fairy, lent.connection
    try:
        if connection.broken or connection.closed:
            # The server restarted, most likely: none of the pooled connections is worth trying.
            fairy.invalidate()
            engine.dispose()
            return
        if connection.info.transaction_status == TransactionStatus.ACTIVE:
            # A signal took us away from a statement that is still running: it must not commit behind our back.
            connection.cancel_safe(timeout=5)
            fairy.invalidate()
            return
        connection.rollback()
        restore(connection, lent.former)
        connection.isolation_level = lent.isolation_level
        connection.autocommit = lent.autocommit
    except psycopg.Error:  # left in the middle of something by a signal
        fairy.invalidate()
    finally:
        unguard(connection)
        fairy.close()
