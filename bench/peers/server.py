"""The Postgres of all systems: a server of its own, a database per measurement, durability as in production."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from bench.peers.process import BenchError
from squid_dagster.journal.embedded import EmbeddedPostgres

# What a crash must not take away; a benchmark with one of them off says nothing about durable work.
DURABLE = ("fsync", "synchronous_commit", "full_page_writes")
_SHOWN = (*DURABLE, "server_version", "shared_buffers", "max_connections", "wal_level", "max_wal_size")


class Server:
    """A running server, on which databases are created and dropped."""

    def __init__(self, url: str) -> None:
        """Set the server by the SQLAlchemy URL of any of its databases."""
        self._host = url.partition("?")[2]
        self._serial = 0

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database, in the form that every driver takes."""
        return f"postgresql://postgres@/{database}?{self._host}"

    def settings(self) -> dict[str, str]:
        """Return settings of the server, as SHOW prints them.

        Raises:
            BenchError: commits of this server do not survive a crash.
        """
        with psycopg.connect(self.url()) as connection:
            shown = {name: str(connection.execute(f"SHOW {name}").fetchone()[0]) for name in _SHOWN}  # type: ignore[index]
        off = [name for name in DURABLE if shown[name] != "on"]
        if off:
            msg = f"{', '.join(off)} is not on: these figures would not be about durable work"
            raise BenchError(msg)
        return shown

    def create(self, database: str, template: str = "template1") -> str:
        """Create a database, empty or a copy, and return its URL."""
        self._administer("CREATE DATABASE {} TEMPLATE {}", database, template)
        return self.url(database)

    @contextmanager
    def copy_of(self, template: str) -> Iterator[str]:
        """Yield the URL of a fresh copy of a database, which is dropped afterwards."""
        self._serial += 1
        database = f"{template}_{self._serial}"
        url = self.create(database, template)
        try:
            yield url
        finally:
            self._administer("DROP DATABASE {} WITH (FORCE)", database)

    def settle(self, url: str) -> None:
        """Run VACUUM ANALYZE and CHECKPOINT, so that earlier writes cost nothing later."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")

    def _administer(self, statement: str, *names: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@contextmanager
def new_server() -> Iterator[Server]:
    """Start a server on a new directory, and remove both in the end."""
    with tempfile.TemporaryDirectory(prefix="squid-bench-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        embedded = EmbeddedPostgres(Path(directory) / "postgres")
        try:
            yield Server(embedded.ensure_running())
        finally:
            embedded.stop()
