"""A Postgres on loopback TCP beside its socket, for the JDBC reader, which has no Unix sockets; otherwise as embedded.

The embedded server creates the cluster and is stopped again: it never listens on a port, whatever its settings.
"""

import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psycopg import pq

from squid_dagster.journal.embedded import EmbeddedPostgres, wheel
from squid_dagster.journal.embedded.account import Account, account_for

_HOST = "127.0.0.1"
_STOP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class ServerAddresses:
    """The addresses of one server: by its Unix socket, and by JDBC."""

    url: str
    jdbc_url: str


@contextmanager
def new_tcp_server() -> Iterator[ServerAddresses]:
    """Start a server on a new directory, on its socket and on a free port; remove both in the end."""
    with tempfile.TemporaryDirectory(prefix="squid-bench-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        embedded = EmbeddedPostgres(Path(directory) / "postgres")
        embedded.ensure_running()
        pgdata, socket_dir = embedded.data_dir / "pgdata", embedded.status().socket_dir
        embedded.stop()
        port = _free_port()
        server = _launch(pgdata, socket_dir, embedded.data_dir / "bin", port)
        try:
            _wait(f"host={socket_dir} port={port} user=postgres dbname=postgres", server)
            yield ServerAddresses(
                f"postgresql+psycopg://postgres@/postgres?host={socket_dir}&port={port}",
                f"jdbc:postgresql://{_HOST}:{port}/postgres?user=postgres",
            )
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(_STOP_SECONDS)


def _launch(pgdata: Path, socket_dir: Path, copies: Path, port: int) -> "subprocess.Popen[bytes]":
    account: Account = account_for(pgdata)
    binaries = wheel.readable_by(account, wheel.installed()[max(wheel.installed())], copies)
    settings = {"listen_addresses": _HOST, "port": port, "unix_socket_directories": socket_dir}
    return subprocess.Popen(
        [
            binaries.program("postgres"),
            "-D",
            pgdata,
            *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        user=None if account.is_ours else account.uid,
        group=None if account.is_ours else account.gid,
        extra_groups=None if account.is_ours else [],
    )


def _wait(conninfo: str, server: "subprocess.Popen[bytes]") -> None:
    while pq.Ping(pq.PGconn.ping(conninfo.encode())) is not pq.Ping.OK:
        try:
            code = server.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        raise RuntimeError(f"the server ended with {code} before it took a connection")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((_HOST, 0))
        port: int = one.getsockname()[1]
        return port
