"""One Postgres server for chaos: started, killed, restarted, copied to a standby and promoted.

Unlike `EmbeddedPostgres` it is a child of this process, and its log is kept for the checker.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from squid_dagster.journal.embedded import wheel
from squid_dagster.journal.embedded.account import UNPRIVILEGED_ID, Account

PORT = 5432
_PATIENCE_SECONDS = 60.0
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "80",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "dynamic_shared_memory_type": "mmap",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %e ",
    "wal_level": "replica",
    "hot_standby": "on",
    "wal_receiver_status_interval": "1s",
    "restart_after_crash": "on",
}
# For the campaign's own sessions, against `set_hostile_defaults`; `synchronous_commit`, as a standby may be gone.
_OWN_OPTIONS = " ".join(
    f"-c {setting}"
    for setting in (
        "statement_timeout=0",
        "lock_timeout=0",
        "idle_in_transaction_session_timeout=0",
        "idle_session_timeout=0",
        r"default_transaction_isolation=read\ committed",
        "default_transaction_read_only=off",
        "synchronous_commit=local",
    )
)


class Server:
    """A cluster in a directory, listening on a Unix socket beside it."""

    def __init__(self, folder: Path, home: Path, name: str) -> None:
        """Name the directories: `folder` is on the server's disk, `home` holds its socket, its log and the binaries."""
        me = Account(os.geteuid(), os.getegid())
        self._account = Account(UNPRIVILEGED_ID, UNPRIVILEGED_ID) if me.uid == 0 else me
        self.data = folder / "data"
        self.sockets = home / f"{name}.run"
        self.log = home / f"{name}.log"
        shipped = wheel.installed()
        self._binaries = wheel.readable_by(self._account, shipped[max(shipped)], home / "bin")
        self._process: subprocess.Popen[bytes] | None = None
        for directory in (self.data, self.sockets):
            directory.mkdir(mode=0o700, exist_ok=True)
            os.chown(directory, self._account.uid, self._account.gid)

    @property
    def socket_path(self) -> str:
        """The socket that it listens on."""
        return f"{self.sockets}/.s.PGSQL.{PORT}"

    @property
    def conninfo(self) -> str:
        """The connection string of libpq."""
        return make_conninfo(host=str(self.sockets), port=PORT, user="postgres", dbname="postgres", connect_timeout=5)

    @property
    def url(self) -> str:
        """The URL of SQLAlchemy."""
        return f"postgresql+psycopg://postgres@/postgres?host={self.sockets}&port={PORT}"

    def create(self) -> None:
        """Create an empty cluster."""
        settings = [f"--set={name}={value}" for name, value in _SETTINGS.items()]
        locale = ["--encoding=UTF8", "--locale=C", "--auth=trust", "--username=postgres", "--no-sync"]
        self._run("initdb", f"--pgdata={self.data}", *locale, *settings)

    def copy(self, primary: "Server") -> None:
        """Create this cluster as a standby of another, which runs."""
        self._run("pg_basebackup", "-d", primary.conninfo, "-D", str(self.data), "-R", "-X", "stream", "-c", "fast")

    def promote(self) -> None:
        """Promote this standby to a primary; by a signal, for a session on it could conflict with its recovery."""
        self._run("pg_ctl", "promote", "-D", str(self.data), "-w", "-t", str(int(_PATIENCE_SECONDS)))

    def _run(self, program: str, *arguments: str) -> None:
        done = self._account.run(
            [self._binaries.program(program), *arguments], output=subprocess.PIPE, timeout_seconds=_PATIENCE_SECONDS
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stdout.decode(errors='replace')}")

    def start(self) -> None:
        """Start it and wait until it takes connections, trying again while remains of a killed one are in the way."""
        ends = time.monotonic() + _PATIENCE_SECONDS
        while pq.Ping(pq.PGconn.ping(self.conninfo.encode())) is not pq.Ping.OK:
            if self._process is None or self._process.poll() is not None:
                self._launch()
            if time.monotonic() > ends:
                raise RuntimeError(f"Postgres did not start: {self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def _launch(self) -> None:
        ours = self._account.is_ours
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._binaries.program("postgres")),
                    *("-D", str(self.data)),
                    *("-c", f"unix_socket_directories={self.sockets}", "-c", f"port={PORT}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
                cwd="/",
                start_new_session=True,
                user=None if ours else self._account.uid,
                group=None if ours else self._account.gid,
                extra_groups=None if ours else [],
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the postmaster, if there is one."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def wait_ended(self) -> None:
        """Wait until the postmaster has ended."""
        if self._process is not None:
            self._process.wait(_PATIENCE_SECONDS)

    def crash(self) -> None:
        """Kill the postmaster by SIGKILL."""
        self.signal(signal.SIGKILL)
        self.wait_ended()

    def stop_immediately(self) -> None:
        """Stop it without a checkpoint, as an immediate shutdown does."""
        self.signal(signal.SIGQUIT)
        self.wait_ended()

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """Open a connection past the proxy, in autocommit mode, whatever the defaults are; raises `psycopg.Error`."""
        return psycopg.connect(self.conninfo, autocommit=True, options=_OWN_OPTIONS)

    def processes(self) -> list[int]:
        """Return the process ids of all sessions but our own, of the server's helpers, and of the postmaster."""
        with self.connect() as connection:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() ORDER BY backend_type, pid"
            ).fetchall()
        postmaster = [] if self._process is None else [self._process.pid]
        return [*(int(str(row[0])) for row in rows), *postmaster]
