"""Alembic's entry: runs on the connection and in the schema that `migrate.upgrade` hands over."""

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    version_table="squid_schema_revision",
    version_table_schema=attributes["schema"],
    transactional_ddl=True,
)
context.run_migrations()
