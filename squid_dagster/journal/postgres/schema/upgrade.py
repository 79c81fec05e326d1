"""Upgrade of a database's schema to this code's version, and the check whether it fits."""

import time
from typing import Any, LiteralString, NamedTuple

import psycopg
from sqlalchemy import Connection, Engine, text

from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.schema import migrations
from squid_dagster.journal.postgres.schema.functions import COMMENTS, apply_functions, comments_arguments, digests
from squid_dagster.journal.postgres.schema.names import (
    CODE_VERSION,
    DEFAULT_SCHEMA,
    JOURNAL,
    VIEWS,
    lock_number,
    statement,
)
from squid_dagster.journal.postgres.schema.table_locks import close_gate, describe_holders, end_vacuums, lock_tables
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import (
    ForeignSchema,
    SchemaOutdated,
    SchemaTooNew,
    StorageRefused,
    StorageUnavailable,
)

logger = redacting_logger(__name__)

_PATIENCE_SECONDS = 60.0  # for all tries together
_PAUSE_SECONDS = 0.2  # for other sessions

# By version: the existing relations that its migration alters.
_ALTERED: dict[int, tuple[str, ...]] = {
    4: ("journal_entries", "journal_threads"),
    6: ("journal_positions",),
    7: ("attempts", "children"),
    8: ("attempts", "children", "journal_entries", "squid_schema_revision"),
}

# pg_class_relname_nsp_index; with the columns of the table by which we recognize our schema
_RELATIONS: LiteralString = """SELECT c.relname, CASE WHEN c.relname = 'squid_schema' THEN ARRAY(
           SELECT a.attname::text FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) END
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = %s AND c.relname = ANY (%s)"""
# One statement, so one snapshot: an upgrade meanwhile is seen whole or not at all.
_RECORDED: LiteralString = "SELECT s.version, s.oldest_code, (" + COMMENTS + ") FROM {schema}.squid_schema s"  # noqa: S608


class _RecordedVersions(NamedTuple):
    """The versions that a schema records."""

    version: int
    oldest_code: int
    functions: dict[str, str | None]

    @property
    def has_other_functions(self) -> bool:
        """Whether a schema of this code's version has functions of other code."""
        return self.version == CODE_VERSION and self.functions != digests()


def upgrade(engine: Engine, schema: str) -> int:
    """Create or upgrade the schema and return its version. Safe when many processes do it at once, and while code of
    this and older versions runs: writers wait while it is changed, and continue.

    Raises:
        ForeignSchema: tables of our names exist that are not ours; nothing was changed.
        SchemaTooNew: a newer version wrote this schema and says that this code cannot use it.
        StorageUnavailable: other sessions hold locks that are needed for longer than a minute; nothing was changed.
        StorageRefused: the database cannot hold text as UTF-8; nothing was changed.
    """
    began, state = time.monotonic(), None
    while True:
        try:
            with engine.begin() as connection:
                _check_encoding(connection)
                connection.exec_driver_sql("SET LOCAL lock_timeout = 0")  # another upgrade may take its time
                connection.execute(text("SELECT pg_advisory_xact_lock(:n)"), {"n": lock_number(schema, "migrate")})
                state = _recorded_versions(connection, schema)
                _upgrade_in(connection, schema, state)
                return _checked_version(connection, schema)
        except psycopg.errors.LockNotAvailable:
            _give_way(engine, schema, state.version if state else 0, time.monotonic() - began)


def _upgrade_in(connection: Connection, schema: str, state: _RecordedVersions | None) -> None:
    if state is not None:
        if state.version >= CODE_VERSION and not state.has_other_functions:
            return
        driver = _driver(connection)
        close_gate(driver, schema)
        lock_tables(driver, schema, _altered_after(state.version))
    elif not connection.scalar(text("SELECT count(*) FROM pg_namespace WHERE nspname = :s"), {"s": schema}):
        connection.exec_driver_sql(f'CREATE SCHEMA "{schema}"')
    build(connection, schema)


def _give_way(engine: Engine, schema: str, version: int, waited_seconds: float) -> None:
    """Wait a moment for other sessions. Raises `StorageUnavailable` after a minute of that."""
    names = _altered_after(version)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        driver = _driver(connection)
        holders = describe_holders(driver, schema, names) or "sessions that are gone by now"
        locks = f"locks on schema {schema!r} that are held by {holders}"
        if waited_seconds > _PATIENCE_SECONDS:
            raise StorageUnavailable(f"the upgrade gave up after {waited_seconds:.0f} s of waiting for {locks}")
        logger.warning("the upgrade waits for %s", locks)
        end_vacuums(driver, schema, names)
    time.sleep(_PAUSE_SECONDS)


def _altered_after(version: int) -> list[str]:
    return sorted({name for number, names in _ALTERED.items() if number > version for name in names})


def _driver(connection: Connection) -> PgConnection:
    driver: Any = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)  # noqa: S101  no other driver is supported
    return driver


def build(connection: Connection, schema: str) -> None:
    """Execute missing migrations and replace functions of other code, in the open transaction."""
    state, driver = _recorded_versions(connection, schema), _driver(connection)
    migrations.run(driver, schema, after=state.version if state else 0, upto=CODE_VERSION)
    apply_functions(driver, schema)


def check(engine: Engine, schema: str) -> int:
    """Return the schema's version if this code can work with it.

    Raises:
        SchemaOutdated: it, or its functions, are missing or older than this code needs; the message names the command.
        SchemaTooNew: a newer version wrote it and says that this code cannot use it.
        ForeignSchema: tables of our names exist that are not ours.
        StorageRefused: the database cannot hold text as UTF-8.
    """
    with engine.connect() as connection:
        return _checked_version(connection, schema)


def version(engine: Engine, schema: str) -> int | None:
    """Return the schema's version, whether or not this code can work with it; None if there is no journal.

    Raises:
        ForeignSchema: tables of our names exist that are not ours.
    """
    with engine.connect() as connection:
        state = _recorded_versions(connection, schema)
        return state.version if state else None


def missing(schema: str) -> SchemaOutdated:
    """Return the error for a missing journal, which says how to create one."""
    return SchemaOutdated(f"schema {schema!r} has no journal yet: run `{_remedy(schema)}`, or set SQUID_AUTO_MIGRATE=1")


def _remedy(schema: str) -> str:
    return "squid db upgrade" if schema == DEFAULT_SCHEMA else f"squid db upgrade --schema {schema}"


def _check_encoding(connection: Connection) -> None:
    """Raise `StorageRefused` for a database that cannot hold every text; its encoding was reported on connecting."""
    driver = _driver(connection)
    info = driver.info
    encoding = info.parameter_status("server_encoding")
    if encoding is None:  # some poolers do not pass it on
        (encoding,) = driver.execute("SELECT pg_catalog.current_setting('server_encoding')").fetchone() or (None,)
    if encoding != "UTF8":
        raise StorageRefused(
            f"database {info.dbname!r} has the encoding {encoding}, which cannot hold every text: create one with "
            "CREATE DATABASE <name> ENCODING 'UTF8' TEMPLATE template0, and name that one in the URL"
        )


def _checked_version(connection: Connection, schema: str) -> int:
    _check_encoding(connection)
    state = _recorded_versions(connection, schema)
    if state is None:
        raise missing(schema)
    if state.version < CODE_VERSION:
        raise SchemaOutdated(
            f"schema {schema!r} is at version {state.version}, this code needs {CODE_VERSION}: run `{_remedy(schema)}`"
        )
    if state.has_other_functions:
        raise SchemaOutdated(
            f"the functions of schema {schema!r} are not those of this code: run `{_remedy(schema)}` to replace them"
        )
    if state.oldest_code > CODE_VERSION:
        raise SchemaTooNew(
            f"schema {schema!r} is at version {state.version} and needs code of version {state.oldest_code} or newer, "
            f"this is {CODE_VERSION}: upgrade squid-dagster"
        )
    return state.version


def _recorded_versions(connection: Connection, schema: str) -> _RecordedVersions | None:
    """Return the versions that a schema records; None if there is no journal. Raises `ForeignSchema`."""
    driver = _driver(connection)
    names = ["squid_schema", *JOURNAL, *VIEWS]
    columns: dict[str, list[str]] = dict(driver.execute(_RELATIONS, (schema, names)).fetchall())
    foreign = sorted(columns)
    if "squid_schema" in columns:
        foreign = ["squid_schema"]
        if set(columns["squid_schema"]) == {"version", "oldest_code"}:
            rows = driver.execute(statement(_RECORDED, schema), comments_arguments(schema)).fetchall()
            if len(rows) == 1:
                version, oldest_code, functions = rows[0]
                return _RecordedVersions(version, oldest_code, functions or {})
    if foreign:
        raise ForeignSchema(
            f"schema {schema!r} holds {', '.join(foreign)}, but not written by us: "
            "choose another schema name (SQUID_SCHEMA)"
        )
    return None
