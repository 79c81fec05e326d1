"""File locks. A lock belongs to the open file: child processes inherit it, and it ends with its last holder.

Lock files are never removed: a lock on a replaced file would protect nothing.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from squid_dagster.journal.embedded.deadline import Deadline
from squid_dagster.protocol.errors import EmbeddedUnavailable

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def try_lock(path: Path) -> int | None:
    """Acquire the lock and return its file descriptor, or None while another process holds it."""
    fd = os.open(path, _FLAGS, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def release(fd: int) -> None:
    """Release the lock for all processes that inherited it, and close it. Closing alone would leave it to them."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock now."""
    fd = try_lock(path)
    if fd is None:
        return True
    release(fd)
    return False


@contextmanager
def locked(path: Path, deadline: Deadline) -> Iterator[None]:
    """Lock for the time of a block; raise EmbeddedUnavailable if the lock cannot be acquired in time."""
    while (fd := try_lock(path)) is None:
        if not deadline.pause():
            msg = f"another process is still starting or stopping the embedded Postgres (it holds {path}): try again"
            raise EmbeddedUnavailable(msg)
    try:
        yield
    finally:
        release(fd)
