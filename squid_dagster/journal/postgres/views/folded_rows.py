"""Rows of the live views, or of their shadows, from the fold of whole runs; and their insertion and deletion."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import LiteralString

from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.schema.names import statement
from squid_dagster.journal.postgres.views import rows
from squid_dagster.journal.postgres.views.rows import Row
from squid_dagster.protocol.anomalies import Anomaly
from squid_dagster.protocol.entries import Entry, run_of
from squid_dagster.protocol.folds.dispatch import apply_queue
from squid_dagster.protocol.folds.run_unit import RunUnit

_INSERT_ROWS: LiteralString = """INSERT INTO {schema}.{table}{suffix}
    SELECT * FROM json_populate_recordset(NULL::{schema}.{table}{suffix}, %s)"""
_OF_RUNS: tuple[LiteralString, ...] = ("runs", "attempts", "children", "anomalies")
_INSERT = {table: _INSERT_ROWS.replace("{table}", table) for table in (*_OF_RUNS, "queues")}
_IF_NEW: LiteralString = " ON CONFLICT DO NOTHING"  # by the views' primary keys
_DELETE_RUNS: LiteralString = "DELETE FROM {schema}.{table}{suffix} WHERE run_id = ANY (%s)"
_DELETE_LOOSE: tuple[LiteralString, ...] = (
    "DELETE FROM {schema}.queues{suffix}",
    "DELETE FROM {schema}.anomalies{suffix} WHERE run_id IS NULL",
)


@dataclass(slots=True)
class ViewRows:
    """Rows of all live views, by table."""

    runs: list[Row] = field(default_factory=list)
    attempts: list[Row] = field(default_factory=list)
    children: list[Row] = field(default_factory=list)
    queues: list[Row] = field(default_factory=list)
    anomalies: list[Row] = field(default_factory=list)

    def add_run(self, run_id: str, entries: Sequence[Entry]) -> None:
        """Fold one run's facts, by position, and add its rows."""
        self.add_unit(run_id, RunUnit.fold(entries), entries[0].position)

    def add_unit(self, run_id: str, unit: RunUnit, first_position: int) -> None:
        """Add the rows of a run that is folded already; `first_position` is that of its first fact."""
        self.runs.append(rows.run_row(run_id, unit, first_position))
        if not unit.run.terminal:
            keys = {**unit.dispatch.attempts, **unit.run.planned}  # the same order in every process
            self.attempts += [rows.attempt_row(run_id, key, unit) for key in keys]
        self.children += [rows.child_row(run_id, child_id, child) for child_id, child in unit.run.children.items()]
        self.anomalies += rows.anomaly_rows(unit.anomalies)

    def add_loose(self, entries: Iterable[Entry]) -> None:
        """Fold all facts that belong to no run, by position, and add the rows of queues."""
        queues: dict[str, bool] = {}
        anomalies: list[Anomaly] = []
        for entry in entries:
            apply_queue(queues, anomalies, entry)
        self.queues += [{"queue": queue, "paused": is_paused} for queue, is_paused in queues.items()]
        self.anomalies += rows.anomaly_rows(anomalies)

    def only(self, run_ids: Container[str | None]) -> "ViewRows":
        """Return the rows of these runs."""
        tables = {table: [row for row in getattr(self, table) if row["run_id"] in run_ids] for table in _OF_RUNS}
        return ViewRows(**tables)

    def insert(self, connection: PgConnection, schema: str, suffix: LiteralString = "") -> None:
        """Write the rows into the views, or into the shadows of that suffix."""
        for table, text in _INSERT.items():
            table_rows: list[Row] = getattr(self, table)
            if table_rows:
                connection.execute(statement(text, schema, suffix), (rows.to_text(table_rows),))

    def insert_new(self, connection: PgConnection, schema: str, suffix: LiteralString = "") -> None:
        """Write the rows of runs that have none yet; those of other runs stay. Within a transaction.

        For writers that may run twice: a run's own row is inserted first and decides for all of its rows, so that a
        late second writer adds nothing to a run that was folded further meanwhile.
        """
        text = statement(_INSERT["runs"] + _IF_NEW + " RETURNING run_id", schema, suffix)
        new: set[str | None] = {None}  # rows that belong to no run are only ever added
        if self.runs:
            new |= {row[0] for row in connection.execute(text, (rows.to_text(self.runs),))}
        for table in ("attempts", "children", "anomalies", "queues"):
            table_rows = [row for row in getattr(self, table) if row.get("run_id") in new]
            if table_rows:
                connection.execute(statement(_INSERT[table] + _IF_NEW, schema, suffix), (rows.to_text(table_rows),))


def rows_of_runs(entries: Iterable[Entry], run_ids: Iterable[str]) -> ViewRows:
    """Fold entries, sorted by run and position; return the rows of these runs."""
    view_rows = ViewRows()
    wanted = set(run_ids)
    for run_id, group in groupby(entries, key=lambda entry: run_of(entry.fact)):
        if run_id in wanted:
            view_rows.add_run(run_id, list(group))
    return view_rows


def forget_runs(connection: PgConnection, schema: str, run_ids: Sequence[str], suffix: LiteralString = "") -> None:
    """Delete all rows of these runs."""
    for table in _OF_RUNS:
        text = _DELETE_RUNS.replace("{table}", table)
        connection.execute(statement(text, schema, suffix), (list(run_ids),))


def forget_loose(connection: PgConnection, schema: str, suffix: LiteralString = "") -> None:
    """Delete all rows that belong to no run."""
    for text in _DELETE_LOOSE:
        connection.execute(statement(text, schema, suffix))
