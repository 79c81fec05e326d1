"""The assets of this code location: the journal, and the tables that Spark makes of it, with their job and schedule."""

from squid_dagster.plugin.projections import projection_definitions

# Without a path: SQUID_WAREHOUSE, else a directory beside the embedded server's data. Spark runs in the run's process.
defs = projection_definitions()
