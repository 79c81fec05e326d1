"""The comparison of the live views with the fold of the facts, row by row: both are read as of one instant."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, NamedTuple

from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.entry_reader import ENTRY, SchemaReader
from squid_dagster.journal.postgres.schema.names import statement
from squid_dagster.journal.postgres.views import rows
from squid_dagster.journal.postgres.views.folded_rows import ViewRows, rows_of_runs
from squid_dagster.journal.postgres.views.rows import Row

# Before the snapshot is taken, in which views that are swapped in later would look empty.
_HOLD: LiteralString = """LOCK TABLE {schema}.runs, {schema}.attempts, {schema}.children, {schema}.queues,
    {schema}.anomalies IN ACCESS SHARE MODE"""
# journal_entries_run
_RUN_FACTS: LiteralString = ENTRY + "WHERE run_id = ANY (%s) ORDER BY run_id, position"
# journal_entries_loose
_LOOSE_FACTS: LiteralString = (
    ENTRY + "WHERE run_id IS NULL AND starts_with(thread, 'squid:dispatch:') ORDER BY position"
)
# runs_pkey, attempts_pkey, children_pkey, anomalies_run
_VIEW_ROWS: LiteralString = "SELECT to_json(v) FROM {schema}.{table} v WHERE run_id = ANY (%s)"
_OF_RUNS: tuple[LiteralString, ...] = ("runs", "attempts", "children", "anomalies")
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
    """A row that is unexpected, missing, or has other values in these columns."""

    table: str
    key: tuple[Any, ...]
    expected: Row | None  # by the facts
    actual: Row | None  # in the view
    columns: tuple[str, ...] = ()

    @property
    def run_id(self) -> str | None:
        """The run whose row it is, if it is a run's."""
        run_id: str | None = (self.expected or self.actual or {}).get("run_id")
        return run_id

    @property
    def detail(self) -> str:
        """What is wrong with which row, in one line."""
        if self.expected is None or self.actual is None:
            what = "a row that no fact explains" if self.expected is None else "a row is missing"
        else:
            what = "other values in " + ", ".join(self.columns)
        return f"{self.table} {'/'.join(map(str, self.key))}: {what}"


class Instant(SchemaReader):
    """Facts and views as of one instant, on a connection on which `instant` has begun a transaction."""

    def expected(self, run_ids: Sequence[str]) -> ViewRows:
        """Fold all facts of these runs; return the rows that the views should have."""
        return rows_of_runs(self._entries(_RUN_FACTS, list(run_ids)), run_ids)

    def actual(self, run_ids: Sequence[str]) -> ViewRows:
        """Return the rows that the views have of these runs."""
        texts = {table: _VIEW_ROWS.replace("{table}", table) for table in _OF_RUNS}
        return ViewRows(**{table: self._view(text, list(run_ids)) for table, text in texts.items()})

    def expected_loose(self) -> ViewRows:
        """Fold all facts of queues that belong to no run."""
        view_rows = ViewRows()
        view_rows.add_loose(self._entries(_LOOSE_FACTS))
        return view_rows

    def actual_loose(self) -> ViewRows:
        """Return the rows of the views that belong to no run."""
        return ViewRows(**{table: self._view(text) for table, text in _LOOSE_ROWS.items()})

    def _view(self, text: LiteralString, *values: object) -> list[Row]:
        return [row[0] for row in self._rows(text, *values)]


@contextmanager
def instant(connection: PgConnection, schema: str, *, facts_only: bool = False) -> Iterator[Instant]:
    """Read facts and views as of one instant, on a connection in autocommit mode; a rebuild's swap waits for it.

    With `facts_only` the views need not exist.

    Raises:
        psycopg.errors.UndefinedTable: a view is missing; `PostgresStorage.connection` raises it as `ViewsMissing`.
    """
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if not facts_only:
            connection.execute(statement(_HOLD, schema))
        yield Instant(connection, schema)


def differences(expected: ViewRows, actual: ViewRows) -> Iterator[Difference]:
    """Yield each row in which the two differ, in canonical form. Pure."""
    for table in _KEYS:
        yield from _compare(table, getattr(expected, table), getattr(actual, table))


def _compare(table: str, expected: Iterable[Row], actual: Iterable[Row]) -> Iterator[Difference]:
    names = _KEYS[table]
    expected_rows = {tuple(row[name] for name in names): rows.normalized(table, row) for row in expected}
    actual_rows = {tuple(row[name] for name in names): rows.normalized(table, row) for row in actual}
    for key in sorted({*expected_rows, *actual_rows}, key=str):
        left, right = expected_rows.get(key), actual_rows.get(key)
        if left != right:
            columns = sorted(c for c in {*left, *right} if left.get(c) != right.get(c)) if left and right else ()
            yield Difference(table, key, left, right, tuple(columns))
