"""The cluster on disk: its creation, its version, and the cleanup after a server that died.

Callers hold the server lock, so that no other process of this library works on these files meanwhile.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import BinaryIO

from squid_dagster.journal.embedded.account import Account
from squid_dagster.journal.embedded.deadline import Deadline
from squid_dagster.journal.embedded.layout import PORT, Layout, make_private
from squid_dagster.journal.embedded.wheel import Binaries
from squid_dagster.protocol.errors import EmbeddedUnavailable

SUPERUSER = "postgres"

# Written into postgresql.conf, so that an administrator can change them with ALTER SYSTEM.
_SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Shared memory in files of the cluster: /dev/shm is small in containers, and logind empties it at logout.
    "dynamic_shared_memory_type": "mmap",
    # One file per weekday, emptied when its day comes again. Errors go to the client that caused them, with their
    # values; the log has what concerns the server, and no statement.
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "postgres-%a.log",
    "log_file_mode": "0600",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_truncate_on_rotation": "on",
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
}
_LOG_MAX_BYTES = 8 * 1024 * 1024
_TAIL_BYTES = 2000
_PROC = Path("/proc/self")  # not on macOS


def major_of(pgdata: Path) -> int | None:
    """Return the major version of the cluster, None before there is one; raise EmbeddedUnavailable if damaged."""
    try:
        return int((pgdata / "PG_VERSION").read_text(errors="replace"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        msg = f"{pgdata} is damaged: its PG_VERSION is not a number. Restore it, or set SQUID_DATA_DIR to another one"
        raise EmbeddedUnavailable(msg) from error


def create(layout: Layout, binaries: Binaries, account: Account, *, lock_fd: int, deadline: Deadline) -> None:
    """Create a cluster durably, and publish it by a rename; raise EmbeddedUnavailable with initdb's output."""
    account.require_name()
    make_private(layout.unfinished, account)
    command: list[str | Path] = [
        binaries.program("initdb"),
        f"--pgdata={layout.unfinished}",
        f"--username={SUPERUSER}",
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C",
        "--data-checksums",
        *(f"--set={name}={value}" for name, value in _SETTINGS.items()),
    ]
    with open_log(layout.start_log) as log:
        try:
            done = account.run(command, output=log, pass_fds=[lock_fd], timeout_seconds=deadline.left_seconds)
            complete = done.returncode == 0 and major_of(layout.unfinished) == binaries.major
        except subprocess.TimeoutExpired:
            complete = False
    if not complete:
        shutil.rmtree(layout.unfinished, ignore_errors=True)
        raise EmbeddedUnavailable(f"initdb failed in {layout.data_dir}: {tail(layout)}")
    layout.unfinished.rename(layout.pgdata)
    _sync_directory(layout.data_dir)


def clear_leftovers(layout: Layout) -> None:
    """Remove what an earlier server left behind: an unfinished cluster, its pid file, its socket, an overgrown log.

    Postgres trusts a pid file if any live process has that number, even an unrelated one or a zombie. Here the free
    server lock proves that the file is stale. A server that was started by hand holds no lock, so the function checks
    for one, and leaves its files alone.
    """
    if layout.unfinished.exists():
        shutil.rmtree(layout.unfinished)
    pid_file = layout.pgdata / "postmaster.pid"
    pid = read_pid(pid_file)
    if pid is not None and is_postmaster(pid, layout.pgdata):
        return
    pid_file.unlink(missing_ok=True)
    for name in (f".s.PGSQL.{PORT}", f".s.PGSQL.{PORT}.lock"):
        (layout.socket_dir / name).unlink(missing_ok=True)
    for log in layout.pgdata.glob("log/*.log"):
        if log.lstat().st_size > _LOG_MAX_BYTES:
            log.unlink()


def read_pid(pid_file: Path) -> int | None:
    """Return the pid in a postmaster's pid file; None if there is no file, or no pid in it."""
    try:
        return int(pid_file.read_text(errors="replace").split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None


def is_postmaster(pid: int, pgdata: Path) -> bool:
    """Return whether the process of that number is a Postgres whose working directory is the cluster's."""
    process = Path(f"/proc/{pid}")
    if not _PROC.exists():
        listed = subprocess.run(["/bin/ps", "-o", "comm=", "-p", str(pid)], capture_output=True, check=False)  # noqa: S603
        return listed.stdout.strip().endswith(b"postgres")
    try:
        return (process / "cwd").samefile(pgdata) and (process / "comm").read_text().strip() == "postgres"
    except OSError:
        return False


def open_log(path: Path) -> BinaryIO:
    """Open and truncate a log; never through a symbolic link."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb")


def tail(layout: Layout) -> str:
    """Return the last lines of the server's or initdb's output, for an error message. They hold no credentials."""
    logs = sorted(layout.pgdata.glob("log/*.log"), key=lambda log: log.stat().st_mtime)
    return "\n".join(_last_bytes(path) for path in [layout.start_log, *logs[-1:]] if path.exists()).strip()


def _last_bytes(path: Path) -> str:
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return log.read(_TAIL_BYTES).decode(errors="replace").strip()


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
