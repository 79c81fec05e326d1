"""A real Postgres for those who have none: binaries from a wheel, one server per data directory, Unix socket only.

The server starts on first use, belongs to no process, is shared by all processes of the user, and ends only when told.
"""

from squid_dagster.journal.embedded.server import EmbeddedPostgres, EmbeddedStatus

__all__ = ["EmbeddedPostgres", "EmbeddedStatus"]
