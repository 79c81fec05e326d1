"""The paths below a data directory. Creates this library's directories, and refuses those of other users."""

import hashlib
import os
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from squid_dagster.journal.embedded.account import Account
from squid_dagster.protocol.errors import EmbeddedUnavailable

PORT = 5432
SOCKET_PATH_MAX_BYTES = 107  # sun_path on Linux, less its closing zero; macOS has 103 and is covered by the margin
_SOCKET_NAME_BYTES = len(f"/.s.PGSQL.{PORT}.lock")

# Not TMPDIR or XDG_RUNTIME_DIR: all processes of the user must use the same place, whatever their environment.
_SHORT_BASE = Path("/tmp")  # noqa: S108


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below one data directory."""

    data_dir: Path

    @property
    def pgdata(self) -> Path:
        """The cluster. It is created by a rename, so it is complete or not there."""
        return self.data_dir / "pgdata"

    @property
    def unfinished(self) -> Path:
        """Where a cluster is being created; garbage if no process holds the server lock."""
        return self.data_dir / "pgdata.new"

    @property
    def binaries(self) -> Path:
        """Copies of the wheel's binaries, where the server's user cannot read the originals."""
        return self.data_dir / "bin"

    @property
    def start_lock(self) -> Path:
        """Held while one process starts or stops the server."""
        return self.data_dir / "start.lock"

    @property
    def server_lock(self) -> Path:
        """Held by every process that works on the cluster's files: initdb, the postmaster and all its children."""
        return self.data_dir / "server.lock"

    @property
    def start_log(self) -> Path:
        """The output of the last start, until the server's own log takes over."""
        return self.data_dir / "start.log"

    @property
    def socket_dir(self) -> Path:
        """Where the server listens: inside the data directory, or in a directory with a short path."""
        inside = self.data_dir / "run"
        fits = len(os.fsencode(inside)) + _SOCKET_NAME_BYTES <= SOCKET_PATH_MAX_BYTES
        # libpq reads a host with a comma as a list of hosts.
        return inside if fits and "," not in str(inside) else self._short_parent / self._digest

    @property
    def socket_is_outside(self) -> bool:
        """Whether the socket's directory is outside the data directory."""
        return self.socket_dir.parent != self.data_dir

    @property
    def _short_parent(self) -> Path:
        return _SHORT_BASE / f"squid-{os.geteuid()}"

    @property
    def _digest(self) -> str:
        return hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:16]

    def make_data_dir(self) -> None:
        """Create the data directory and its missing parents; existing ones stay as they are.

        Raises EmbeddedUnavailable if the directory is itself the cluster of another server.
        """
        if (self.data_dir / "PG_VERSION").exists():
            msg = f"{self.data_dir} is the data directory of another Postgres: set SQUID_DATA_DIR to one of its own"
            raise EmbeddedUnavailable(msg)
        _make_passable(self.data_dir)

    def make_socket_dir(self, account: Account) -> None:
        """Create the socket's directory for the server's user alone; raise EmbeddedUnavailable if it is another's."""
        if self.socket_is_outside:
            _make_passable(self._short_parent)
            require_ours(self._short_parent, os.geteuid(), forbidden=0o022)
        make_private(self.socket_dir, account)
        require_ours(self.socket_dir, account.uid, forbidden=0o077)

    def remove_short_socket_dir(self) -> None:
        """Remove the socket's directory if it is outside the data directory, once the server is down."""
        if self.socket_is_outside:
            with suppress(OSError):
                self.socket_dir.rmdir()

    def has_trusted_socket_dir(self, account: Account) -> bool:
        """Return whether the socket's directory exists; raise EmbeddedUnavailable if another user created it."""
        try:
            if self.socket_is_outside:
                require_ours(self._short_parent, os.geteuid(), forbidden=0o022)
            require_ours(self.socket_dir, account.uid, forbidden=0o077)
        except FileNotFoundError:
            return False
        return True


def make_private(path: Path, account: Account) -> None:
    """Create one directory for that user alone; leave it as it is if it exists."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    if account.is_ours:
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(fd, account.uid, account.gid)
    finally:
        os.close(fd)


def require_ours(path: Path, uid: int, *, forbidden: int) -> None:
    """Raise EmbeddedUnavailable unless this is a real directory of that user, without the forbidden permissions."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != uid or status.st_mode & forbidden:
        raise EmbeddedUnavailable(
            f"{path} should be a directory of uid {uid} alone, but it is {stat.filemode(status.st_mode)} of uid "
            f"{status.st_uid}: remove it, or set SQUID_DATA_DIR to another directory"
        )


def _make_passable(path: Path) -> None:
    """Create a directory and its missing parents for this user alone; as root, the server's user may pass through."""
    if path.is_dir():
        return
    if os.geteuid() != 0:
        for directory in [*reversed(path.parents), path]:
            if not directory.is_dir():
                directory.mkdir(mode=0o700, exist_ok=True)
        return
    # By a process with its own umask: with this one's and a later chmod, others would find a closed directory.
    made = subprocess.run(["/bin/mkdir", "-p", path], umask=0o066, capture_output=True, check=False)  # noqa: S603
    if made.returncode != 0:
        raise OSError(made.stderr.decode(errors="replace").strip())
