"""The standard streams as a command finds them: open or closed, full, and not able to say every character.

stdout belongs to what a command has to say; with `--json`, to nobody else. Imports nothing heavy.
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

_kept: TextIO | None = None  # where stdout leads, while others are kept from it


class OutputClosed(Exception):
    """What a command has to say cannot be written: the reader went away, or stdout is closed or full."""


def open_streams() -> None:
    """Make closed streams safe to use, and let stdout replace characters that its encoding does not have.

    A closed descriptor is held by the null device, so that no file or connection gets its number; a closed stdin is at
    its end, a closed stderr swallows. `sys.stdout` stays None: `stdout` tells.
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
    """Give the stream for what a command has to say.

    Raises:
        OutputClosed: there is none.
    """
    stream = sys.stdout if _kept is None else _kept
    if stream is None:
        raise OutputClosed("stdout is closed")
    return stream


def on_terminal() -> bool:
    """Tell whether people read what is printed on a terminal."""
    stream = sys.stdout if _kept is None else _kept
    return stream is not None and stream.isatty()


def flush() -> None:
    """Write what is still to be written, of others too."""
    if sys.stdout is not None:
        sys.stdout.flush()


@contextmanager
def kept_stdout() -> Iterator[None]:
    """Keep stdout for those who ask `stdout` for it: what anybody else prints in the block goes to stderr.

    That holds for modules, steps, and the processes that are started meanwhile. Within such a block it changes nothing.
    """
    global _kept
    known = sys.stdout
    if known is None or _kept is not None:
        yield
        return
    with _led_apart(known) as ours:
        _kept, sys.stdout = ours, sys.stderr
        try:
            yield
        finally:
            _kept, sys.stdout = None, known


@contextmanager
def _led_apart(stream: TextIO) -> Iterator[TextIO]:
    """Give a stream that leads where `stream` does; if that is descriptor 1, let this one lead to stderr meanwhile."""
    if _descriptor(stream) != _STDOUT:
        yield stream
        return
    stream.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with open(kept, "w", encoding=stream.encoding, errors="replace", closefd=False) as ours:
            yield ours
    finally:
        with suppress(OSError, ValueError):
            stream.flush()  # what those printed who had it from before
        os.dup2(kept, _STDOUT)
        os.close(kept)


def end_stdout(*, discard: bool) -> None:
    """Let nothing more get to stdout before the process ends: it goes to stderr, or nowhere.

    Exit handlers of modules may print, and what could not be written would be tried again.
    """
    if _descriptor(sys.stdout) == _STDOUT:
        os.dup2(os.open(os.devnull, os.O_WRONLY) if discard else _STDERR, _STDOUT)


def _descriptor(stream: TextIO | None) -> int | None:
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):  # not a file, or closed
        return None


def is_unwritable(error: OSError) -> bool:
    """Tell whether an error is that of writing to a stream: one of opening a file names the file."""
    return error.filename is None and error.errno in _UNWRITABLE
