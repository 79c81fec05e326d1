"""The user that the server runs as. Postgres refuses root, so root starts it as an unprivileged user.

Owns how commands run as that user, and checks what that user can reach. Changes no permissions of existing files.
"""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from squid_dagster.protocol.errors import EmbeddedUnavailable

UNPRIVILEGED_ID = 65534

_ASK_SECONDS = 30.0

# Prints the first directory that the current user cannot pass through.
_FIRST_CLOSED = 'for d in "$@"; do [ -x "$d" ] || { printf %s "$d"; exit 1; }; done'


@dataclass(frozen=True, slots=True)
class Account:
    """The user and group that own the server's files and processes."""

    uid: int
    gid: int

    @property
    def is_ours(self) -> bool:
        """Whether this process already runs as that user."""
        return self.uid == os.geteuid()

    def run(
        self,
        command: Sequence[str | Path],
        *,
        output: IO[bytes] | int,
        pass_fds: Sequence[int] = (),
        timeout_seconds: float = _ASK_SECONDS,
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run a command as that user, in a session of its own, and wait for it.

        It gets nothing of this process's environment: neither credentials nor PG* settings reach the server.
        """
        return subprocess.run(  # noqa: S603 - the command is ours, and no shell expands it
            [os.fspath(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(),
            cwd="/",
            umask=0o077,
            start_new_session=True,
            pass_fds=pass_fds,
            timeout=timeout_seconds,
            check=False,
            user=None if self.is_ours else self.uid,
            group=None if self.is_ours else self.gid,
            extra_groups=None if self.is_ours else [],
        )

    def require_way_to(self, directory: Path) -> None:
        """Raise EmbeddedUnavailable, naming the closed directory, unless that user can reach all existing parents."""
        if self.is_ours:
            return
        existing = [part for part in [*reversed(directory.parents), directory] if part.exists()]
        try:
            probe = self.run(["/bin/sh", "-c", _FIRST_CLOSED, "sh", *existing], output=subprocess.PIPE)
        except OSError as error:
            raise EmbeddedUnavailable(
                f"root may not start a process as uid {self.uid} here ({error}), and Postgres refuses to run as root: "
                f"run as an ordinary user, or set SQUID_DATABASE_URL"
            ) from error
        if probe.returncode != 0:
            raise EmbeddedUnavailable(
                f"the embedded Postgres cannot use {directory}: started by root it runs as uid {self.uid}, which may "
                f"not enter {os.fsdecode(probe.stdout)}. Set SQUID_DATA_DIR to a directory that it can reach, such as "
                f"/var/lib/squid_dagster, or run as an ordinary user, or set SQUID_DATABASE_URL"
            )

    def require_name(self) -> None:
        """Raise EmbeddedUnavailable unless the user has a name, which initdb needs."""
        try:
            pwd.getpwuid(self.uid)
        except KeyError as error:
            raise EmbeddedUnavailable(
                f"uid {self.uid} has no entry in /etc/passwd, and initdb needs one: add it, run as another user, "
                f"or set SQUID_DATABASE_URL"
            ) from error


def account_for(pgdata: Path) -> Account:
    """Return the user to run the server of a cluster: the current one; for root, its owner or an unprivileged user.

    Raises EmbeddedUnavailable if the cluster belongs to a user that this process cannot act as.
    """
    me = Account(os.geteuid(), os.getegid())
    try:
        status = pgdata.lstat()
    except FileNotFoundError:
        return me if me.uid != 0 else Account(UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    owner = Account(status.st_uid, status.st_gid)
    if me.uid != 0 and owner.uid != me.uid:
        msg = f"{pgdata} belongs to uid {owner.uid}, this process is uid {me.uid}: set SQUID_DATA_DIR to another one"
        raise EmbeddedUnavailable(msg)
    if owner.uid == 0:
        msg = f"{pgdata} belongs to root, and Postgres refuses to run as root: chown -R {UNPRIVILEGED_ID} {pgdata}"
        raise EmbeddedUnavailable(msg)
    return owner


def _environment() -> dict[str, str]:
    """Return the server's environment: enough to find the shell and, if it is set, the loader's path."""
    loader = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", **loader}
