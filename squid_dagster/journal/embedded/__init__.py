"""An embedded Postgres: binaries from a wheel, one server per data directory, Unix socket only.

The server starts on first use, is no process's child, is shared by all processes of the user, and runs until `stop`.
"""

from squid_dagster.journal.embedded.server import EmbeddedPostgres, EmbeddedStatus

__all__ = ["EmbeddedPostgres", "EmbeddedStatus"]
