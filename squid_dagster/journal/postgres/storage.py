"""The journal in Postgres: facts are appended, and the live views kept, in one transaction and two round trips."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import lru_cache, partial
from time import monotonic
from typing import Any, LiteralString, TypeVar
from uuid import UUID, uuid4

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow
from sqlalchemy import Engine, exc

from squid_dagster.journal.clock import Clock
from squid_dagster.journal.dispatch import ClaimRef
from squid_dagster.journal.postgres import migrate
from squid_dagster.journal.postgres.connection import (
    Lender,
    Loan,
    PgConnection,
    make_engine,
    make_step_engine,
    unavailable,
)
from squid_dagster.journal.postgres.deletion import delete_thread
from squid_dagster.journal.postgres.migrate import missing
from squid_dagster.journal.postgres.reading import ENTRY, read_entries, utc
from squid_dagster.journal.postgres.schema import DEFAULT_SCHEMA, VIEWS, check_schema_name, statement
from squid_dagster.journal.postgres.stencil import NewRuns
from squid_dagster.journal.postgres.units import Touched, Units, entries_json
from squid_dagster.journal.storage import (
    Append,
    Checkpoint,
    Verified,
    check_appends,
    check_checkpoint,
    check_commit_id,
    check_revision,
)
from squid_dagster.protocol.codec import DEFAULT_MAX_FACT_BYTES
from squid_dagster.protocol.entries import Entry, run_of
from squid_dagster.protocol.errors import Conflict, InvalidArgument, SquidError, StorageUnavailable, ViewsMissing
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.threads import BACKLOG_THREAD
from squid_dagster.protocol.unit import RunUnit

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CONFLICT, _BEGIN_AGAIN, NOT_NEW = "SQ001", "SQ002", "SQ003"
_HEARD_OF_LATE = 60.0  # seconds after which the database is asked again what time it is
_TRIES = 20
_KEPT = 2  # connections at hand

_LOCK: LiteralString = """SELECT {schema}.lock_units(%s::int, %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::text[])"""
_BEGIN_AND_LOCK: LiteralString = "BEGIN; " + _LOCK
_BEGIN_AND_LOCK_CLAIMS: LiteralString = """BEGIN;
    SELECT {schema}.lock_claims(%s::int, %s::text[], %s::json, %s::timestamptz)"""
_BEGIN_NEW: LiteralString = "BEGIN; SELECT {schema}.lock_new(%s::text[], %s::timestamptz); "
_START: LiteralString = """BEGIN; SELECT {schema}.start_runs(%s::uuid, %s::text, %s::timestamptz, %s::boolean,
    %s::text[], %s::int, %s::int, %s::json, %s::json, %s::json); COMMIT"""
_SETTLE: LiteralString = "SELECT {schema}.settle_rows(%s::json, %s::json); "
_APPEND_AND_COMMIT: LiteralString = """SELECT {schema}.append_entries(%s::uuid, %s::text[], %s::bigint[], %s::int[],
    %s::json, %s::json, %s::json, %s::text[], %s::json, %s::json, %s::json); COMMIT"""

# Behind the commit and outside of it: inside, the global lock of NOTIFY would slow writers down.
_HINT: LiteralString = "; SELECT set_config('synchronous_commit', 'off', true)"
_HINT_ONE: LiteralString = ", pg_notify(%s, %s)"

# journal_entries_thread
_READ: LiteralString = ENTRY + "WHERE thread = %s AND seq > %s ORDER BY seq LIMIT %s"
# journal_entries_pkey
_READ_BETWEEN: LiteralString = ENTRY + "WHERE position > %s AND position <= %s ORDER BY position LIMIT %s"
# journal_entries_run
_READ_RUN: LiteralString = (
    ENTRY + "WHERE run_id = %s AND position < coalesce(%s, 9223372036854775807) ORDER BY position"
)

# Thread by thread and run by run: one list would be answered by a scan of the whole journal while that is short.
# journal_entries_thread
_READ_PLANS: LiteralString = "SELECT e.* FROM unnest(%s::text[]) t (id) CROSS JOIN LATERAL ("
_READ_PLANS += ENTRY + "WHERE thread = t.id AND type <> 'run_signal_received' ORDER BY seq OFFSET 0) e"
# journal_entries_run
_READ_RUNS: LiteralString = "SELECT e.* FROM unnest(%s::text[]) r (id) CROSS JOIN LATERAL ("
_READ_RUNS += ENTRY + "WHERE run_id = r.id ORDER BY position OFFSET 0) e"

_REVISION: LiteralString = "SELECT rev FROM {schema}.journal_threads WHERE id = %s"
_FIND_COMMIT: LiteralString = "SELECT receipt::text FROM {schema}.journal_commits WHERE id = %s"
_GET_CHECKPOINT: LiteralString = """SELECT c.rev, c.data::text FROM {schema}.journal_checkpoints c
    WHERE c.thread = %s AND c.rev <= coalesce((SELECT rev FROM {schema}.journal_threads WHERE id = c.thread), 0)"""
# One that claims more than its thread holds, or less than the new one, is replaced.
_PUT_CHECKPOINT: LiteralString = """INSERT INTO {schema}.journal_checkpoints AS c (thread, rev, data, updated_at)
    VALUES (%s, %s, %s, clock_timestamp()) ON CONFLICT (thread) DO UPDATE
    SET rev = EXCLUDED.rev, data = EXCLUDED.data, updated_at = EXCLUDED.updated_at
    WHERE c.rev <= EXCLUDED.rev
       OR c.rev > coalesce((SELECT rev FROM {schema}.journal_threads WHERE id = c.thread), 0)"""
_DELETE_CHECKPOINT: LiteralString = "DELETE FROM {schema}.journal_checkpoints WHERE thread = %s"


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
    ) -> None:
        """Bind to a database, without connecting. A `clock` replaces the database's own, for tests.

        A process that goes quiet for `hold` in the middle of an append loses its locks, and tries again when it wakes.
        """
        self.engine = make_engine(engine) if isinstance(engine, str) else engine
        # An engine that was handed over has rules of its own for connections at rest.
        self._lender = Lender(self.engine, keep=_KEPT if isinstance(engine, str) else 0)
        self._explain = partial(_explained, schema)
        self.step_engine = make_step_engine(self.engine)
        self.schema = check_schema_name(schema)
        self.channel = f"squid_{self.schema}"  # for hints about queues
        self.clock = clock
        self.max_fact_bytes = max_fact_bytes
        self.hold = hold
        self._heard: tuple[datetime, float] | None = None  # the database's time, and ours when it was told

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
                return work(self.engine, self.schema)
            except exc.OperationalError as error:
                self.engine.dispose()
                raise unavailable(self.engine, error) from None

        return persistently(attempt)

    def close(self) -> None:
        """Give all connections back to the database."""
        self._lender.close()
        self.step_engine.dispose()

    def delete_thread(self, thread: str) -> None:
        """Remove one thread, its entries, its checkpoint, and what the views know by it. For tests and tools."""

        def delete() -> None:
            with self.connection() as connection:
                delete_thread(connection, self.schema, thread)

        persistently(delete)

    def sql(self, text: LiteralString) -> bytes:
        """Fill the schema's name into a statement."""
        return statement(text, self.schema)

    def likely_now(self) -> datetime | None:
        """Tell what time the database is likely to have, a moment late rather than early; None when it is not known."""
        if self.clock is not None:
            return self.clock.now()
        if self._heard is None or (passed := monotonic() - self._heard[1]) > _HEARD_OF_LATE:
            return None
        return self._heard[0] + timedelta(seconds=passed)

    def hear_now(self, told: str) -> datetime:
        """Read the time from an answer of the database; the bound clock's, if there is one."""
        if self.clock is not None:
            return self.clock.now()
        now = utc(datetime.fromisoformat(told))
        self._heard = (now, monotonic())
        return now

    def now(self) -> datetime:
        """Tell the database's time, or the bound clock's."""
        return self.clock.now() if self.clock is not None else utc(self.rows("SELECT clock_timestamp()")[0][0])

    def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
        """Write facts to one or more threads, as the contract says.

        A lost connection is tried once more under the same commit id, so that nothing is written twice.

        Raises:
            InvalidArgument: facts about cards, which have rules and a table of their own: see `Backlog`.
            StorageUnavailable: the database cannot be reached. With a `commit_id` of your own, repeat it later.
            ViewsMissing: the live views are gone; `rebuild_views` brings them back. Nothing was written.
        """
        check_commit_id(commit_id)
        verified = check_appends(appends, self.max_fact_bytes)
        if any(one.thread == BACKLOG_THREAD for one in verified):
            raise InvalidArgument("cards are changed by a Backlog, which keeps their table in step with their facts")
        named = commit_id or uuid4()
        return persistently(lambda: self._commit(verified, named))

    def _commit(self, verified: list[Verified], commit_id: UUID) -> dict[str, int]:
        touched = Touched()
        for one in verified:
            for fact in one.facts:
                touched.add(fact)
        with self.transaction() as transaction:
            units = transaction.lock(touched)
            units.fold(verified)
            return transaction.write(verified, units.changes(), commit_id)

    @contextmanager
    def transaction(self) -> Iterator["Transaction"]:
        """Open a transaction that locks, reads and writes once; it is rolled back unless `write` came to its end."""
        with self.connection() as connection:
            yield Transaction(self, connection)

    def join_transaction(self, connection: PgConnection) -> "Transaction":
        """Take part in the transaction that is open on a connection; `write` commits all of it."""
        return Transaction(self, connection, joined=True)

    def connection(self) -> Loan:
        """Lend a connection in autocommit mode; what the database refuses is told in the contract's errors."""
        return self._lender.lend(self._explain)

    def append(self, thread: str, entries: Sequence[Fact], expected_rev: int | None = None) -> int:
        """Write facts to one thread, as the contract says."""
        return self.commit([Append(thread, entries, expected_rev)])[thread]

    def find_commit(self, commit_id: UUID) -> dict[str, int] | None:
        """Give the answer of an earlier commit, if there was one."""
        row = self._one(_FIND_COMMIT, commit_id)
        return json.loads(row[0]) if row is not None else None

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Give a thread's entries after a revision."""
        check_revision(after, "after")
        check_revision(limit, "limit")
        return self._entries(_READ, thread, after, limit)

    def revision(self, thread: str) -> int:
        """Give a thread's last sequence number."""
        row = self._one(_REVISION, thread)
        return int(row[0]) if row is not None else 0

    def cut(self, after: int = 0) -> int:
        """Give a position up to which no entry can appear any more. Waits for nobody.

        A writer that is slow to announce itself names a position that was passed meanwhile; hence `after`.
        """
        return max(after, int(self.rows("SELECT {schema}.cut()")[0][0]))

    def read_between(self, after: int, upto: int, limit: int | None = None) -> list[Entry]:
        """Give entries between two cuts."""
        check_revision(limit, "limit")
        return self._entries(_READ_BETWEEN, after, upto, limit)

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        """Give all facts of one run, by position."""
        return self._entries(_READ_RUN, run_id, before)

    def put_checkpoint(self, thread: str, revision: int, data: str) -> bool:
        """Keep a projection, unless a newer valid one is there."""
        check_checkpoint(revision, data)
        return self._change(_PUT_CHECKPOINT, thread, revision, data) > 0

    def get_checkpoint(self, thread: str) -> Checkpoint | None:
        """Give the checkpoint, unless it claims more than the thread holds."""
        row = self._one(_GET_CHECKPOINT, thread)
        return Checkpoint(thread, row[0], row[1]) if row is not None else None

    def delete_checkpoint(self, thread: str) -> None:
        """Forget the checkpoint."""
        self._change(_DELETE_CHECKPOINT, thread)

    def _change(self, text: LiteralString, *values: object) -> int:
        def change() -> int:
            with self.connection() as connection:
                return connection.execute(self.sql(text), values).rowcount

        return persistently(change)

    def _one(self, text: LiteralString, *values: object) -> tuple[Any, ...] | None:
        return next(iter(self.rows(text, *values)), None)

    def _entries(self, text: LiteralString, *values: object) -> list[Entry]:
        return read_entries(self.rows(text, *values))

    def rows(self, text: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        """Run one reading statement on a connection of its own, with values in order or one mapping of them."""
        given = values[0] if len(values) == 1 and isinstance(values[0], dict) else values

        def read() -> list[tuple[Any, ...]]:
            with self.connection() as connection:
                return connection.execute(self.sql(text), given, binary=True).fetchall()

        return persistently(read)


class Transaction:
    """One append in the making: `lock` first, then read what planning needs, then `write`, once.

    Each half is one message of the simple protocol. A pipeline would take as few round trips, but after one Postgres
    forgets the timeout that ends a session gone quiet, and psycopg waits for its end whatever signal comes in.
    """

    def __init__(self, storage: PostgresStorage, connection: PgConnection, *, joined: bool = False) -> None:
        """Begin when the first statement goes out; `joined`, one is open already."""
        self._storage = storage
        self._connection = connection
        self._joined = joined

    def lock(self, touched: Touched) -> Units:
        """Lock and load what the facts touch, in the one lock order."""
        cursor = psycopg.ClientCursor(self._connection)
        if self._joined:
            cursor.execute(self._storage.sql(_LOCK), self._arguments(touched))
        else:
            cursor.execute(self._storage.sql(_BEGIN_AND_LOCK), self._arguments(touched))
            cursor.nextset()
        return self._units(cursor, touched)

    def lock_claims(self, refs: Sequence[ClaimRef]) -> tuple[datetime, dict[int, bool]]:
        """Lock runs by their claims, one of a run, in the order of run ids; give the time, and which claims stand.

        These are by place; the value tells whether no other attempt of the run is open.
        """
        hold, clock = int(self._storage.hold / timedelta(milliseconds=1)), self._storage.clock
        cursor = psycopg.ClientCursor(self._connection)
        values = (hold, names(ref.run_id for ref in refs), claims_json(refs), clock.now() if clock else None)
        cursor.execute(self._storage.sql(_BEGIN_AND_LOCK_CLAIMS), values)
        cursor.nextset()
        answer = _answer(cursor)
        return self._storage.hear_now(answer["now"]), {i - 1: alone for i, alone in answer["held"] or ()}

    def lock_more(self, units: Units, touched: Touched) -> None:
        """Lock and load more of runs that are locked already; whoever else wants their attempts waits for the run."""
        missing = touched.without(units)
        if missing:
            cursor = self._connection.execute(self._storage.sql(_LOCK), self._arguments(missing))
            units.merge(self._units(cursor, missing))

    def _arguments(self, touched: Touched) -> tuple[object, ...]:
        return (int(self._storage.hold / timedelta(milliseconds=1)), *touched.arguments())

    def _units(self, cursor: psycopg.Cursor[TupleRow], touched: Touched) -> Units:
        answer = _answer(cursor)
        return Units.read(answer, touched, self._storage.hear_now(answer["now"]))

    def read_plans(self, threads: Iterable[str]) -> dict[str, list[Entry]]:
        """Read run threads, as they stand under the locks, without the commands: nothing is planned by those."""
        found: dict[str, list[Entry]] = {thread: [] for thread in threads}
        rows = self._connection.execute(self._storage.sql(_READ_PLANS), (list(found),), binary=True).fetchall()
        for entry in read_entries(rows):
            found[entry.thread].append(entry)
        return found

    def read_runs(self, run_ids: Iterable[str]) -> dict[str, RunUnit]:
        """Fold all facts of runs, as they stand under the locks."""
        found: dict[str, list[Entry]] = {run_id: [] for run_id in run_ids}
        rows = self._connection.execute(self._storage.sql(_READ_RUNS), (list(found),), binary=True).fetchall()
        for entry in read_entries(rows):
            run_id = run_of(entry.fact)
            if run_id in found:
                found[run_id].append(entry)
        return {run_id: RunUnit.fold(entries) for run_id, entries in found.items()}

    def committed(self, commit_id: UUID) -> bool:
        """Tell whether a commit of this id is on record."""
        return self._connection.execute(self._storage.sql(_FIND_COMMIT), (commit_id,)).rowcount > 0

    def write(
        self,
        verified: Sequence[Verified],
        changes: tuple[Any, ...],
        commit_id: UUID | None,
        settled: tuple[str, str | None] | None = None,
        hints: Sequence[str] = (),
    ) -> dict[str, int]:
        """Write facts and rows, and commit: whole rows, and with `settled` only what completions change in them.

        Hints about these queues go out right behind the commit.
        """
        before: _Part = (_SETTLE, settled) if settled is not None else _NOTHING
        return self._write(before, 0 if settled is None else 1, verified, changes, commit_id, hints)

    def write_new(
        self,
        run_ids: Sequence[str],
        now: datetime,
        verified: Sequence[Verified],
        changes: tuple[Any, ...],
        commit_id: UUID,
        hints: Sequence[str],
    ) -> None:
        """Lock runs that are new at that time, write and commit, all in one message.

        Raises:
            psycopg.Error: with the state `NOT_NEW` when a run is there, or the database has another time.
        """
        time = None if self._storage.clock is not None else now
        self._write((_BEGIN_NEW, (names(sorted(run_ids)), time)), 2, verified, changes, commit_id, hints)

    def start(self, new: NewRuns, now: datetime, commit_id: UUID) -> None:
        """Write new runs and commit, with a hint behind it, all in one message.

        Raises:
            psycopg.Error: as `write_new`.
        """
        virtual = self._storage.clock is not None
        shape = names(new.run_ids), new.queue_facts, new.run_facts
        values = (commit_id, new.queue, now, virtual, *shape, new.entries, new.rows, new.attempts)
        found = self._send((_START, values), 1, commit_id, [new.queue] if new.attempts else [])
        if not found.startswith("{"):  # the receipt, when the hint was lost
            self._storage.hear_now(found)

    def _write(
        self,
        before: "_Part",
        skipped: int,
        verified: Sequence[Verified],
        changes: tuple[Any, ...],
        commit_id: UUID | None,
        hints: Sequence[str],
    ) -> dict[str, int]:
        ordered = sorted(verified, key=lambda one: one.thread)
        place = {one.thread: i for i, one in enumerate(ordered, 1)}
        values = (
            commit_id,
            names(one.thread for one in ordered),
            _numbers(one.expected_rev for one in ordered),
            _numbers(len(one.encoded) for one in ordered),
            entries_json(verified, place),
            *changes,
        )
        found = self._send((before[0] + _APPEND_AND_COMMIT, (*before[1], *values)), skipped, commit_id, hints)
        receipt: dict[str, int] = found if isinstance(found, dict) else json.loads(found)
        return receipt

    def _send(self, part: "_Part", skipped: int, commit_id: UUID | None, hints: Sequence[str]) -> Any:
        """Send statements that end with a commit, and hints behind it; give the answer to one of them.

        When only the hints could not be sent, that is the receipt of the commit, as a text.
        """
        behind: _Part = _NOTHING
        for i, queue in enumerate(hints):
            first: LiteralString = "" if i else _HINT
            behind = behind[0] + first + _HINT_ONE, (*behind[1], self._storage.channel, queue)
        cursor = psycopg.ClientCursor(self._connection)
        try:
            cursor.execute(self._storage.sql(part[0] + behind[0]), (*part[1], *behind[1]))
            for _ in range(skipped):
                cursor.nextset()
        except psycopg.Error as error:
            # A hint that cannot be sent (the queue of NOTIFY may be full) must not make a commit look like none.
            idle = not self._connection.broken and self._connection.info.transaction_status == TransactionStatus.IDLE
            if not (hints and idle) or not cursor.execute(self._storage.sql(_FIND_COMMIT), (commit_id,)).rowcount:
                raise
            logger.warning("cannot notify workers, who will find their work by polling: %s", error)
        return _answer(cursor)


_Part = tuple[LiteralString, tuple[object, ...]]
_NOTHING: _Part = ("", ())


def names(names: Iterable[str]) -> str:
    """Write names that may stand in a thread id as an array: there is nothing in them that needs more than quotes.

    psycopg's own arrays, which take any text, take ten times as long.
    """
    return "{" + ",".join([f'"{name}"' for name in names]) + "}"


@lru_cache(maxsize=64)
def texts(texts: frozenset[str]) -> str:
    """Write any texts as an array."""
    return names(text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)


def claims_json(refs: Iterable[ClaimRef]) -> str:
    """Write claims as `lock_claims` takes them."""
    return json.dumps([[ref.runnable_key, ref.claim_id, ref.token_hash, ref.queue] for ref in refs])


def _numbers(numbers: Iterable[int | None]) -> str:
    return "{" + ",".join(["NULL" if number is None else str(number) for number in numbers]) + "}"


def _answer(cursor: psycopg.Cursor[TupleRow]) -> Any:
    """Give the one value of a function call."""
    row = cursor.fetchone()
    assert row is not None  # noqa: S101  a function call always answers
    return row[0]


def persistently(attempt: Callable[[], T]) -> T:
    """Try again when the connection was lost, or when the database chose us to end a deadlock with a foreign lock.

    Our own statements keep one lock order; somebody who drops a view by hand does not. Only for what is safe to repeat.
    """
    for tries_left in range(_TRIES, -1, -1):
        try:
            return attempt()
        except StorageUnavailable:
            if tries_left < _TRIES:
                raise
        except psycopg.errors.DeadlockDetected as error:
            if not tries_left:
                raise
            logger.warning("ended a deadlock, trying again: %s", error.diag.message_detail)
        except psycopg.Error as error:
            # Somebody was first with this thread, or with this commit id, whose answer can be had now.
            again = error.sqlstate == _BEGIN_AGAIN or error.diag.constraint_name == "journal_commits_pkey"
            if not again or not tries_left:
                raise
    raise AssertionError  # the last try returns or raises


def _explained(schema: str, error: psycopg.Error) -> SquidError | None:
    """Give the contract's error for what the database has refused, if there is one for it."""
    said = error.diag.message_primary or ""
    match error:
        case psycopg.errors.UndefinedTable():
            if any(f"{schema}.{view}" in said for view in VIEWS):
                return ViewsMissing(f"the live views are incomplete ({said}): call rebuild_views()")
            if f"{schema}.backlog" in said:
                return ViewsMissing(f"the cards are missing ({said}): run `squid backlog rebuild`")
            return missing(schema)
        case psycopg.errors.UndefinedFunction() | psycopg.errors.InvalidSchemaName():
            return missing(schema)
        case psycopg.errors.InsufficientPrivilege():
            return StorageUnavailable(
                f"the database does not let this user use schema {schema!r} ({said}): grant it the rights, or connect "
                "as the schema's owner"
            )
    if error.sqlstate == _CONFLICT and error.diag.message_detail:
        return Conflict(*json.loads(error.diag.message_detail))
    return None
