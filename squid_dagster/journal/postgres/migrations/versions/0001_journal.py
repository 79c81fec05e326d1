"""The journal, its live views, and the functions that append and claim."""

from alembic import context, op

from squid_dagster.journal.postgres.schema import render

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create everything in the schema at hand."""
    schema = context.config.attributes["schema"]
    connection = op.get_bind().connection.driver_connection
    assert connection is not None  # noqa: S101  Alembic never runs a migration without one
    for part in ("schema", "journal", "views", "append", "claim"):
        connection.execute(render(f"0001_{part}", schema))
