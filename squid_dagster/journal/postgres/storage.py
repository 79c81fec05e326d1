"""`PostgresStorage`: facts are appended, and the live views updated, in one transaction and two round trips.

Implements the storage contract and the journal's clock. How a commit locks and writes is in `transaction.py`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any, LiteralString, TypeVar
from uuid import UUID, uuid4

import psycopg
from sqlalchemy import Engine, exc

from squid_dagster.journal.contract.clock import Clock
from squid_dagster.journal.contract.storage import (
    Append,
    Checkpoint,
    Verified,
    check_appends,
    check_checkpoint,
    check_commit_id,
    check_revision,
)
from squid_dagster.journal.network import NetworkBounds
from squid_dagster.journal.postgres.connection.failures import NotNew, retry_if_safe, translated
from squid_dagster.journal.postgres.connection.pool import (
    ConnectionPool,
    PgConnection,
    PooledConnection,
    make_engine,
    make_schema_engine,
    make_step_engine,
    make_watch,
)
from squid_dagster.journal.postgres.connection.sqlstates import CONFLICT, LOCK_TIMEOUT, NOT_NEW, TOO_MANY
from squid_dagster.journal.postgres.entry_reader import ENTRY, read_entries, utc
from squid_dagster.journal.postgres.schema import upgrade as migrate
from squid_dagster.journal.postgres.schema.names import DEFAULT_SCHEMA, VIEWS, check_schema_name, lock_number, statement
from squid_dagster.journal.postgres.schema.upgrade import missing
from squid_dagster.journal.postgres.transaction import FIND_COMMIT, GET_CHECKPOINTS, Transaction
from squid_dagster.journal.postgres.views.comparison import Instant
from squid_dagster.journal.postgres.views.folded_rows import forget_loose, forget_runs
from squid_dagster.journal.postgres.views.row_changes import LockTargets
from squid_dagster.protocol.argument_checks import checks_arguments, unchecked
from squid_dagster.protocol.codec import DEFAULT_MAX_FACT_BYTES
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import Conflict, InvalidArgument, SquidError, StorageUnavailable, ViewsMissing
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.threads import BACKLOG_THREAD

T = TypeVar("T")

_TIME_IS_KNOWN = 60.0  # seconds after which an observed time of the database is too old for an estimate


# journal_entries_thread
_READ: LiteralString = ENTRY + "WHERE thread = %s AND seq > %s ORDER BY seq LIMIT %s"
# journal_entries_pkey
_READ_BETWEEN: LiteralString = ENTRY + "WHERE position > %s AND position <= %s ORDER BY position LIMIT %s"
# journal_entries_run
_READ_RUN: LiteralString = (
    ENTRY + "WHERE run_id = %s AND position < coalesce(%s, 9223372036854775807) ORDER BY position"
)


_REVISION: LiteralString = "SELECT {schema}.revision_of(id, rev) FROM {schema}.journal_threads WHERE id = %s"
# A checkpoint beyond its thread, or not beyond the new one, is replaced.
_PUT_CHECKPOINT: LiteralString = """INSERT INTO {schema}.journal_checkpoints AS c (thread, rev, data, updated_at)
    VALUES (%s, %s, %s, clock_timestamp()) ON CONFLICT (thread) DO UPDATE
    SET rev = EXCLUDED.rev, data = EXCLUDED.data, updated_at = EXCLUDED.updated_at
    WHERE c.rev <= EXCLUDED.rev
       OR c.rev > coalesce(
        (SELECT {schema}.revision_of(id, rev) FROM {schema}.journal_threads WHERE id = c.thread), 0)"""
_RUNS_OF_THREAD: LiteralString = (
    "SELECT DISTINCT run_id FROM {schema}.journal_entries WHERE thread = %s AND run_id IS NOT NULL"
)
_DELETE_THREAD: tuple[LiteralString, ...] = (
    "ALTER TABLE {schema}.journal_entries DISABLE TRIGGER journal_entries_append_only",
    "DELETE FROM {schema}.journal_entries WHERE thread = %s",
    "DELETE FROM {schema}.journal_threads WHERE id = %s",
    "UPDATE {schema}.journal_commits SET receipt = (receipt::jsonb - %s)::json WHERE (receipt->>%s) IS NOT NULL",
    "DELETE FROM {schema}.journal_checkpoints WHERE thread = %s",
    "ALTER TABLE {schema}.journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only",
)
_DELETE_CHECKPOINT: LiteralString = "DELETE FROM {schema}.journal_checkpoints WHERE thread = %s"


@checks_arguments
class PostgresStorage:
    """A journal in one schema of a Postgres database. Safe between threads; one per process and database is enough."""

    atomic_across_threads = True

    def __init__(
        self,
        engine: Engine | str,
        schema: str = DEFAULT_SCHEMA,
        *,
        clock: Clock | None = None,
        max_fact_bytes: int = DEFAULT_MAX_FACT_BYTES,
        hold: timedelta = timedelta(seconds=30),
        bounds: NetworkBounds | None = None,
    ) -> None:
        """Bind to a database, without connecting. A `clock` replaces the database's own, for tests.

        A process that is suspended for `hold` in the middle of an append loses its locks, and repeats it afterwards.
        `bounds` are those of waits for the network; keepalives and timeouts in the URL take precedence.
        """
        self.engine = make_engine(engine, bounds=bounds) if isinstance(engine, str) else engine
        watch = make_watch(self.engine, bounds)
        self._pool = ConnectionPool(self.engine, watch)
        self._explain = partial(_explained, schema)
        self.step_engine = make_step_engine(self.engine, watch)
        self.schema_engine = make_schema_engine(self.engine, watch)
        self.schema = check_schema_name(schema)
        self.channel = f"squid_{self.schema}"  # of wakeups
        self.clock = clock
        self.max_fact_bytes = max_fact_bytes
        self.hold = hold
        self._observed: tuple[datetime, float] | None = None  # the database's time, and our monotonic time then

    def upgrade(self) -> int:
        """Create or upgrade the schema; return its version. Raises as `migrate.upgrade`, or `StorageUnavailable`."""
        return self._schema_work(migrate.upgrade)

    def check(self) -> int:
        """Return the schema's version if this code can use it. Raises as `migrate.check`, or `StorageUnavailable`."""
        return self._schema_work(migrate.check)

    def version(self) -> int | None:
        """Return the schema's version, None without a journal. Raises as `migrate.version`, or `StorageUnavailable`."""
        return self._schema_work(migrate.version)

    def _schema_work(self, work: Callable[[Engine, str], T]) -> T:
        def attempt() -> T:
            try:
                return work(self.schema_engine, self.schema)
            except (exc.SQLAlchemyError, psycopg.Error) as error:
                self.engine.dispose()
                raise translated(self.engine, error) from None

        return retry_if_safe(attempt)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()
        self.step_engine.dispose()

    def delete_thread(self, thread: str) -> None:
        """Delete one thread, its entries, its checkpoint, and its rows in the views, while writers wait.

        For tests and tools of the tables' owner: nothing else disables the append-only trigger.
        """
        retry_if_safe(lambda: self._delete_thread(thread))

    def _delete_thread(self, thread: str) -> None:
        with self.connection() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(self.schema, "gate"),))
            run_ids = [row[0] for row in connection.execute(self.sql(_RUNS_OF_THREAD), (thread,))]
            for text in _DELETE_THREAD:
                connection.execute(self.sql(text), (thread,) * text.count("%s"))
            forget_runs(connection, self.schema, run_ids)
            forget_loose(connection, self.schema)
            moment = Instant(connection, self.schema)
            for view_rows in (moment.expected(run_ids), moment.expected_loose()):
                view_rows.insert(connection, self.schema)

    def sql(self, text: LiteralString) -> bytes:
        """Fill the schema's name into a statement."""
        return statement(text, self.schema)

    def estimate_db_now(self) -> datetime | None:
        """Estimate the database's time, a moment late rather than early; None if it was not observed lately."""
        if self.clock is not None:
            return self.clock.now()
        if self._observed is None or (passed := monotonic() - self._observed[1]) > _TIME_IS_KNOWN:
            return None
        return self._observed[0] + timedelta(seconds=passed)

    def observe_db_time(self, time: str) -> datetime:
        """Record and return the time in a result of the database; or return that of the bound clock."""
        if self.clock is not None:
            return self.clock.now()
        now = utc(datetime.fromisoformat(time))
        self._observed = (now, monotonic())
        return now

    def observe_earlier_db_time(self, time: str) -> None:
        """Record a time that the database had some time before its result came, if it is later than our estimate."""
        estimate = self.estimate_db_now()
        if estimate is None or utc(datetime.fromisoformat(time)) > estimate:
            self.observe_db_time(time)

    @property
    def bound_now(self) -> datetime | None:
        """The time of the bound clock; None without one, where statements take the database's."""
        return self.clock.now() if self.clock is not None else None

    def now(self) -> datetime:
        """Return the database's time, or the bound clock's."""
        return self.clock.now() if self.clock is not None else utc(self.rows("SELECT clock_timestamp()")[0][0])

    def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
        """Write facts to one or more threads, as the contract says.

        A transaction that was rolled back, or whose answer was lost, is repeated under the same commit id, so that
        nothing is written twice.

        Raises:
            InvalidArgument: facts about cards, which have rules and a table of their own: see `Backlog`.
            StorageUnavailable: the database cannot be reached, or cannot write now: for example, another session has
                locked one of several runs. With a `commit_id` of your own, repeat it later.
            StorageRefused: the database refuses these facts.
            ViewsMissing: the live views are missing; `rebuild_views` restores them. Nothing was written.
        """
        check_commit_id(commit_id)
        verified = check_appends(appends, self.max_fact_bytes)
        if any(one.thread == BACKLOG_THREAD for one in verified):
            raise InvalidArgument("cards are changed by a Backlog, which keeps their table in step with their facts")
        targets, identity = LockTargets.of(verified), commit_id or uuid4()
        # While it waits for one of several runs, it holds the others: so it waits briefly and does not repeat.
        unless: tuple[str, ...] = (LOCK_TIMEOUT,) if len(targets.runs) > 1 else ()
        return retry_if_safe(lambda: self._commit(verified, targets, identity), unless)

    def _commit(self, verified: list[Verified], targets: LockTargets, commit_id: UUID) -> dict[str, int]:
        with self.transaction() as transaction:
            units = transaction.lock_group(targets) if len(targets.runs) > 1 else transaction.lock(targets)
            units.fold(verified)
            return transaction.write(verified, units.changes(), commit_id)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a transaction that locks, reads and writes once; unless `write` returns, it is rolled back."""
        with self.connection() as connection:
            yield Transaction(self, connection)

    @unchecked
    def join_transaction(self, connection: PgConnection) -> Transaction:
        """Join the transaction that is open on a connection; `write` commits all of it."""
        return Transaction(self, connection, joined=True)

    def connection(self) -> PooledConnection:
        """Return a connection in autocommit mode for a `with` block; its errors become those of the contract."""
        return self._pool.connection(self._explain)

    def append(self, thread: str, entries: Sequence[Fact], expected_rev: int | None = None) -> int:
        """Write facts to one thread, as the contract says."""
        return self.commit([Append(thread, entries, expected_rev)])[thread]

    def find_commit(self, commit_id: UUID) -> dict[str, int] | None:
        """Return the receipt of an earlier commit, if there was one."""
        row = self._one(FIND_COMMIT, commit_id)
        return json.loads(row[0]) if row is not None else None

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Return a thread's entries after a revision."""
        check_revision(after, "after")
        check_revision(limit, "limit")
        return self._entries(_READ, thread, after, limit)

    def revision(self, thread: str) -> int:
        """Return a thread's last sequence number."""
        row = self._one(_REVISION, thread)
        return int(row[0]) if row is not None else 0

    def cut(self, after: int = 0) -> int:
        """Return a position at or under which no entry can appear any more, as the contract says. Waits for no writer.

        On a standby, that is the one published last: see `publish_cut`.
        """
        return max(after, int(self.rows("SELECT {schema}.cut()")[0][0]))

    def publish_cut(self) -> int:
        """Record the current cut for readers on standbys, which cannot compute one; return it.

        Called by recovery, and by workers with each liveness report. Writes nothing if the cut has not moved.
        """
        return int(self.rows("SELECT {schema}.publish_cut()")[0][0])

    def read_between(self, after: int, upto: int, limit: int | None = None) -> list[Entry]:
        """Return entries between two cuts."""
        check_revision(limit, "limit")
        return self._entries(_READ_BETWEEN, after, upto, limit)

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        """Return all facts of one run, by position."""
        return self._entries(_READ_RUN, run_id, before)

    def put_checkpoint(self, thread: str, revision: int, data: str) -> bool:
        """Store a checkpoint, unless there is a newer valid one."""
        check_checkpoint(revision, data)
        return self.change(_PUT_CHECKPOINT, (thread, revision, data)) > 0

    def get_checkpoint(self, thread: str) -> Checkpoint | None:
        """Return the checkpoint, unless it is beyond the thread's revision."""
        row = self._one(GET_CHECKPOINTS, [thread])
        return Checkpoint(*row) if row is not None else None

    def delete_checkpoint(self, thread: str) -> None:
        """Delete the checkpoint."""
        self.change(_DELETE_CHECKPOINT, (thread,))

    def change(self, text: LiteralString, values: Sequence[object] | dict[str, Any]) -> int:
        """Execute one idempotent writing statement on a connection of its own; return the number of rows."""

        def change() -> int:
            with self.connection() as connection:
                return connection.execute(self.sql(text), values).rowcount

        return retry_if_safe(change)

    def _one(self, text: LiteralString, *values: object) -> tuple[Any, ...] | None:
        return next(iter(self.rows(text, *values)), None)

    def _entries(self, text: LiteralString, *values: object) -> list[Entry]:
        return read_entries(self.rows(text, *values))

    def rows(self, text: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        """Execute one reading statement on a connection of its own, with values in order or in one mapping."""
        arguments = values[0] if len(values) == 1 and isinstance(values[0], dict) else values

        def read() -> list[tuple[Any, ...]]:
            with self.connection() as connection:
                return connection.execute(self.sql(text), arguments, binary=True).fetchall()

        return retry_if_safe(read)


def _explained(schema: str, error: psycopg.Error) -> SquidError | None:
    """Return the contract's error for one of the database, if there is one for it."""
    message = error.diag.message_primary or ""
    match error:
        case psycopg.errors.UndefinedTable():
            if any(f"{schema}.{view}" in message for view in VIEWS):
                return ViewsMissing(f"the live views are incomplete ({message}): call rebuild_views()")
            if f"{schema}.backlog" in message:
                return ViewsMissing(f"the cards are missing ({message}): run `squid backlog rebuild`")
            return missing(schema)
        case psycopg.errors.UndefinedFunction() | psycopg.errors.InvalidSchemaName():
            return missing(schema)
        case psycopg.errors.InsufficientPrivilege():
            return StorageUnavailable(
                f"the database does not let this user use schema {schema!r} ({message}): grant it the rights, or "
                "connect as the schema's owner"
            )
    if error.sqlstate == NOT_NEW:
        return NotNew(message)
    if error.sqlstate == CONFLICT and error.diag.message_detail:
        return Conflict(*json.loads(error.diag.message_detail))
    if error.sqlstate == TOO_MANY:
        return InvalidArgument(f"{message}: make several of it")
    return None
