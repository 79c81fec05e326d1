"""Schemas as earlier versions were released."""

from collections.abc import Iterator
from contextlib import contextmanager

from squid_dagster.journal.postgres.schema import migrations
from squid_dagster.journal.postgres.schema.functions import apply_functions, sources
from squid_dagster.journal.postgres.schema.names import CODE_VERSION, fill_in
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.journal.access import raw

EARLIER_VERSIONS = range(1, CODE_VERSION)
_FUNCTIONS_BY_FILE = 6  # until then, migrations made them
_LAST_BY_ALEMBIC = 7


def make_released(storage: PostgresStorage, version: int) -> PostgresStorage:
    """Create the schema of a version: its tables, and its functions if migrations made them, else those of today.

    Up to version 7, Alembic ran the migrations and had a version table of its own; functions had no comments.
    """
    with raw(storage) as connection, connection.transaction():
        connection.execute(f'CREATE SCHEMA "{storage.schema}"')
        migrations.run(connection, storage.schema, after=0, upto=version)
        if version >= _FUNCTIONS_BY_FILE:
            apply_functions(connection, storage.schema)
        if version <= _LAST_BY_ALEMBIC:
            connection.execute("CREATE TABLE squid_schema_revision (version_num varchar(32) PRIMARY KEY)")
            connection.execute("INSERT INTO squid_schema_revision VALUES (%s)", (f"{version:04}",))
            if version >= _FUNCTIONS_BY_FILE:
                connection.execute("UPDATE squid_functions SET digest = 'released'")
                for name in sources():
                    connection.execute(f"COMMENT ON FUNCTION {name} IS NULL")
    return storage


@contextmanager
def written_by_this_code(storage: PostgresStorage, version: int) -> Iterator[None]:
    """Enable this code to commit to a schema of that version: what it locks by is added, and removed at the end."""
    with raw(storage) as connection:
        if version < _FUNCTIONS_BY_FILE:
            connection.execute(fill_in(sources()["lock_runs"], storage.schema))
        yield
        if version < _FUNCTIONS_BY_FILE:
            connection.execute("DROP FUNCTION lock_runs")
