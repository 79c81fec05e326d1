"""The SQL functions in their current state: one file each, applied after the numbered migrations.

A released migration still creates the functions of its time; these replace them. A file holds one `CREATE OR REPLACE
FUNCTION`, preceded by `DROP FUNCTION IF EXISTS` if a signature was removed. Code of every version down to
`squid_schema.oldest_code` calls these, so a signature is removed only when no such code calls it any more.

Lists of columns are filled in from the rows that we write (`rows.py`): `{run_columns}` and `{attempt_columns}` are all
but the key and the position, `{run_excluded}` and `{attempt_excluded}` the same of `EXCLUDED` in an upsert.

The comment on a function is the digest of its file, so that an upgrade replaces those that differ, and no others.
"""

import hashlib
from functools import cache
from importlib.resources import files
from typing import LiteralString

from psycopg import sql

from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.schema.names import fill_in
from squid_dagster.journal.postgres.views.rows import ATTEMPT_COLUMNS, RUN_COLUMNS

# pg_proc_proname_args_nsp_index, pg_description_o_c_o_index
COMMENTS: LiteralString = """SELECT json_object_agg(p.proname, d.description)
      FROM pg_catalog.pg_proc p
      LEFT JOIN pg_catalog.pg_description d
        ON d.objoid = p.oid AND d.classoid = 'pg_catalog.pg_proc'::regclass AND d.objsubid = 0
     WHERE p.proname = ANY (%(names)s) AND p.pronamespace = to_regnamespace(%(schema)s)"""
_KEYS_AND_POSITION = ("run_id", "runnable_key", "position")
_COMMENT: LiteralString = "COMMENT ON FUNCTION {} IS {}"


@cache
def sources() -> dict[str, str]:
    """Return the text of every file, with lists of columns filled in, by its function's name, sorted."""
    paths = [file for file in files(__name__).iterdir() if file.name.endswith(".sql")]
    return {
        file.name.removesuffix(".sql"): _with_columns(file.read_text("utf-8"))
        for file in sorted(paths, key=lambda file: file.name)
    }


def _with_columns(text: str) -> str:
    for table, columns in (("run", RUN_COLUMNS), ("attempt", ATTEMPT_COLUMNS)):
        values = [name for name in columns if name not in _KEYS_AND_POSITION]
        text = text.replace(f"{{{table}_columns}}", ", ".join(values))
        text = text.replace(f"{{{table}_excluded}}", ", ".join(f"EXCLUDED.{name}" for name in values))
    return text


@cache
def digests() -> dict[str, str]:
    """Return the digest of each function by its name."""
    return {name: f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" for name, text in sources().items()}


def comments_arguments(schema: str) -> dict[str, object]:
    """Return the arguments of `COMMENTS` for the functions that have a file."""
    return {"names": list(sources()), "schema": schema}


def apply_functions(connection: PgConnection, schema: str) -> None:
    """Create or replace every function that differs from its file, in the open transaction."""
    (comments,) = connection.execute(COMMENTS, comments_arguments(schema)).fetchone() or (None,)
    for name, digest in digests().items():
        if (comments or {}).get(name) != digest:
            connection.execute(fill_in(sources()[name], schema))
            connection.execute(sql.SQL(_COMMENT).format(sql.Identifier(schema, name), sql.Literal(digest)))
