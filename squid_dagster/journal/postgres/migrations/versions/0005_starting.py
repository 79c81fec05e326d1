"""The function for starts whose facts and rows are known beforehand, and a claim with fewer statements."""

from alembic import context, op

from squid_dagster.journal.postgres.schema import render

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the one and replace the other in the schema at hand."""
    schema = context.config.attributes["schema"]
    connection = op.get_bind().connection.driver_connection
    assert connection is not None  # noqa: S101  Alembic never runs a migration without one
    for part in ("claim", "starting"):
        connection.execute(render(f"0005_{part}", schema))
