"""The SQL functions as they are now: one file each, applied after the numbered migrations.

A migration that was released still creates the functions of its time; these take their place. A file holds one
`CREATE OR REPLACE FUNCTION`, preceded by `DROP FUNCTION IF EXISTS` where a signature went away. Code of every version
down to `squid_schema.oldest_code` calls these, so that a signature goes away when no such code calls it any more.
"""

import hashlib
from functools import cache
from importlib.resources import files

from psycopg import sql

from squid_dagster.journal.postgres.connection import PgConnection
from squid_dagster.journal.postgres.schema import fill_in, statement

_SET_DIGEST = "UPDATE {schema}.squid_functions SET digest = %s"


@cache
def sources() -> dict[str, str]:
    """Return the text of every file by its function's name, sorted."""
    found = [file for file in files(__name__).iterdir() if file.name.endswith(".sql")]
    return {
        file.name.removesuffix(".sql"): file.read_text("utf-8") for file in sorted(found, key=lambda file: file.name)
    }


@cache
def digest() -> str:
    """Return what tells these functions from those of other code."""
    return hashlib.sha256("\0".join(f"{name}\0{text}" for name, text in sources().items()).encode()).hexdigest()


def render_function(name: str, schema: str) -> sql.Composed:
    """Return the statements that make one function in a schema."""
    return fill_in(sources()[name], schema)


def apply_functions(connection: PgConnection, schema: str) -> None:
    """Create or replace every function, in the open transaction, and record their digest."""
    for name in sources():
        connection.execute(render_function(name, schema))
    connection.execute(statement(_SET_DIGEST, schema), (digest(),))
