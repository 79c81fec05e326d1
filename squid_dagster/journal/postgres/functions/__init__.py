"""The SQL functions as they are now: one file each, applied after the numbered migrations.

A migration that was released still creates the functions of its time; these take their place. A file holds one
`CREATE OR REPLACE FUNCTION`, preceded by `DROP FUNCTION IF EXISTS` where a signature went away. Code of every version
down to `squid_schema.oldest_code` calls these, so that a signature goes away when no such code calls it any more.

The comment on a function is the digest of its file, so that an upgrade replaces those that differ, and no others.
"""

import hashlib
from functools import cache
from importlib.resources import files
from typing import LiteralString

from psycopg import sql

from squid_dagster.journal.postgres.connection import PgConnection
from squid_dagster.journal.postgres.schema import fill_in

# pg_proc_proname_args_nsp_index, pg_description_o_c_o_index
COMMENTS: LiteralString = """SELECT json_object_agg(p.proname, d.description)
      FROM pg_catalog.pg_proc p
      LEFT JOIN pg_catalog.pg_description d
        ON d.objoid = p.oid AND d.classoid = 'pg_catalog.pg_proc'::regclass AND d.objsubid = 0
     WHERE p.proname = ANY (%(names)s) AND p.pronamespace = to_regnamespace(%(schema)s)"""
_COMMENT: LiteralString = "COMMENT ON FUNCTION {} IS {}"


@cache
def sources() -> dict[str, str]:
    """Return the text of every file by its function's name, sorted."""
    found = [file for file in files(__name__).iterdir() if file.name.endswith(".sql")]
    return {
        file.name.removesuffix(".sql"): file.read_text("utf-8") for file in sorted(found, key=lambda file: file.name)
    }


@cache
def digests() -> dict[str, str]:
    """Return by name what tells each function from that of other code."""
    return {name: f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" for name, text in sources().items()}


def comments_arguments(schema: str) -> dict[str, object]:
    """Return what `COMMENTS` asks for, of the functions that have a file."""
    return {"names": list(sources()), "schema": schema}


def apply_functions(connection: PgConnection, schema: str) -> None:
    """Create or replace every function that is not the one of its file, in the open transaction."""
    (there,) = connection.execute(COMMENTS, comments_arguments(schema)).fetchone() or (None,)
    for name, digest in digests().items():
        if (there or {}).get(name) != digest:
            connection.execute(fill_in(sources()[name], schema))
            connection.execute(sql.SQL(_COMMENT).format(sql.Identifier(schema, name), sql.Literal(digest)))
