"""The index by which a child is found by its key."""

from alembic import context, op

from squid_dagster.journal.postgres.schema import render

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the index to the schema at hand."""
    connection = op.get_bind().connection.driver_connection
    assert connection is not None  # noqa: S101  Alembic never runs a migration without one
    for name in ("0007_children", "0007_version"):
        connection.execute(render(name, context.config.attributes["schema"]))
