"""Deletion of one thread, for tests and tools: the only code that disables the append-only trigger. Needs the owner."""

from typing import LiteralString

from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.schema.names import lock_number, statement
from squid_dagster.journal.postgres.views.comparison import Instant
from squid_dagster.journal.postgres.views.folded_rows import forget_loose, forget_runs

_RUNS: LiteralString = "SELECT DISTINCT run_id FROM {schema}.journal_entries WHERE thread = %s AND run_id IS NOT NULL"
_UNGUARD: LiteralString = "ALTER TABLE {schema}.journal_entries DISABLE TRIGGER journal_entries_append_only"
_GUARD: LiteralString = "ALTER TABLE {schema}.journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only"
_DELETE: tuple[LiteralString, ...] = (
    "DELETE FROM {schema}.journal_entries WHERE thread = %s",
    "DELETE FROM {schema}.journal_threads WHERE id = %s",
    "UPDATE {schema}.journal_commits SET receipt = (receipt::jsonb - %s)::json WHERE (receipt->>%s) IS NOT NULL",
    "DELETE FROM {schema}.journal_checkpoints WHERE thread = %s",
)


def delete_thread(connection: PgConnection, schema: str, thread: str) -> None:
    """Delete the thread and fold the runs in it again, while writers wait. Needs the table's owner."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(schema, "gate"),))
        run_ids = [row[0] for row in connection.execute(statement(_RUNS, schema), (thread,))]
        connection.execute(statement(_UNGUARD, schema))
        for text in _DELETE:
            connection.execute(statement(text, schema), (thread,) * text.count("%s"))
        connection.execute(statement(_GUARD, schema))
        forget_runs(connection, schema, run_ids)
        forget_loose(connection, schema)
        moment = Instant(connection, schema)
        for view_rows in (moment.expected(run_ids), moment.expected_loose()):
            view_rows.insert(connection, schema)
