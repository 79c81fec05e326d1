"""Indexes by which children are found by their keys, and attempts by their visits."""

from alembic import context, op

from squid_dagster.journal.postgres.schema import render

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Change the indexes of the schema at hand."""
    connection = op.get_bind().connection.driver_connection
    assert connection is not None  # noqa: S101  Alembic never runs a migration without one
    for name in ("0007_indexes", "0007_version"):
        connection.execute(render(name, context.config.attributes["schema"]))
