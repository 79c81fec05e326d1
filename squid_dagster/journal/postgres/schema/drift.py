"""Whether a schema is what an upgrade makes of it: both are read from the catalog and compared object by object.

The other one is made beside it, in a transaction that is rolled back: nobody sees it, and nothing of it stays.
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
"""By kind and name, what makes an object what it is."""

_NOT_ALLOWED = ("42501", "25006")  # no rights, read-only
_LOCKS = ("gate", "positions", "buckets", "cards")

_PARTS = ("constraint", "index", "trigger")  # of a table, named behind it
_KINDS = ("table", "sequence", "function", *_PARTS)

# Columns in their order, for statements count on it. Constraints of NOT NULL are told by the columns.
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
    """The database does not let us make a schema beside the one that is looked at."""


def drift(storage: PostgresStorage) -> list[str]:
    """Say in one line each which objects of the schema are missing, differ, or are not ours; none: it is as it should.

    The schema must be at this code's version. Storage parameters and rights are the administrator's, and not compared.

    Raises:
        DriftUnknown: we may not make a schema in this database.
        StorageUnavailable: the database cannot be reached.
    """
    scratch = f"squid_doctor_{uuid4().hex[:12]}"
    try:
        with storage.schema_engine.connect() as connection:
            try:
                connection.exec_driver_sql(f'CREATE SCHEMA "{scratch}"')
                build(connection, scratch)
                there, meant = _objects(connection, storage.schema), _objects(connection, scratch)
            finally:
                connection.rollback()
    except (exc.SQLAlchemyError, psycopg.Error) as error:
        failure = translated(storage.engine, error)
        if isinstance(failure, StorageUnavailable) and failure.sqlstate not in _NOT_ALLOWED:
            raise failure from None
        said = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise DriftUnknown(f"a schema to compare with could not be made: {said}") from None
    return list(differences(meant, there))


def differences(meant: Objects, there: Objects) -> Iterator[str]:
    """Name what is missing, different or too much; of a table that is not on both sides, nothing but itself. Pure."""
    lonely = {name for kind, name in meant.keys() ^ there.keys() if kind == "table"}
    for kind, name in sorted({*meant, *there}, key=lambda each: (_KINDS.index(each[0]), each[1])):
        left, right = meant.get((kind, name)), there.get((kind, name))
        if left == right or (kind in _PARTS and name.partition(".")[0] in lonely):
            continue
        what = "is missing" if right is None else "is not ours" if left is None else "differs"
        yield f"{kind} {name} {what}"


def _objects(connection: Connection, schema: str) -> Objects:
    found: Objects = {}
    for query in _QUERIES:
        for kind, name, parts in connection.execute(text(query), {"s": schema}):
            if SHADOW not in name:  # of a rebuild that is under way, or crashed: the next one takes it away
                found[kind, name] = tuple(_unnamed(parts, schema))
    return found


def _unnamed(parts: Iterable[str | None], schema: str) -> Iterator[str | None]:
    """Take out what the name of a schema leaves in its objects: the name itself, and the numbers of its locks."""
    name = re.compile(rf'(?<![\w"])"?{re.escape(schema)}"?\.')
    for part in parts:
        told = part
        if told is not None:
            told = name.sub("{schema}.", told)
            for purpose in _LOCKS:
                number = lock_number(schema, purpose)
                # A negative number is written with a blank before it.
                told = told.replace(f" {number}" if number < 0 else str(number), "{" + purpose + "}")
        yield told
