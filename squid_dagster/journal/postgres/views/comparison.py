"""The live views beside what the facts say: both read as of one instant, and told apart row by row."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, NamedTuple

from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.entry_reader import ENTRY, read_entries
from squid_dagster.journal.postgres.schema.names import statement
from squid_dagster.journal.postgres.views import rows
from squid_dagster.journal.postgres.views.folded_rows import ViewRows, rows_of_runs
from squid_dagster.journal.postgres.views.rows import Row
from squid_dagster.protocol.entries import Entry

# Before the snapshot is taken: views that are swapped in later would look empty to it.
_HOLD: LiteralString = """LOCK TABLE {schema}.runs, {schema}.attempts, {schema}.children, {schema}.queues,
    {schema}.anomalies IN ACCESS SHARE MODE"""
# journal_entries_run
_RUN_FACTS: LiteralString = ENTRY + "WHERE run_id = ANY (%s) ORDER BY run_id, position"
# journal_entries_loose
_LOOSE_FACTS: LiteralString = (
    ENTRY + "WHERE run_id IS NULL AND starts_with(thread, 'squid:dispatch:') ORDER BY position"
)
# runs_pkey, attempts_pkey, children_pkey, anomalies_run
_VIEW_ROWS: dict[str, LiteralString] = {
    "runs": "SELECT to_json(v) FROM {schema}.runs v WHERE run_id = ANY (%s)",
    "attempts": "SELECT to_json(v) FROM {schema}.attempts v WHERE run_id = ANY (%s)",
    "children": "SELECT to_json(v) FROM {schema}.children v WHERE run_id = ANY (%s)",
    "anomalies": "SELECT to_json(v) FROM {schema}.anomalies v WHERE run_id = ANY (%s)",
}
_LOOSE_ROWS: dict[str, LiteralString] = {
    "queues": "SELECT to_json(v) FROM {schema}.queues v",
    "anomalies": "SELECT to_json(v) FROM {schema}.anomalies v WHERE run_id IS NULL",
}
_KEYS = {
    "runs": ("run_id",),
    "attempts": ("run_id", "runnable_key"),
    "children": ("run_id", "child_run_id"),
    "queues": ("queue",),
    "anomalies": ("thread", "seq", "ordinal"),
}


class Difference(NamedTuple):
    """A row that is there and should not be, should be and is not, or has other values in these columns."""

    table: str
    key: tuple[Any, ...]
    expected: Row | None  # by the facts
    actual: Row | None  # in the view
    columns: tuple[str, ...] = ()

    @property
    def run_id(self) -> str | None:
        """The run whose row it is, if it is a run's."""
        found: str | None = (self.expected or self.actual or {}).get("run_id")
        return found

    @property
    def detail(self) -> str:
        """Say in one line what is wrong with which row."""
        if self.expected is None or self.actual is None:
            what = "a row that no fact explains" if self.expected is None else "a row is missing"
        else:
            what = "other values in " + ", ".join(self.columns)
        return f"{self.table} {'/'.join(map(str, self.key))}: {what}"


class Instant:
    """Facts and views as of one instant."""

    def __init__(self, connection: PgConnection, schema: str) -> None:
        """Bind to a connection on which `instant` has begun a transaction."""
        self._connection = connection
        self._schema = schema

    def expected(self, run_ids: Sequence[str]) -> ViewRows:
        """Fold all facts of these runs: the rows that the views should have."""
        return rows_of_runs(self._entries(_RUN_FACTS, list(run_ids)), run_ids)

    def actual(self, run_ids: Sequence[str]) -> ViewRows:
        """Give the rows that the views have of these runs."""
        return ViewRows(**{table: self._view(text, list(run_ids)) for table, text in _VIEW_ROWS.items()})

    def expected_loose(self) -> ViewRows:
        """Fold all facts of queues that belong to no run."""
        found = ViewRows()
        found.add_loose(self._entries(_LOOSE_FACTS))
        return found

    def actual_loose(self) -> ViewRows:
        """Give the rows that the views have of what belongs to no run."""
        return ViewRows(**{table: self._view(text) for table, text in _LOOSE_ROWS.items()})

    def _view(self, text: LiteralString, *values: object) -> list[Row]:
        return [row[0] for row in self._rows(text, *values)]

    def _entries(self, text: LiteralString, *values: object) -> list[Entry]:
        return read_entries(self._rows(text, *values))

    def _rows(self, text: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement(text, self._schema), values).fetchall()


@contextmanager
def instant(connection: PgConnection, schema: str, *, facts_only: bool = False) -> Iterator[Instant]:
    """Read facts and views as of one instant, on a connection in autocommit mode. Whoever rebuilds views waits for it.

    With `facts_only` the views need not be there.

    Raises:
        psycopg.errors.UndefinedTable: a view is missing; `PostgresStorage.connection` makes `ViewsMissing` of it.
    """
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if not facts_only:
            connection.execute(statement(_HOLD, schema))
        yield Instant(connection, schema)


def differences(told: ViewRows, kept: ViewRows) -> Iterator[Difference]:
    """Name each row in which the two differ, in canonical form; pure."""
    for table in _KEYS:
        yield from _compare(table, getattr(told, table), getattr(kept, table))


def _compare(table: str, told: Iterable[Row], kept: Iterable[Row]) -> Iterator[Difference]:
    names = _KEYS[table]
    should = {tuple(row[name] for name in names): _canonical(table, row) for row in told}
    there = {tuple(row[name] for name in names): _canonical(table, row) for row in kept}
    for key in sorted({*should, *there}, key=str):
        left, right = should.get(key), there.get(key)
        if left != right:
            columns = sorted(c for c in {*left, *right} if left.get(c) != right.get(c)) if left and right else ()
            yield Difference(table, key, left, right, tuple(columns))


def _canonical(table: str, row: Row) -> Row:
    match table:
        case "runs":
            return rows.normalise_run(dict(row))
        case "attempts":
            return rows.normalise_attempt(dict(row))
        case "children":
            return {**row, "started_at": rows.iso(rows.time(row["started_at"]))}
        case _:
            return row
