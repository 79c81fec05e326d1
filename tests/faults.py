"""Errors of the database on order: triggers that raise any SQLSTATE from any write, for ever or so many times."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from psycopg import sql

from squid_dagster.journal import PostgresStorage
from tests.journal.contract import raw

EVERYWHERE = 2**62

# nextval is not rolled back: faults are counted although each of them undoes its transaction.
_INSTALL = """
CREATE SEQUENCE faults_raised;
CREATE TABLE fault (code text NOT NULL, times bigint NOT NULL);
CREATE FUNCTION raise_fault() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE planted record;
BEGIN
    SELECT * INTO planted FROM {schema}.fault;
    IF FOUND AND nextval('{schema}.faults_raised') <= planted.times THEN
        RAISE EXCEPTION 'a planted fault' USING ERRCODE = planted.code;
    END IF;
    RETURN NULL;
END $$;
"""
_TRIGGER = "CREATE TRIGGER planted BEFORE INSERT OR UPDATE OR DELETE ON {} FOR EACH STATEMENT EXECUTE FUNCTION {}()"
_TABLES = (
    *("journal_entries", "journal_threads", "journal_commits", "journal_checkpoints"),
    *("runs", "attempts", "presence", "backlog"),
)


class Faults:
    """Faults of one journal; installed when made, raised only within `raising`. To be closed."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Put triggers on all tables of the journal."""
        self._open = ExitStack()
        self._connection = self._open.enter_context(raw(storage))
        self._counting = self._open.enter_context(raw(storage))  # by another thread, perhaps
        self._connection.execute(sql.SQL(_INSTALL).format(schema=sql.Identifier(storage.schema)))
        for table in _TABLES:
            names = sql.Identifier(storage.schema, table), sql.Identifier(storage.schema, "raise_fault")
            self._connection.execute(sql.SQL(_TRIGGER).format(*names))

    @contextmanager
    def raising(self, code: str, times: int = EVERYWHERE) -> Iterator[None]:
        """Have the next `times` writes raise an error of that code, until the end of the block at the latest."""
        with self._connection.transaction():
            self._connection.execute("DELETE FROM fault")
            self._connection.execute("ALTER SEQUENCE faults_raised RESTART")
            self._connection.execute("INSERT INTO fault VALUES (%s, %s)", (code, times))
        try:
            yield
        finally:
            self._connection.execute("DELETE FROM fault")

    def raised(self) -> int:
        """Tell how many writes were tried since the fault was planted."""
        row = self._counting.execute("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM faults_raised")
        return int((row.fetchone() or (0,))[0])

    def close(self) -> None:
        """Give the connection back; the triggers stay, and do nothing."""
        self._open.close()
