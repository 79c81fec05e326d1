"""Processes that a step forks: a forked process that returns from the step exits there, and runs no code of the worker.

It has one thread, copies of the worker's locks, and the worker's claim, so it would settle a second time. Its copies of
the journal's connections are replaced in `journal/postgres/connection/inherited_sockets.py`.
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
    """A block that only the process that created this object leaves: a process that was forked since exits there."""

    __slots__ = ("_pid", "_step")

    def __init__(self, step: str) -> None:
        """Record the current process."""
        self._step, self._pid = step, os.getpid()

    def __enter__(self) -> None:
        if os.getpid() != self._pid:
            self._end(None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if os.getpid() != self._pid:
            self._end(error)

    def _end(self, error: BaseException | None) -> NoReturn:
        """Exit this process with the code of its `SystemExit`, or with 1 after any other error."""
        code = 0
        with suppress(BaseException):  # after any error here, no code of the worker may run
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
    """A step's coroutine that continues in one process only: a forked process exits where it would await or return."""

    def __init__(self, inner: Coroutine[Any, Any, Any], step: str) -> None:
        """Wrap a coroutine that was not started."""
        self._inner, self._block = inner, OneProcess(step)

    def send(self, value: Any) -> Any:
        """Send a value; run until it awaits something, or returns."""
        with self._block:
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the coroutine."""
        with self._block:
            return self._inner.throw(*error)

    def close(self) -> None:
        """Close the coroutine."""
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        """Await it inside another coroutine."""
        value, error = None, None
        while True:
            try:
                awaited = self.send(value) if error is None else self.throw(error)
            except StopIteration as stop:
                return stop.value
            try:
                value, error = (yield awaited), None
            except BaseException as raised:  # noqa: BLE001  thrown into the coroutine
                error = raised


@contextmanager
def handled_here(numbers: Sequence[signal.Signals], handle: Callable[[], None]) -> Iterator[None]:
    """Call `handle` for signals to this process; its forked children have the handlers from before the block.

    Otherwise a child that a step has forked could not be terminated: the signal would only stop its copy of the worker.
    """
    for number in numbers:
        before = signal.signal(number, lambda *_: handle())
        _before[number] = signal.SIG_DFL if before is None else before  # None: no handler of Python
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, _before.pop(number))


_before: dict[signal.Signals, Any] = {}
_masks = threading.local()  # of the forking thread, during the fork


def _hold_signals() -> None:
    """Block signals until a child has its own handlers: Python drops signals that arrive before."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _before)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _restore_handlers() -> None:
    for number, handler in _before.items():
        signal.signal(number, handler)
    _before.clear()
    _release_signals()


os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_restore_handlers)
