"""The simulation on Postgres: the set-based stores and the SQL functions, with faults between any two of their calls.

Every call is a transaction of its own, so that no lock is held while others run; but for one writer that stands still
in the middle of its commit, on a thread that nobody else writes to, so that cuts have something to be wrong about.
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
from squid_dagster.testing.simulation.environment.environment import Ground
from squid_dagster.testing.simulation.environment.machine import MachineClock
from squid_dagster.testing.simulation.environment.storage import ProcessStorage

if TYPE_CHECKING:
    from squid_dagster.testing.simulation.roles import Stage

_WRITES = frozenset({"claim", "heartbeat", "settle", "start_runs", "decide", "command", "release"})
_WRITES |= {"dead_letter_expired"}
_KEPT = frozenset({"squid_schema", "journal_published"})
_MOST = 1000
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
        """Show `inner` to the process that has this storage."""
        self._inner, self._storage = inner, storage

    def __getattr__(self, name: str) -> Any:
        """Return a method that is a call, or an attribute as it is."""
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            return self._storage.call(name, lambda: found(*arguments, **options), writes=name in _WRITES)

        return call


class PostgresCensus:
    """Which runs a journal on Postgres holds; asked again when something may have been written."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Ask a storage."""
        self._queries = PostgresQueries(storage)
        self.stage: Stage | None = None
        self._asked = -1
        self._started: dict[str, str] = {}
        self._open: set[str] = set()

    def _ask(self) -> None:
        writes = self.stage.world.writes if self.stage is not None else None
        if writes is None or writes != self._asked:
            rows = self._queries.list_runs(RunFilter(), None, _MOST)
            self._started = {row.run_id: row.workflow or "" for row in rows if row.started_at is not None}
            self._open = {row.run_id for row in rows if row.ended_at is None and row.started_at is not None}
            self._asked = -1 if writes is None else writes

    @property
    def started(self) -> Mapping[str, str]:
        """The workflows of all runs that were started, by run id."""
        self._ask()
        return self._started

    @property
    def open_runs(self) -> Collection[str]:
        """The runs that have not ended."""
        self._ask()
        return self._open


class PostgresGround:
    """Makes grounds on one schema of a database, which is emptied for each of them. To be closed."""

    def __init__(self, url: str, schema: str) -> None:
        """Make the schema."""
        self.url, self.schema = url, schema
        self.engine = make_engine(url)
        PostgresStorage(self.engine, schema).upgrade()
        entries = sql.Identifier(schema, "journal_entries")
        with connect(self.engine) as connection:  # a journal refuses to be emptied: not this one, which is for us alone
            connection.execute(sql.SQL("ALTER TABLE {} DISABLE TRIGGER USER").format(entries))
        connection.close()

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()

    def __call__(self, clock: MachineClock, atomic: bool) -> Ground:
        """Return an empty journal; its commits always span threads."""
        self._clean()
        storage = PostgresStorage(self.engine, self.schema, clock=clock)
        census, follower = PostgresCensus(storage), Follower(self, storage)

        def sides(mine: ProcessStorage) -> dict[str, Any]:
            return {
                "dispatch": Calls(PostgresDispatchStore(storage), mine),
                "queries": Calls(PostgresQueries(storage), mine),
            }

        def begin(stage: "Stage") -> None:
            census.stage = stage
            stage.launch("follower", lambda _, name: follower.follow(stage), again=False)
            stage.launch("slow", lambda _, name: follower.write_slowly(stage), again=False)

        def problems() -> Iterator[str]:
            yield from follower.problems()
            yield from (f"verify: {found.kind} {found.detail} {found.run_id or ''}" for found in verify(storage))
            storage.close()

        return Ground(storage, census, sides, begin, problems)

    def _clean(self) -> None:
        with connect(self.engine) as connection:
            names = [row[0] for row in connection.execute(_TABLES, (self.schema,)) if row[0] not in _KEPT]
            tables = sql.SQL(", ").join(sql.Identifier(self.schema, name) for name in names)
            connection.execute(sql.SQL("TRUNCATE {}").format(tables))
            connection.execute(
                sql.SQL("UPDATE {} SET position = 0").format(sql.Identifier(self.schema, "journal_published"))
            )
        connection.close()


class Follower:
    """Reads the journal from cut to cut while others write, and a writer that stands still within its commit."""

    def __init__(self, ground: PostgresGround, storage: PostgresStorage) -> None:
        """Read nothing yet."""
        self._ground, self._storage = ground, storage
        self._cut = 0
        self._entries: list[Entry] = []
        self._writing = False

    def follow(self, stage: "Stage") -> None:
        """Read on, again and again."""
        while not stage.over:
            self.read()
            stage.sleep(0.7)

    def read(self) -> None:
        """Read what lies between the last cut and a new one."""
        upto = self._storage.cut(self._cut)
        self._entries += self._storage.read_between(self._cut, upto)
        self._cut = upto

    def write_slowly(self, stage: "Stage") -> None:
        """Write commits of two facts, each of which takes seconds between its number and its end."""
        for _ in range(4):
            stage.sleep(1.0)
            with connect(self._ground.engine) as connection:
                self._write(stage, connection)
            connection.close()

    def _write(self, stage: "Stage", connection: Any) -> None:
        def run(text: str, values: Any = None) -> Any:
            return connection.execute(self._storage.sql(text), values)

        (base,) = run("SELECT {schema}.take_number(2)").fetchone()
        stage.sleep(1.9)
        for number in (1, 2):
            (seq,) = run(_SLOW_THREAD, (_SLOW,)).fetchone()
            now = self._storage.now()
            run(_SLOW_ENTRY, {"at": base + number, "thread": _SLOW, "seq": seq, "now": now})
        run(_SLOW_QUEUE)

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with what was read."""
        self.read()
        everything = self._storage.read_between(0, 2**62)
        if self._entries != everything:
            missed = len(everything) - len(self._entries)
            yield f"a follower has read {len(self._entries)} entries of {len(everything)}, {missed} were missed"
