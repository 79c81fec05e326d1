"""File descriptors that a step has closed although it did not open them: detected, and their numbers reserved.

The kernel reuses a closed number for the next file, while its former owner still writes to it and will close it one
day. So every number that is found closed is given to a dead socket, which reads as disconnected: the owner detects a
lost connection, or closes a socket that is not needed. Two canary sockets detect it: code that closes all descriptors
closes these, too. What happens between the closing and the next check is not repaired.
"""

import fcntl
import os
import resource
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import SquidError

logger = redacting_logger(__name__)

_MARGIN = 16  # numbers above the highest one that is known to have been open
_RESERVED_SECONDS = 60.0  # how long a dead socket holds its number: its former owner has noticed by then


class LoopLost(SquidError):
    """A step's coroutine cannot continue, through no fault of its own: the attempt is delivered again."""


class _Canary:
    """Two sockets that are closed only by code that closes foreign descriptors, and the numbers reserved since."""

    def __init__(self) -> None:
        self.losses = 0
        self._lock = threading.Lock()
        self._dead: dict[int, tuple[int, float]] = {}  # by number: inode, and since when
        self._open()

    def _open(self) -> None:
        pair = socket.socketpair()
        self._numbers = {end.fileno(): inode_of(end.fileno()) for end in pair}
        for end in pair:
            end.detach()  # the objects would close whatever their numbers refer to one day

    def is_alive(self) -> bool:
        return all(inode is not None and inode_of(number) == inode for number, inode in self._numbers.items())

    def is_dead_socket(self, number: int) -> bool:
        """Return whether a number refers to a dead socket of this class."""
        known = self._dead.get(number)
        return known is not None and inode_of(number) == known[0]

    def renew(self) -> None:
        with self._lock:
            if self.is_alive():  # another thread was faster
                return
            self._release()
            self._take_closed_numbers()
            self._open()
            self.losses += 1
        logger.error(
            "a step has closed descriptors that it did not open: connections to Postgres and the loop of async steps "
            "are made anew, and steps that need them are repeated. Give it a process of its own: isolate=True"
        )

    def _release(self) -> None:
        """Close dead sockets whose time is over."""
        old = [number for number, (_, since) in self._dead.items() if since < time.monotonic() - _RESERVED_SECONDS]
        for number in old:
            if self.is_dead_socket(number):
                os.close(number)
            del self._dead[number]

    def _take_closed_numbers(self) -> None:
        devnull = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):  # prints must not go to the next file that is opened
            if inode_of(number) is None:
                os.dup2(devnull, number)
        if devnull > 2:
            os.close(devnull)
        mine, other = socket.socketpair()
        other.close()
        with mine:
            inode, now = os.fstat(mine.fileno()).st_ino, time.monotonic()
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
            number, highest = 3, min(max([*self._numbers, *_open_numbers()]) + _MARGIN, most)
            while (number := fcntl.fcntl(mine.fileno(), fcntl.F_DUPFD_CLOEXEC, number)) <= highest:
                self._dead[number] = inode, now
            os.close(number)


def inode_of(number: int) -> int | None:
    """Return the inode that a descriptor refers to; None if it is closed."""
    try:
        return os.fstat(number).st_ino
    except OSError:
        return None


def _open_numbers() -> list[int]:
    with suppress(OSError):
        return [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    return []  # not Linux


_canary: _Canary | None = None
_canary_lock = threading.Lock()


def check_descriptors() -> int:
    """Repair what was closed since the first call, if anything was; return how often that has happened."""
    canary = _canary or _open_canary()
    if not canary.is_alive():
        canary.renew()
    return canary.losses


def is_dead_socket(number: int) -> bool:
    """Return whether a number was found closed, and is reserved by a dead socket."""
    return _canary is not None and _canary.is_dead_socket(number)


def _open_canary() -> _Canary:
    global _canary
    with _canary_lock:
        _canary = _canary or _Canary()
        return _canary


def _reset_after_fork() -> None:
    global _canary, _canary_lock
    _canary, _canary_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)
