"""The function for starts whose facts and rows are known beforehand."""

from alembic import context, op

from squid_dagster.journal.postgres.schema import render

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the function to the schema at hand."""
    connection = op.get_bind().connection.driver_connection
    assert connection is not None  # noqa: S101  Alembic never runs a migration without one
    connection.execute(render("0005_starting", context.config.attributes["schema"]))
