"""Functions for the shorter ways of starting and settling."""

from alembic import context, op

from squid_dagster.journal.postgres.schema import render

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the functions to the schema at hand."""
    connection = op.get_bind().connection.driver_connection
    assert connection is not None  # noqa: S101  Alembic never runs a migration without one
    connection.execute(render("0002_shorter", context.config.attributes["schema"]))
