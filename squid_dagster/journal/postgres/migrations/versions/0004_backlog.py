"""The backlog: the cards, and the functions that lock, change and claim them."""

from alembic import context, op

from squid_dagster.journal.postgres.schema import render

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create everything in the schema at hand."""
    schema = context.config.attributes["schema"]
    connection = op.get_bind().connection.driver_connection
    assert connection is not None  # noqa: S101  Alembic never runs a migration without one
    for part in ("cards", "backlog"):
        connection.execute(render(f"0004_{part}", schema))
