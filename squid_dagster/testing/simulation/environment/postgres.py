"""The simulation on Postgres: the set-based stores and the SQL functions, with faults between any two of their calls.

Every call is a transaction, so no lock is held while other threads run. The exception is one writer that stalls in the
middle of its commits, on a thread of its own, so that a wrong cut would be found.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from psycopg import sql

from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.contract.queries import RunFilter
from squid_dagster.journal.postgres.connection.pool import connect, make_engine
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.queries import PostgresQueries
from squid_dagster.journal.postgres.views.verification import verify
from squid_dagster.protocol.entries import Entry
from squid_dagster.testing.simulation.environment.machine import MachineClock
from squid_dagster.testing.simulation.environment.storage import ProcessStorage, SimulatedJournal

if TYPE_CHECKING:
    from squid_dagster.testing.simulation.roles import ScheduleState

_WRITES = frozenset({"claim", "heartbeat", "settle", "start_runs", "decide", "command", "release"})
_WRITES |= {"dead_letter_expired"}
_KEPT_TABLES = frozenset({"squid_schema", "journal_published"})
_PAGE = 1000
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
_SLOW = "squid:dispatch:slow"
_SLOW_THREAD = """INSERT INTO {schema}.journal_threads AS t (id, rev) VALUES (%s, 1)
    ON CONFLICT (id) DO UPDATE SET rev = t.rev + 1 RETURNING rev"""
_SLOW_QUEUE = """INSERT INTO {schema}.queues (queue, paused) VALUES ('slow', true) ON CONFLICT DO NOTHING"""
_SLOW_ENTRY = """INSERT INTO {schema}.journal_entries (position, thread, seq, type, run_id, occurred_at, data, digest)
    SELECT %(at)s, %(thread)s, %(seq)s, 'queue_paused', NULL, %(now)s, d.data,
           {schema}.entry_digest(%(thread)s, %(seq)s, 'queue_paused', NULL, %(now)s, d.data)
      FROM (SELECT '{{"queue":"slow"}}'::json AS data) d"""


class Calls:
    """An object whose methods are calls of the storage, for one process."""

    def __init__(self, inner: Any, storage: ProcessStorage) -> None:
        """Wrap `inner` for the process of this storage."""
        self._inner, self._storage = inner, storage

    def __getattr__(self, name: str) -> Any:
        """Return a method that is a call, or an attribute as it is."""
        attribute = getattr(self._inner, name)
        if not callable(attribute):
            return attribute

        def call(*arguments: Any, **options: Any) -> Any:
            return self._storage.call(name, lambda: attribute(*arguments, **options), writes=name in _WRITES)

        return call


class PostgresRuns:
    """The runs of a journal on Postgres; queried again when something may have been written."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Store the queries; nothing is read yet."""
        self._queries = PostgresQueries(storage)
        self.state: ScheduleState | None = None
        self._asked = -1
        self._started: dict[str, str] = {}
        self._open: set[str] = set()

    def _refresh(self) -> None:
        writes = self.state.shared.writes if self.state is not None else None
        if writes is None or writes != self._asked:
            rows = self._queries.list_runs(RunFilter(), None, _PAGE)
            self._started = {row.run_id: row.workflow or "" for row in rows if row.started_at is not None}
            self._open = {row.run_id for row in rows if row.ended_at is None and row.started_at is not None}
            self._asked = -1 if writes is None else writes

    @property
    def started(self) -> Mapping[str, str]:
        """The workflows of all runs that were started, by run id."""
        self._refresh()
        return self._started

    @property
    def open_runs(self) -> Collection[str]:
        """The runs that have not ended."""
        self._refresh()
        return self._open


class PostgresJournals:
    """Journals on one schema of a database, which is truncated for each of them. To be closed."""

    def __init__(self, url: str, schema: str) -> None:
        """Create the schema."""
        self.url, self.schema = url, schema
        self.engine = make_engine(url)
        PostgresStorage(self.engine, schema).upgrade()
        entries = sql.Identifier(schema, "journal_entries")
        with connect(self.engine) as connection:  # a journal refuses TRUNCATE; this one is for the simulation only
            connection.execute(sql.SQL("ALTER TABLE {} DISABLE TRIGGER USER").format(entries))
        connection.close()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def __call__(self, clock: MachineClock, atomic: bool) -> SimulatedJournal:
        """Return an empty journal; its commits always span threads."""
        self._clean()
        storage = PostgresStorage(self.engine, self.schema, clock=clock)
        runs, follower = PostgresRuns(storage), CutReader(self, storage)

        def adapters(mine: ProcessStorage) -> dict[str, Any]:
            return {
                "dispatch": Calls(PostgresDispatchStore(storage), mine),
                "queries": Calls(PostgresQueries(storage), mine),
            }

        def begin(state: "ScheduleState") -> None:
            runs.state = state
            state.launch("follower", lambda _, name: follower.follow(state), again=False)
            state.launch("slow", lambda _, name: follower.write_slowly(state), again=False)

        def problems() -> Iterator[str]:
            yield from follower.problems()
            for discrepancy in verify(storage):
                yield f"verify: {discrepancy.kind} {discrepancy.detail} {discrepancy.run_id or ''}"
            storage.close()

        return SimulatedJournal(storage, runs, adapters, begin, problems)

    def _clean(self) -> None:
        with connect(self.engine) as connection:
            names = [row[0] for row in connection.execute(_TABLES, (self.schema,)) if row[0] not in _KEPT_TABLES]
            tables = sql.SQL(", ").join(sql.Identifier(self.schema, name) for name in names)
            connection.execute(sql.SQL("TRUNCATE {}").format(tables))
            connection.execute(
                sql.SQL("UPDATE {} SET position = 0").format(sql.Identifier(self.schema, "journal_published"))
            )
        connection.close()


class CutReader:
    """A reader that follows the journal from cut to cut, and a writer that stalls within its commits."""

    def __init__(self, simulated: PostgresJournals, storage: PostgresStorage) -> None:
        """Start before the first entry."""
        self._ground, self._storage = simulated, storage
        self._cut = 0
        self._entries: list[Entry] = []
        self._writing = False

    def follow(self, state: "ScheduleState") -> None:
        """Read periodically until the schedule is over."""
        while not state.over:
            self.read()
            state.sleep(0.7)

    def read(self) -> None:
        """Read the entries between the last cut and a new one."""
        upto = self._storage.cut(self._cut)
        self._entries += self._storage.read_between(self._cut, upto)
        self._cut = upto

    def write_slowly(self, state: "ScheduleState") -> None:
        """Write commits of two facts, each of which takes seconds between its number and its end."""
        for _ in range(4):
            state.sleep(1.0)
            with connect(self._ground.engine) as connection:
                self._write(state, connection)
            connection.close()

    def _write(self, state: "ScheduleState", connection: Any) -> None:
        def run(text: str, values: Any = None) -> Any:
            return connection.execute(self._storage.sql(text), values)

        (base,) = run("SELECT {schema}.take_number(2)").fetchone()
        state.sleep(1.9)
        for number in (1, 2):
            (seq,) = run(_SLOW_THREAD, (_SLOW,)).fetchone()
            now = self._storage.now()
            run(_SLOW_ENTRY, {"at": base + number, "thread": _SLOW, "seq": seq, "now": now})
        run(_SLOW_QUEUE)

    def problems(self) -> Iterator[str]:
        """Yield the differences between the entries read and all entries."""
        self.read()
        everything = self._storage.read_between(0, 2**62)
        if self._entries != everything:
            missed = len(everything) - len(self._entries)
            yield f"a follower has read {len(self._entries)} entries of {len(everything)}, {missed} were missed"
