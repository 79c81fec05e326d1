"""Sockets of connections in forked processes, and sockets that a step has closed although it did not open them.

In a forked process each inherited socket is replaced by a closed one. Two processes that write to one socket break
both; and a session whose worker died would stay open, with its locks, as long as a child holds a copy of the socket.
The child process connects anew.

A connection whose socket a step has closed is lost like any other. If its descriptor number was reused meanwhile, the
connection is never used again and never closed (see `journal/descriptors.py`).
"""

import os
import socket
import weakref
from contextlib import suppress
from typing import Any

import psycopg

from squid_dagster.journal.descriptors import check_descriptors, inode_of, is_dead_socket

_inodes: "weakref.WeakKeyDictionary[psycopg.Connection[Any], int]" = weakref.WeakKeyDictionary()  # of their sockets
_NO_INODE = -1
_leaked: list[object] = []  # connections whose descriptors were reused: garbage collection would close these


def register_socket(connection: "psycopg.Connection[Any]") -> None:
    """Remember the inode of a connection's socket; from now on, its copy in forked processes is replaced."""
    if connection not in _inodes:
        check_descriptors()
        with suppress(psycopg.Error):
            _inodes[connection] = inode_of(connection.pgconn.socket) or 0


def is_intact(connection: "psycopg.Connection[Any]") -> bool:
    """Return whether a connection's descriptor is still its own socket, or was closed by ourselves."""
    try:
        return inode_of(connection.pgconn.socket) == _inodes.get(connection)
    except psycopg.Error:  # closed, and has none
        return True


def close_lost(connection: "psycopg.Connection[Any]", *holders: object) -> bool:
    """Close a connection whose socket was closed by other code; return whether its descriptor was still its own.

    If not, it is kept until the process ends, together with the holders that would close it.
    """
    check_descriptors()
    with suppress(psycopg.Error):
        if is_dead_socket(connection.pgconn.socket):
            connection.close()
            return True
    _leaked.extend([connection, *holders])
    return False


def _disarm() -> None:
    """Replace each socket by one whose other end is closed: it reads as a closed connection."""
    mine, other = socket.socketpair()
    other.close()
    with mine:
        for connection in list(_inodes):
            with suppress(psycopg.Error, OSError):
                if is_intact(connection):
                    os.dup2(mine.fileno(), connection.pgconn.socket, inheritable=False)
            _inodes[connection] = _NO_INODE  # the pool discards it


os.register_at_fork(after_in_child=_disarm)
