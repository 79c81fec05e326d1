"""The server's start and stop: the first process that uses it starts it, all others find it, and only `stop` ends it.

Two locks protect it. The start lock lets one process at a time start or stop the server. The server lock is inherited
by the server and all its children: while it is held, a process works on the files; once it is free, none does, and all
remaining files are stale, whatever pid they name. Whether the server runs is decided by a ping.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

from psycopg import pq
from psycopg.conninfo import make_conninfo

from squid_dagster.journal.embedded import cluster, wheel
from squid_dagster.journal.embedded.account import account_for
from squid_dagster.journal.embedded.deadline import Deadline
from squid_dagster.journal.embedded.layout import PORT, Layout
from squid_dagster.journal.embedded.locks import is_held, locked, try_lock
from squid_dagster.protocol.errors import EmbeddedUnavailable

_PING_SECONDS = 2

# The shell exits at once, so that the server is no child of this process; it does not interpret the arguments.
_DETACH = '"$@" &'


@dataclass(frozen=True, slots=True)
class EmbeddedStatus:
    """The state of the server of one data directory."""

    running: bool
    pid: int | None  # of the postmaster; None when it does not run, or runs in another container
    major: int | None  # of the cluster; None before the first start
    data_dir: Path
    socket_dir: Path


class EmbeddedPostgres:
    """The Postgres server of one data directory. Cheap to create; any number of processes may use one."""

    def __init__(self, data_dir: str | os.PathLike[str], *, timeout: timedelta = timedelta(seconds=60)) -> None:
        """Set the directory. Nothing is created before `ensure_running`."""
        self._layout = Layout(Path(data_dir).expanduser().resolve())
        self._timeout = timeout

    @property
    def data_dir(self) -> Path:
        """The directory that holds the cluster, its locks and its logs, without symbolic links."""
        return self._layout.data_dir

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the server, running or not. There is no password: the socket's directory guards it."""
        host = quote(str(self._layout.socket_dir), safe="/")
        return f"postgresql+psycopg://{cluster.SUPERUSER}@/postgres?host={host}&port={PORT}"

    def ensure_running(self) -> str:
        """Start the server unless it runs, wait until it takes connections, and return its URL.

        Raises EmbeddedUnavailable if it cannot be started here, with reason and remedy; no partial cluster is left.
        """
        with _clear_errors(self.data_dir):
            if self._ping() is not pq.Ping.OK:
                account_for(self._layout.pgdata).require_way_to(self.data_dir)
                self._layout.make_data_dir()
                deadline = Deadline(self._timeout)
                with locked(self._layout.start_lock, deadline):
                    self._start(deadline)
        return self.url

    def stop(self) -> bool:
        """Stop the server and wait until its last process has exited; return False if none was running.

        Raises EmbeddedUnavailable if it cannot be stopped from here.
        """
        with _clear_errors(self.data_dir):
            if not self._layout.server_lock.exists():
                return False
            deadline = Deadline(self._timeout)
            with locked(self._layout.start_lock, deadline):
                return self._stop(deadline)

    def status(self) -> EmbeddedStatus:
        """Return the server's state, without side effects."""
        layout = self._layout
        with _clear_errors(self.data_dir):
            running = self._ping() is pq.Ping.OK
            pid = self._postmaster() if running else None
            return EmbeddedStatus(running, pid, cluster.major_of(layout.pgdata), self.data_dir, layout.socket_dir)

    def _ping(self) -> pq.Ping:
        if not self._layout.has_trusted_socket_dir(account_for(self._layout.pgdata)):
            return pq.Ping.NO_RESPONSE
        info = make_conninfo(
            host=str(self._layout.socket_dir),
            port=PORT,
            user=cluster.SUPERUSER,
            dbname="postgres",
            connect_timeout=_PING_SECONDS,
        )
        answer = pq.Ping(pq.PGconn.ping(info.encode()))
        if answer is pq.Ping.NO_ATTEMPT:
            msg = "libpq refuses to connect: one of the PG* environment variables, such as PGSERVICE, is wrong"
            raise EmbeddedUnavailable(msg)
        return answer

    def _postmaster(self) -> int | None:
        pid = cluster.read_pid(self._layout.pgdata / "postmaster.pid")
        return pid if pid is not None and cluster.is_postmaster(pid, self._layout.pgdata) else None

    def _start(self, deadline: Deadline) -> None:
        launched = False
        while (answer := self._ping()) is not pq.Ping.OK:
            lock_fd = try_lock(self._layout.server_lock)
            if lock_fd is not None:
                try:
                    if launched:
                        raise self._failure("did not start")
                    self._launch(lock_fd, deadline)
                finally:
                    os.close(lock_fd)  # the server, if it was started, still holds it
                launched = True
            if not deadline.pause():
                state = "is still starting" if answer is pq.Ping.REJECT else "does not answer"
                raise self._failure(f"{state} after {deadline.timeout.total_seconds():g} s, try again")

    def _failure(self, what: str) -> EmbeddedUnavailable:
        return EmbeddedUnavailable(f"the embedded Postgres in {self.data_dir} {what}: {cluster.tail(self._layout)}")

    def _launch(self, lock_fd: int, deadline: Deadline) -> None:
        """Start a server that inherits the server lock; it outlives this process and its terminal."""
        layout = self._layout
        account = account_for(layout.pgdata)
        cluster.clear_leftovers(layout)
        binaries = wheel.readable_by(account, self._binaries(), layout.binaries)
        if not layout.pgdata.exists():
            cluster.create(layout, binaries, account, lock_fd=lock_fd, deadline=deadline)
        layout.make_socket_dir(account)
        with cluster.open_log(layout.start_log) as log:
            server: list[str | Path] = [binaries.program("postgres"), "-D", layout.pgdata, *_fixed_settings(layout)]
            account.run(["/bin/sh", "-c", _DETACH, "squid", *server], output=log, pass_fds=[lock_fd])

    def _binaries(self) -> wheel.Binaries:
        shipped = wheel.installed()
        major = cluster.major_of(self._layout.pgdata) or max(shipped)
        if major not in shipped:
            raise EmbeddedUnavailable(
                f"{self._layout.pgdata} was made by Postgres {major}, and {wheel.DISTRIBUTION} {wheel.release()} "
                f"brings only {', '.join(map(str, sorted(shipped)))}. The data are untouched. To move them: install a "
                f"{wheel.DISTRIBUTION} that brings {major}, run `squid db start`, save everything with its "
                f"`pg_dumpall -U postgres -h {self._layout.socket_dir}`, run `squid db stop`, set {self.data_dir} "
                f"aside, install the newer one, run `squid db start`, and load the dump with its `psql`"
            )
        return shipped[major]

    def _stop(self, deadline: Deadline) -> bool:
        pid = self._postmaster()
        if pid is None and self._ping() is not pq.Ping.NO_RESPONSE:
            msg = f"the embedded Postgres in {self.data_dir} runs in another container: stop it there"
            raise EmbeddedUnavailable(msg)
        if pid is not None:
            os.kill(pid, signal.SIGINT)  # a fast shutdown: sessions end, everything is flushed
        while is_held(self._layout.server_lock) or self._postmaster() is not None:
            if not deadline.pause():
                raise self._failure(f"did not stop within {deadline.timeout.total_seconds():g} s, try again")
        self._layout.remove_short_socket_dir()
        return pid is not None


def _fixed_settings(layout: Layout) -> list[str]:
    """Return the settings that override the configuration files on every start."""
    directory = str(layout.socket_dir).replace('"', '""')
    fixed = {
        "listen_addresses": "",
        "port": PORT,
        "unix_socket_directories": f'"{directory}"',
        "unix_socket_permissions": "0700",
    }
    return [part for name, value in fixed.items() for part in ("-c", f"{name}={value}")]


@contextmanager
def _clear_errors(data_dir: Path) -> Iterator[None]:
    """Translate errors of the operating system to one that names the directory and a remedy."""
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedUnavailable(
            f"the embedded Postgres cannot use {data_dir}: {error}. Set SQUID_DATA_DIR to a directory that this user "
            f"can write to, or SQUID_DATABASE_URL to a Postgres of your own"
        ) from error
