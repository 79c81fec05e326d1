"""A hot standby of an embedded server: made by pg_basebackup from the wheel, fed by streaming over the Unix socket.

It is a server like any other: `url`, `stop`, `ensure_running` are those of `EmbeddedPostgres`.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from squid_dagster.journal.embedded import EmbeddedPostgres, cluster, wheel
from squid_dagster.journal.embedded.account import account_for
from squid_dagster.journal.embedded.deadline import Deadline
from squid_dagster.journal.embedded.layout import PORT, Layout, make_private
from squid_dagster.journal.embedded.locks import try_lock
from tests.scratch import SCRATCH

_MINUTE = timedelta(seconds=60)


@contextmanager
def primary_and_standby(prefix: str = "squid-pair-") -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    """Start a server and a standby of it in a directory of their own; both are stopped and deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=SCRATCH) as directory:
        Path(directory).chmod(0o755)
        primary = EmbeddedPostgres(Path(directory) / "primary")
        primary.ensure_running()
        try:
            standby = make_standby(primary, Path(directory) / "standby")
            try:
                yield primary, standby
            finally:
                standby.stop()
        finally:
            primary.stop()


def make_standby(primary: EmbeddedPostgres, data_dir: Path) -> EmbeddedPostgres:
    """Copy a running server into a directory that does not exist yet, and start the copy as its standby."""
    layout = Layout(data_dir.resolve())
    layout.make_data_dir()
    account = account_for(Layout(primary.data_dir).pgdata)
    lock_fd = try_lock(layout.server_lock)
    assert lock_fd is not None, f"{data_dir} is in use"
    try:
        make_private(layout.pgdata, account)
        major = primary.status().major
        assert major is not None
        binaries = wheel.readable_by(account, wheel.installed()[major], layout.binaries)
        source = make_conninfo(host=str(primary.status().socket_dir), port=PORT, user=cluster.SUPERUSER)
        command: list[str | Path] = [
            binaries.program("pg_basebackup"),
            f"--dbname={source}",
            f"--pgdata={layout.pgdata}",
            "--write-recovery-conf",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--no-sync",
        ]
        done = account.run(command, output=subprocess.PIPE, timeout_seconds=_MINUTE.total_seconds())
        assert done.returncode == 0, done.stdout.decode(errors="replace")
    finally:
        os.close(lock_fd)
    server = EmbeddedPostgres(layout.data_dir)
    server.ensure_running()
    return server


def plain_url(server: EmbeddedPostgres) -> str:
    """Return the URL of a server as psycopg takes it."""
    return server.url.replace("+psycopg", "", 1)


def wait_for_replay(primary: EmbeddedPostgres, standby: EmbeddedPostgres, timeout: timedelta = _MINUTE) -> None:
    """Return when the standby has replayed all that the primary has written by now."""
    with psycopg.connect(plain_url(primary), autocommit=True) as connection:
        (written,) = connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone() or (None,)
    deadline = Deadline(timeout)
    with psycopg.connect(plain_url(standby), autocommit=True) as connection:
        query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        while connection.execute(query, (written,)).fetchone() != (True,):
            assert deadline.pause(), f"the standby has not replayed {written} in {timeout}"


def promote(standby: EmbeddedPostgres, timeout: timedelta = _MINUTE) -> None:
    """Promote a standby, and return when it takes writes. What it had not replayed is lost."""
    with psycopg.connect(plain_url(standby), autocommit=True) as connection:
        seconds = int(timeout.total_seconds())
        assert connection.execute("SELECT pg_promote(true, %s)", (seconds,)).fetchone() == (True,)
        deadline = Deadline(timeout)
        while connection.execute("SELECT pg_is_in_recovery()").fetchone() != (False,):
            assert deadline.pause(), f"the standby is not promoted after {timeout}"
