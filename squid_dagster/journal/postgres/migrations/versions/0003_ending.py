"""The function for completions that can only end their runs."""

from alembic import context, op

from squid_dagster.journal.postgres.schema import render

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the function to the schema at hand."""
    connection = op.get_bind().connection.driver_connection
    assert connection is not None  # noqa: S101  Alembic never runs a migration without one
    connection.execute(render("0003_ending", context.config.attributes["schema"]))
