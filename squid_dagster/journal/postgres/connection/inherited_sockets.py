"""Sockets that somebody else gets hold of: of a process that was forked, or of a step that closes what it did not open.

In a forked process the copies of our connections lead nowhere: two processes that write to one socket break both, and a
session whose worker died would stay open, with its locks, as long as any child holds a copy of the socket. Whoever goes
on in the child connects anew.

A connection whose socket was closed behind our back is lost like any other. One whose number leads elsewhere already is
never used again, and never closed (see `journal/descriptors.py`).
"""

import os
import socket
import weakref
from contextlib import suppress
from typing import Any

import psycopg

from squid_dagster.journal.descriptors import check_descriptors, inode_of, is_dead_socket

_sockets: "weakref.WeakKeyDictionary[psycopg.Connection[Any], int]" = weakref.WeakKeyDictionary()  # their inodes
_NO_INODE = -1
_strays: list[object] = []  # connections whose numbers lead elsewhere: collected as garbage, they would close those


def register_socket(connection: "psycopg.Connection[Any]") -> None:
    """Remember what a connection's number leads to, and disarm its copy in every process that is forked from now on."""
    if connection not in _sockets:
        check_descriptors()
        with suppress(psycopg.Error):
            _sockets[connection] = inode_of(connection.pgconn.socket) or 0


def is_intact(connection: "psycopg.Connection[Any]") -> bool:
    """Return whether a connection's number leads to what it led to at first, or was closed by ourselves."""
    try:
        return inode_of(connection.pgconn.socket) == _sockets.get(connection)
    except psycopg.Error:  # closed, and has none
        return True


def close_lost(connection: "psycopg.Connection[Any]", *holders: object) -> bool:
    """Close a connection whose socket was closed behind our back; return whether its number was still its own.

    If not, it is kept for ever, together with the holders that would close it.
    """
    check_descriptors()
    with suppress(psycopg.Error):
        if is_dead_socket(connection.pgconn.socket):
            connection.close()
            return True
    _strays.extend([connection, *holders])
    return False


def _disarm() -> None:
    """Put a socket whose other end is closed in the place of each one: it reads as cut off."""
    mine, other = socket.socketpair()
    other.close()
    with mine:
        for connection in list(_sockets):
            with suppress(psycopg.Error, OSError):
                if is_intact(connection):
                    os.dup2(mine.fileno(), connection.pgconn.socket, inheritable=False)
            _sockets[connection] = _NO_INODE  # a pool must not lend it any more


os.register_at_fork(after_in_child=_disarm)
