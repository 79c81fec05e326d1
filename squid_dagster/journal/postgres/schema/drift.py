"""Schema drift: compares a schema with a new one as an upgrade builds it, object by object, from the catalog.

The new schema is created in a transaction that is rolled back: no other session sees it.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
from sqlalchemy import Connection, exc, text

from squid_dagster.journal.postgres.connection.failures import translated
from squid_dagster.journal.postgres.schema.names import lock_number
from squid_dagster.journal.postgres.schema.upgrade import build
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.table_swap import SHADOW
from squid_dagster.protocol.errors import SquidError, StorageUnavailable

Objects = dict[tuple[str, str], tuple[Any, ...]]
"""The properties of objects by kind and name."""

_NOT_ALLOWED = ("42501", "25006")  # no rights, read-only
_LOCKS = ("gate", "positions", "buckets", "cards")

_PARTS = ("constraint", "index", "trigger")  # of a table, named behind it
_KINDS = ("table", "sequence", "function", *_PARTS)

# Columns in their order, on which statements rely. NOT NULL constraints are compared with the columns.
_QUERIES = (
    """SELECT 'table', c.relname, array_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' '
              || a.attnotnull || ' ' || coalesce(l.collname, '') || ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
              ORDER BY a.attnum)
         FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         LEFT JOIN pg_collation l ON l.oid = a.attcollation
         LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = to_regnamespace(:s) AND c.relkind IN ('r', 'p', 'v', 'm', 'f') GROUP BY c.relname""",
    """SELECT 'sequence', c.relname, ARRAY[format_type(q.seqtypid, NULL), q.seqincrement::text, q.seqcycle::text,
              q.seqcache::text]
         FROM pg_class c JOIN pg_sequence q ON q.seqrelid = c.oid WHERE c.relnamespace = to_regnamespace(:s)""",
    """SELECT 'index', t.relname || '.' || c.relname, ARRAY[pg_get_indexdef(c.oid), i.indisvalid::text]
         FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid JOIN pg_class t ON t.oid = i.indrelid
        WHERE c.relnamespace = to_regnamespace(:s)""",
    """SELECT 'constraint', r.relname || '.' || c.conname, ARRAY[pg_get_constraintdef(c.oid)]
         FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid
        WHERE c.connamespace = to_regnamespace(:s) AND c.contype <> 'n'""",
    """SELECT 'trigger', c.relname || '.' || t.tgname, ARRAY[pg_get_triggerdef(t.oid), t.tgenabled::text]
         FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relnamespace = to_regnamespace(:s) AND NOT t.tgisinternal""",
    """SELECT 'function', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
              ARRAY[p.prosrc, pg_get_function_result(p.oid), p.provolatile::text, p.prosecdef::text,
                    array_to_string(p.proconfig, ' ')]
         FROM pg_proc p WHERE p.pronamespace = to_regnamespace(:s)""",
)


class DriftUnknown(SquidError):
    """The database does not let us create a schema to compare with."""


def drift(storage: PostgresStorage) -> list[str]:
    """Return one line for each object of the schema that is missing, differs, or is not ours.

    The schema must be at this code's version. Storage parameters and rights are the administrator's, and not compared.

    Raises:
        DriftUnknown: we may not create a schema in this database.
        StorageUnavailable: the database cannot be reached.
    """
    scratch = f"squid_doctor_{uuid4().hex[:12]}"
    try:
        with storage.schema_engine.connect() as connection:
            try:
                connection.exec_driver_sql(f'CREATE SCHEMA "{scratch}"')
                build(connection, scratch)
                actual, expected = _objects(connection, storage.schema), _objects(connection, scratch)
            finally:
                connection.rollback()
    except (exc.SQLAlchemyError, psycopg.Error) as error:
        failure = translated(storage.engine, error)
        if isinstance(failure, StorageUnavailable) and failure.sqlstate not in _NOT_ALLOWED:
            raise failure from None
        message = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise DriftUnknown(f"a schema to compare with could not be made: {message}") from None
    return list(differences(expected, actual))


def differences(expected: Objects, actual: Objects) -> Iterator[str]:
    """Yield what is missing, different or not ours; of a table that is only on one side, just the table. Pure."""
    one_sided = {name for kind, name in expected.keys() ^ actual.keys() if kind == "table"}
    for kind, name in sorted({*expected, *actual}, key=lambda key: (_KINDS.index(key[0]), key[1])):
        left, right = expected.get((kind, name)), actual.get((kind, name))
        if left == right or (kind in _PARTS and name.partition(".")[0] in one_sided):
            continue
        what = "is missing" if right is None else "is not ours" if left is None else "differs"
        yield f"{kind} {name} {what}"


def _objects(connection: Connection, schema: str) -> Objects:
    objects: Objects = {}
    for query in _QUERIES:
        for kind, name, parts in connection.execute(text(query), {"s": schema}):
            if SHADOW not in name:  # of a rebuild that runs, or that crashed: the next one drops it
                objects[kind, name] = tuple(_without_schema_name(parts, schema))
    return objects


def _without_schema_name(parts: Iterable[str | None], schema: str) -> Iterator[str | None]:
    """Replace the parts of objects that depend on the schema's name: the name, and the numbers of its locks."""
    name = re.compile(rf'(?<![\w"])"?{re.escape(schema)}"?\.')
    for part in parts:
        neutral = part
        if neutral is not None:
            neutral = name.sub("{schema}.", neutral)
            for purpose in _LOCKS:
                number = lock_number(schema, purpose)
                # A negative number is written with a blank before it.
                neutral = neutral.replace(f" {number}" if number < 0 else str(number), "{" + purpose + "}")
        yield neutral
