"""Injected errors of the database: any SQLSTATE from any write, or from any read, always or so many times.

Writes fail by triggers. Reads fail by policies of row-level security, which hold for a role of their own.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from psycopg import sql

from squid_dagster.journal import PostgresStorage
from tests.journal.access import raw

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
_INSTALL_READS = """
-- so cheap that it is asked before any other condition
CREATE FUNCTION raise_fault_on_read() RETURNS boolean LANGUAGE plpgsql COST 0.000001 AS $$
DECLARE planted record;
BEGIN
    SELECT * INTO planted FROM {schema}.fault;
    -- nothing is counted in a read-only transaction
    IF FOUND AND (planted.times = 2 ^ 62 OR nextval('{schema}.faults_raised') <= planted.times) THEN
        RAISE EXCEPTION 'a planted fault' USING ERRCODE = planted.code;
    END IF;
    RETURN true;
END $$;
CREATE ROLE {role} LOGIN;
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role};
GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role};
-- A policy is asked about each row that a scan meets: with an index, that may be none.
ALTER ROLE {role} SET enable_indexscan = off;
ALTER ROLE {role} SET enable_indexonlyscan = off;
ALTER ROLE {role} SET enable_bitmapscan = off;
"""
_POLICY = """ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
    CREATE POLICY planted ON {table} USING ({function}()) WITH CHECK (true)"""
_TRIGGER = "CREATE TRIGGER planted BEFORE INSERT OR UPDATE OR DELETE ON {} FOR EACH STATEMENT EXECUTE FUNCTION {}()"
_TABLES = (
    *("journal_entries", "journal_threads", "journal_commits", "journal_checkpoints"),
    *("runs", "attempts", "presence", "backlog"),
)
_NOT_READ = ("fault", "squid_schema")  # a missing version has an error message of its own


class Faults:
    """Faults of one journal: installed at once, raised only within `raising`, and closed at the end."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Create triggers on all tables of the journal."""
        self._open = ExitStack()
        self._connection = self._open.enter_context(raw(storage))
        self._counting = self._open.enter_context(raw(storage))  # by another thread, perhaps
        self._connection.execute(sql.SQL(_INSTALL).format(schema=sql.Identifier(storage.schema)))
        for table in _TABLES:
            names = sql.Identifier(storage.schema, table), sql.Identifier(storage.schema, "raise_fault")
            self._connection.execute(sql.SQL(_TRIGGER).format(*names))

    @contextmanager
    def raising(self, code: str, times: int = EVERYWHERE) -> Iterator[None]:
        """Inject an error of that code into the next `times` writes, until the end of the block at the latest."""
        with self._connection.transaction():
            self._connection.execute("DELETE FROM fault")
            self._connection.execute("ALTER SEQUENCE faults_raised RESTART")
            self._connection.execute("INSERT INTO fault VALUES (%s, %s)", (code, times))
        try:
            yield
        finally:
            self._connection.execute("DELETE FROM fault")

    def raised(self) -> int:
        """Return how many writes were tried since the fault was injected."""
        row = self._counting.execute("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM faults_raised")
        return int((row.fetchone() or (0,))[0])

    def reader(self, storage: PostgresStorage) -> PostgresStorage:
        """Return the same journal for a role whose reads raise the faults, as well as its writes."""
        role = f"reads_{storage.schema}"
        names = {"schema": sql.Identifier(storage.schema), "role": sql.Identifier(role)}
        self._connection.execute(sql.SQL(_INSTALL_READS).format(**names))
        function = sql.Identifier(storage.schema, "raise_fault_on_read")
        tables = self._connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        for (table,) in tables.fetchall():
            if table not in _NOT_READ:
                name = sql.Identifier(storage.schema, table)
                self._connection.execute(sql.SQL(_POLICY).format(table=name, function=function))
        url = storage.engine.url.set(username=role).render_as_string(hide_password=False)
        return PostgresStorage(url, storage.schema)

    def close(self) -> None:
        """Close the connection; the triggers stay, and do nothing."""
        self._open.close()
