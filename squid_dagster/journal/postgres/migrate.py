"""Bringing a database's schema to this code's version, and telling when it does not fit."""

import threading
import time
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, text

from squid_dagster.journal.postgres.connection import PgConnection
from squid_dagster.journal.postgres.functions import apply_functions, digest
from squid_dagster.journal.postgres.schema import CODE_VERSION, DEFAULT_SCHEMA, JOURNAL, VIEWS, lock_number
from squid_dagster.journal.postgres.table_locks import close_gate, describe_holders, end_vacuums, lock_tables
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import (
    ForeignSchema,
    SchemaOutdated,
    SchemaTooNew,
    StorageRefused,
    StorageUnavailable,
)

logger = redacting_logger(__name__)

_ALEMBIC = threading.Lock()  # it keeps the migration that is under way in globals
_PATIENCE_SECONDS = 60.0  # for all tries together
_PAUSE_SECONDS = 0.2  # in which others go on

# By version: the relations that its migration alters, of those that were there before it.
_ALTERED: dict[int, tuple[str, ...]] = {
    4: ("journal_entries", "journal_threads"),
    6: ("journal_positions",),
    7: ("attempts", "children"),
}


def upgrade(engine: Engine, schema: str) -> int:
    """Create or upgrade the schema and return its version. Safe when many processes do it at once, and while code of
    this and older versions works: writers wait while it is changed, and go on.

    Raises:
        ForeignSchema: tables of our names are there that are not ours; nothing was changed.
        SchemaTooNew: a newer version wrote this schema and says that this code cannot use it.
        StorageUnavailable: others hold locks that are needed, for longer than a minute; nothing was changed.
        StorageRefused: the database cannot hold text as UTF-8; nothing was changed.
    """
    began, found = time.monotonic(), None
    with _ALEMBIC:
        while True:
            try:
                with engine.begin() as connection:
                    _check_encoding(connection)
                    connection.exec_driver_sql("SET LOCAL lock_timeout = 0")  # another upgrade may take its time
                    connection.execute(text("SELECT pg_advisory_xact_lock(:n)"), {"n": lock_number(schema, "migrate")})
                    found = _version(connection, schema)
                    _bring_up_to_date(connection, schema, found)
                    return _checked(connection, schema)
            except psycopg.errors.LockNotAvailable:
                _give_way(engine, schema, found or 0, time.monotonic() - began)


def _bring_up_to_date(connection: Connection, schema: str, found: int | None) -> None:
    if found is not None and found >= CODE_VERSION and not _has_other_functions(connection, schema, found):
        return
    if found is not None:
        import alembic.command  # noqa: F401  before others have to wait

        driver = _driver(connection)
        close_gate(driver, schema)
        lock_tables(driver, schema, _altered_after(found))
    elif not connection.scalar(text("SELECT count(*) FROM pg_namespace WHERE nspname = :s"), {"s": schema}):
        connection.exec_driver_sql(f'CREATE SCHEMA "{schema}"')
    build(connection, schema)


def _give_way(engine: Engine, schema: str, version: int, waited_seconds: float) -> None:
    """Let others go on for a moment. Raises `StorageUnavailable` after a minute of that."""
    names = _altered_after(version)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        driver = _driver(connection)
        holders = describe_holders(driver, schema, names) or "sessions that are gone by now"
        told = f"locks on schema {schema!r} that are held by {holders}"
        if waited_seconds > _PATIENCE_SECONDS:
            raise StorageUnavailable(f"the upgrade gave up after {waited_seconds:.0f} s of waiting for {told}")
        logger.warning("the upgrade waits for %s", told)
        end_vacuums(driver, schema, names)
    time.sleep(_PAUSE_SECONDS)


def _altered_after(version: int) -> list[str]:
    return sorted({name for number, names in _ALTERED.items() if number > version for name in names})


def _driver(connection: Connection) -> PgConnection:
    driver: Any = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)  # noqa: S101  no other driver is supported
    return driver


def build(connection: Connection, schema: str) -> None:
    """Run the migrations that a schema lacks and replace its functions, in the open transaction."""
    if _version(connection, schema) != CODE_VERSION:
        migrate_tables(connection, schema)
    apply_functions(_driver(connection), schema)


def migrate_tables(connection: Connection, schema: str, upto: str = "head") -> None:
    """Run the numbered migrations that a schema lacks, in the open transaction."""
    # Here, because most processes find their schema up to date and need no Alembic.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "squid_dagster.journal.postgres:migrations")
    config.attributes.update(connection=connection, schema=schema)
    command.upgrade(config, upto)


def check(engine: Engine, schema: str) -> int:
    """Return the schema's version if this code can work with it.

    Raises:
        SchemaOutdated: it, or its functions, are missing or older than this code needs; the message names the command.
        SchemaTooNew: a newer version wrote it and says that this code cannot use it.
        ForeignSchema: tables of our names are there that are not ours.
        StorageRefused: the database cannot hold text as UTF-8.
    """
    with engine.connect() as connection:
        return _checked(connection, schema)


def version(engine: Engine, schema: str) -> int | None:
    """Return the schema's version, whether or not this code can work with it; None where there is no journal.

    Raises:
        ForeignSchema: tables of our names are there that are not ours.
    """
    with engine.connect() as connection:
        return _version(connection, schema)


def missing(schema: str) -> SchemaOutdated:
    """Say that there is no journal, and how to make one."""
    return SchemaOutdated(f"schema {schema!r} has no journal yet: run `{_remedy(schema)}`, or set SQUID_AUTO_MIGRATE=1")


def _remedy(schema: str) -> str:
    return "squid db upgrade" if schema == DEFAULT_SCHEMA else f"squid db upgrade --schema {schema}"


def _check_encoding(connection: Connection) -> None:
    """Raise `StorageRefused` for a database that cannot hold every text."""
    encoding, database = connection.execute(text("SELECT getdatabaseencoding(), current_database()")).one()
    if encoding != "UTF8":
        raise StorageRefused(
            f"database {database!r} has the encoding {encoding}, which cannot hold every text: create one with "
            "CREATE DATABASE <name> ENCODING 'UTF8' TEMPLATE template0, and name that one in the URL"
        )


def _checked(connection: Connection, schema: str) -> int:
    _check_encoding(connection)
    version = _version(connection, schema)
    if version is None:
        raise missing(schema)
    if version < CODE_VERSION:
        raise SchemaOutdated(
            f"schema {schema!r} is at version {version}, this code needs {CODE_VERSION}: run `{_remedy(schema)}`"
        )
    if _has_other_functions(connection, schema, version):
        raise SchemaOutdated(
            f"the functions of schema {schema!r} are not those of this code: run `{_remedy(schema)}` to replace them"
        )
    oldest = connection.exec_driver_sql(f'SELECT oldest_code FROM "{schema}".squid_schema').scalar_one()  # noqa: S608
    if oldest > CODE_VERSION:
        raise SchemaTooNew(
            f"schema {schema!r} is at version {version} and needs code of version {oldest} or newer, "
            f"this is {CODE_VERSION}: upgrade squid-dagster"
        )
    return version


def _has_other_functions(connection: Connection, schema: str, version: int) -> bool:
    """Return whether a schema of this code's version has functions of other code; those of newer schemas are newer."""
    if version != CODE_VERSION:
        return False
    found = connection.exec_driver_sql(f'SELECT digest FROM "{schema}".squid_functions').scalar_one_or_none()  # noqa: S608
    return found != digest()


def _version(connection: Connection, schema: str) -> int | None:
    names = set(
        connection.scalars(
            text("SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = :s"),
            {"s": schema},
        )
    )
    foreign = sorted(names.intersection((*JOURNAL, *VIEWS)))
    if "squid_schema" in names:
        foreign = ["squid_schema"]
        if _columns(connection, schema, "squid_schema") == {"version", "oldest_code"}:
            row = connection.exec_driver_sql(f'SELECT version FROM "{schema}".squid_schema').one_or_none()  # noqa: S608
            if row is not None:
                return int(row[0])
    if foreign:
        raise ForeignSchema(
            f"schema {schema!r} holds {', '.join(foreign)}, but not written by us: "
            "choose another schema name (SQUID_SCHEMA)"
        )
    return None


def _columns(connection: Connection, schema: str, table: str) -> set[str]:
    found = text("SELECT column_name FROM information_schema.columns WHERE table_schema = :s AND table_name = :t")
    return set(connection.scalars(found, {"s": schema, "t": table}))
