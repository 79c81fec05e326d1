"""The standard streams of a command: open or closed, full, or unable to encode every character.

stdout is for the output of the command; with `--json`, for nothing else. Imports nothing heavy.
"""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_STDOUT, _STDERR = 1, 2
_UNWRITABLE = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}

_reserved: TextIO | None = None  # stdout, while `own_stdout` sends all other output to stderr


class OutputClosed(Exception):
    """The output of a command cannot be written: the reader went away, or stdout is closed or full."""


def open_streams() -> None:
    """Open the null device for closed descriptors, and let stdout replace characters that its encoding does not have.

    So no file or connection gets their numbers; a closed stdin is at its end, a closed stderr discards. `sys.stdout`
    stays None: `stdout` raises.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  for the whole process
    if sys.stderr is None:
        sys.stderr = open(_STDERR, "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def stdout() -> TextIO:
    """Return the stream for the output of the command.

    Raises:
        OutputClosed: there is none.
    """
    stream = sys.stdout if _reserved is None else _reserved
    if stream is None:
        raise OutputClosed("stdout is closed")
    return stream


def on_terminal() -> bool:
    """Return whether stdout is a terminal."""
    stream = sys.stdout if _reserved is None else _reserved
    return stream is not None and stream.isatty()


def flush() -> None:
    """Flush `sys.stdout`, which holds output of modules and steps too."""
    if sys.stdout is not None:
        sys.stdout.flush()


@contextmanager
def own_stdout() -> Iterator[None]:
    """Reserve stdout for callers of `stdout`: all other output of the block goes to stderr.

    That includes modules, steps, and processes that are started in the block. A nested block changes nothing.
    """
    global _reserved
    before = sys.stdout
    if before is None or _reserved is not None:
        yield
        return
    with _separate(before) as reserved:
        _reserved, sys.stdout = reserved, sys.stderr
        try:
            yield
        finally:
            _reserved, sys.stdout = None, before


@contextmanager
def _separate(stream: TextIO) -> Iterator[TextIO]:
    """Yield a stream to where `stream` leads; if that is descriptor 1, point descriptor 1 to stderr meanwhile."""
    if _descriptor(stream) != _STDOUT:
        yield stream
        return
    stream.flush()
    copy = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with open(copy, "w", encoding=stream.encoding, errors="replace", closefd=False) as separate:
            yield separate
    finally:
        with suppress(OSError, ValueError):
            stream.flush()  # output of code that took `sys.stdout` before the block
        os.dup2(copy, _STDOUT)
        os.close(copy)


def end_stdout(*, discard: bool) -> None:
    """Close stdout for the rest of the process: output goes to stderr, or nowhere if `discard`.

    Exit handlers of modules may print, and Python writes again at exit what could not be written.
    """
    if _descriptor(sys.stdout) == _STDOUT:
        os.dup2(os.open(os.devnull, os.O_WRONLY) if discard else _STDERR, _STDOUT)


def _descriptor(stream: TextIO | None) -> int | None:
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):  # not a file, or closed
        return None


def is_unwritable(error: OSError) -> bool:
    """Return whether an error is that of writing to a stream: one of opening a file names the file."""
    return error.filename is None and error.errno in _UNWRITABLE
