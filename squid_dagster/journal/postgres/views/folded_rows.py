"""Rows from facts: the fold of whole runs into the tables of the live views, or into their shadows."""

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

_INSERT: dict[str, LiteralString] = {
    "runs": "INSERT INTO {schema}.runs{suffix} SELECT * FROM json_populate_recordset(NULL::{schema}.runs{suffix}, %s)",
    "attempts": """INSERT INTO {schema}.attempts{suffix}
        SELECT * FROM json_populate_recordset(NULL::{schema}.attempts{suffix}, %s)""",
    "children": """INSERT INTO {schema}.children{suffix}
        SELECT * FROM json_populate_recordset(NULL::{schema}.children{suffix}, %s)""",
    "queues": """INSERT INTO {schema}.queues{suffix}
        SELECT * FROM json_populate_recordset(NULL::{schema}.queues{suffix}, %s)""",
    "anomalies": """INSERT INTO {schema}.anomalies{suffix}
        SELECT * FROM json_populate_recordset(NULL::{schema}.anomalies{suffix}, %s)""",
}
# By the views' primary keys.
_IF_NEW: LiteralString = " ON CONFLICT DO NOTHING"
_FORGET: tuple[LiteralString, ...] = (
    "DELETE FROM {schema}.runs{suffix} WHERE run_id = ANY (%s)",
    "DELETE FROM {schema}.attempts{suffix} WHERE run_id = ANY (%s)",
    "DELETE FROM {schema}.children{suffix} WHERE run_id = ANY (%s)",
    "DELETE FROM {schema}.anomalies{suffix} WHERE run_id = ANY (%s)",
)
_FORGET_LOOSE: tuple[LiteralString, ...] = (
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
            keys = {**unit.dispatch.attempts, **unit.run.planned}  # in one order, whoever folds
            self.attempts += [rows.attempt_row(run_id, key, unit) for key in keys]
        self.children += [rows.child_row(run_id, child_id, child) for child_id, child in unit.run.children.items()]
        self.anomalies += rows.anomaly_rows(unit.anomalies)

    def add_loose(self, entries: Iterable[Entry]) -> None:
        """Fold all facts that belong to no run, by position, and add what they say about queues."""
        queues: dict[str, bool] = {}
        anomalies: list[Anomaly] = []
        for entry in entries:
            apply_queue(queues, anomalies, entry)
        self.queues += [{"queue": queue, "paused": is_paused} for queue, is_paused in queues.items()]
        self.anomalies += rows.anomaly_rows(anomalies)

    def only(self, run_ids: Container[str | None]) -> "ViewRows":
        """Give the rows of these runs."""
        kept = {
            table: [row for row in getattr(self, table) if row["run_id"] in run_ids]
            for table in ("runs", "attempts", "children", "anomalies")
        }
        return ViewRows(**kept)

    def insert(self, connection: PgConnection, schema: str, suffix: LiteralString = "") -> None:
        """Write the rows into the views, or into the shadows of that suffix."""
        for table, text in _INSERT.items():
            found: list[Row] = getattr(self, table)
            if found:
                connection.execute(statement(text, schema, suffix), (rows.to_text(found),))

    def insert_new(self, connection: PgConnection, schema: str, suffix: LiteralString = "") -> None:
        """Write the rows of runs that have none there yet; what is there of the others stays. Within a transaction.

        For writers that may be doubled: a run's own row goes first and decides for all of them, so that a late twin
        adds nothing to a run that somebody has folded further meanwhile.
        """
        text = statement(_INSERT["runs"] + _IF_NEW + " RETURNING run_id", schema, suffix)
        new: set[str | None] = {None}  # what belongs to no run is only ever added to
        if self.runs:
            new |= {row[0] for row in connection.execute(text, (rows.to_text(self.runs),))}
        for table in ("attempts", "children", "anomalies", "queues"):
            found = [row for row in getattr(self, table) if row.get("run_id") in new]
            if found:
                connection.execute(statement(_INSERT[table] + _IF_NEW, schema, suffix), (rows.to_text(found),))


def rows_of_runs(entries: Iterable[Entry], run_ids: Iterable[str]) -> ViewRows:
    """Fold entries that are sorted by run and position."""
    found = ViewRows()
    wanted = set(run_ids)
    for run_id, group in groupby(entries, key=lambda entry: run_of(entry.fact)):
        if run_id in wanted:
            found.add_run(run_id, list(group))
    return found


def forget_runs(connection: PgConnection, schema: str, run_ids: Sequence[str], suffix: LiteralString = "") -> None:
    """Delete all rows of these runs."""
    for text in _FORGET:
        connection.execute(statement(text, schema, suffix), (list(run_ids),))


def forget_loose(connection: PgConnection, schema: str, suffix: LiteralString = "") -> None:
    """Delete all rows that belong to no run."""
    for text in _FORGET_LOOSE:
        connection.execute(statement(text, schema, suffix))
