"""The numbered migrations: plain SQL files, `sql/NNNN_*.sql`, that upgrade a schema from one version to the next.

The files of a number are executed in the order of their names, and the last one writes the number into `squid_schema`.
A released file is never edited.
"""

from functools import cache
from importlib.resources import files
from typing import LiteralString

from psycopg import sql

from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.schema.names import VIEWS, fill_in

# pg_class_relname_nsp_index
_VIEWS_THERE: LiteralString = """SELECT count(*) FROM pg_catalog.pg_class
    WHERE relname = ANY (%s) AND relnamespace = to_regnamespace(%s)"""
_VIEWS = ("0001_3_views", "0007_indexes", "0008_indexes")  # together, the newest definition of the views


@cache
def sources() -> dict[str, str]:
    """Return the text of every file by its name without the ending, in the order in which they are executed."""
    paths = [file for file in files(__name__).joinpath("sql").iterdir() if file.name.endswith(".sql")]
    return {
        file.name.removesuffix(".sql"): file.read_text("utf-8") for file in sorted(paths, key=lambda file: file.name)
    }


def number_of(name: str) -> int:
    """Return the version that a file belongs to."""
    return int(name.partition("_")[0])


def render(name: str, schema: str, suffix: str = "") -> sql.Composed:
    """Return the statements of one file for a schema; `suffix` is that of shadow tables."""
    return fill_in(sources()[name], schema, suffix)


def run(connection: PgConnection, schema: str, after: int, upto: int) -> None:
    """Execute the migrations after a version, up to another one, in the open transaction.

    If a view is missing, the views are left as they are: a rebuild creates all of them by their newest definition.
    """
    rebuilt = after > 0 and connection.execute(_VIEWS_THERE, (list(VIEWS), schema)).fetchone() != (len(VIEWS),)
    for name in sources():
        if after < number_of(name) <= upto and not (rebuilt and name in _VIEWS):
            connection.execute(render(name, schema))


def views_sql(schema: str, suffix: str = "") -> sql.Composed:
    """Return the statements that create the live views, or their shadows."""
    return sql.Composed([render(name, schema, suffix) for name in _VIEWS])
