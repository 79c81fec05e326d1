"""A primary, and a standby that takes its place: two servers on disks of their own, behind one proxy."""

import shutil
import time
from pathlib import Path

import psycopg

from tests.chaos.servers.disk import Disk
from tests.chaos.servers.server import Server
from tests.servers.proxy import Proxy

_PATIENCE_SECONDS = 60.0


class Cluster:
    """The cluster that clients reach at `url`: the proxy connects them to the server that is the primary now."""

    def __init__(self, home: Path) -> None:
        """Create and start a primary in `home`."""
        self._home = home
        self._disks = {name: Disk(home / name) for name in ("a", "b")}
        self.disk = self._disks["a"]
        self.primary = self._server("a")
        self._servers = [self.primary]
        self.primary.create()
        self.primary.start()
        self.proxy = Proxy(self.primary.socket_path)

    def _server(self, name: str) -> Server:
        return Server(self._disks[name].path, self._home, name)

    @property
    def url(self) -> str:
        """The URL of the database for clients, whatever happens to its servers."""
        return self.proxy.url(self.primary.url)

    def fail_over(self) -> None:
        """Create a synchronous standby, kill the primary by SIGKILL, and promote the standby in its place.

        A failure before the kill leaves the primary as it was; after it, there is no way back to the old one.
        """
        name = "b" if self.disk is self._disks["a"] else "a"
        standby = self._server(name)
        try:
            standby.copy(self.primary)
            self._servers.append(standby)
            standby.start()
            with self.primary.connect() as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.execute("SELECT pg_reload_conf()")
                self._until(connection, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
        except psycopg.Error:
            standby.stop_immediately()
            shutil.rmtree(standby.data)
            raise
        old, self.primary, self.disk = self.primary, standby, self._disks[name]
        old.crash()
        self.proxy.cut()
        standby.promote()
        self._reset()
        self.proxy.retarget(standby.socket_path)
        shutil.rmtree(old.data)

    def heal(self) -> None:
        """Undo what an interrupted fault may have left behind."""
        self.proxy.resume()
        self.disk.free()
        self.primary.start()
        self._reset()

    def _reset(self) -> None:
        """Reset the primary's settings to those that it has without faults."""
        with self.primary.connect() as connection:
            connection.execute("ALTER ROLE postgres RESET ALL")
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")

    @staticmethod
    def _until(connection: object, query: str) -> None:
        """Repeat a query until it returns a number above zero."""
        ends = time.monotonic() + _PATIENCE_SECONDS
        while True:
            row = connection.execute(query).fetchone()  # type: ignore[attr-defined]
            if row is not None and row[0]:
                return
            if time.monotonic() > ends:
                raise RuntimeError(f"it never came to that: {query}")
            time.sleep(0.02)

    def logs(self) -> str:
        """Return everything that all servers have logged."""
        paths = {server.log for server in self._servers if server.log.exists()}
        return "".join(path.read_text(errors="replace") for path in sorted(paths))

    def close(self) -> None:
        """Stop all servers, and unmount the disks."""
        self.proxy.close()
        for server in self._servers:
            server.stop_immediately()
        for disk in self._disks.values():
            disk.close()
