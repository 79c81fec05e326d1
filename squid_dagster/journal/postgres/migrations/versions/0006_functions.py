"""The record of which functions a schema has."""

from alembic import context, op

from squid_dagster.journal.postgres.schema import render

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the table to the schema at hand."""
    connection = op.get_bind().connection.driver_connection
    assert connection is not None  # noqa: S101  Alembic never runs a migration without one
    connection.execute(render("0006_functions", context.config.attributes["schema"]))
