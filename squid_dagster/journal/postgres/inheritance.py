"""Connections that a forked process inherits: its copies lead nowhere, so that it cannot touch its parent's sessions.

Two processes that write to one socket break both, and a session whose worker died stays open, with its locks, as long
as any child of that worker holds a copy of the socket. Whoever goes on in the child connects anew.
"""

import os
import socket
import weakref
from contextlib import suppress
from typing import Any

import psycopg

_open: "weakref.WeakSet[psycopg.Connection[Any]]" = weakref.WeakSet()


def disarm_in_children(connection: "psycopg.Connection[Any]") -> None:
    """Have the copy of this connection in every process that is forked from now on lead nowhere."""
    _open.add(connection)


def _disarm() -> None:
    """Put one end of a pair whose other end is closed in the place of every inherited socket: it reads as cut off."""
    mine, other = socket.socketpair()
    other.close()
    with mine:
        for connection in list(_open):
            with suppress(psycopg.Error, OSError):
                os.dup2(mine.fileno(), connection.pgconn.socket, inheritable=False)
    _open.clear()


os.register_at_fork(after_in_child=_disarm)
