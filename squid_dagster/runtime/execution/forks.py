"""Processes that a step forks: one that returns from the step ends there, and runs nothing of its worker.

It has one thread, copies of the worker's locks, and the worker's claim: whatever it settled would be settled twice. Its
copies of the journal's connections are disarmed elsewhere (`journal/postgres/connection/inherited_sockets.py`).
"""

import os
import signal
import threading
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn


class OneProcess:
    """A block that ends in the process that made this object, and in no other: one that was forked since ends there."""

    __slots__ = ("_pid", "_step")

    def __init__(self, step: str) -> None:
        """Take the process of now."""
        self._step, self._pid = step, os.getpid()

    def __enter__(self) -> None:
        if os.getpid() != self._pid:
            self._end(None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if os.getpid() != self._pid:
            self._end(error)

    def _end(self, error: BaseException | None) -> NoReturn:
        """End this process: with the code that it wanted to exit with, or 1 after any other error."""
        code = 0
        with suppress(BaseException):  # whatever happens here, nothing of the worker may run
            lines = f"squid_dagster: process {os.getpid()}, forked in step {self._step!r}, came to the end of the step "
            lines += f"and ends here; only what process {self._pid} returns counts. End it with os._exit.\n"
            if isinstance(error, SystemExit):
                code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
            elif error is not None and not isinstance(error, StopIteration):
                code = 1
                lines += "".join(traceback.format_exception(error))
            os.write(2, lines.encode("utf-8", "backslashreplace"))
        os._exit(code & 0xFF)


class OneProcessCoroutine(Coroutine[Any, Any, Any]):
    """A step's coroutine that goes on in one process only: one that was forked ends where it would wait or return."""

    def __init__(self, inner: Coroutine[Any, Any, Any], step: str) -> None:
        """Wrap a coroutine that has not begun."""
        self._inner, self._block = inner, OneProcess(step)

    def send(self, value: Any) -> Any:
        """Go on until it waits for something, or returns."""
        with self._block:
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        """Go on with an error."""
        with self._block:
            return self._inner.throw(*error)

    def close(self) -> None:
        """End it early."""
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        """Wait for it inside of another one."""
        value, error = None, None
        while True:
            try:
                found = self.send(value) if error is None else self.throw(error)
            except StopIteration as stop:
                return stop.value
            try:
                value, error = (yield found), None
            except BaseException as raised:  # noqa: BLE001  it is the coroutine's to judge
                error = raised


@contextmanager
def handled_here(numbers: Sequence[signal.Signals], handle: Callable[[], None]) -> Iterator[None]:
    """Call `handle` for signals to this process; in its forked children they are what they were before the block.

    Else a child that a step has forked could not be terminated: it would only have its copy of the worker stopped.
    """
    for number in numbers:
        before = signal.signal(number, lambda *_: handle())
        _before[number] = signal.SIG_DFL if before is None else before  # None: not one of Python's
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, _before.pop(number))


_before: dict[signal.Signals, Any] = {}
_masks = threading.local()  # of the thread that forks, while it does


def _hold_signals() -> None:
    """Let signals wait until a child has its own handlers: Python drops those that come before."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _before)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _restore_handlers() -> None:
    for number, handler in _before.items():
        signal.signal(number, handler)
    _before.clear()
    _release_signals()


os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_restore_handlers)
