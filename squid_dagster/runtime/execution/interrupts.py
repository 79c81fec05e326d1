"""Signals that interrupt a step in the main thread, distinguished from what the step raises by itself.

A `KeyboardInterrupt` is the step's failure if the step raised it, and the end of the caller's wait if a signal did.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_counts = threading.local()  # Python handles signals in the main thread only


def is_interrupt(error: BaseException) -> bool:
    """Return whether a signal, and not the step, raised the error: one was handled during `note_interrupts`."""
    return not isinstance(error, Exception) and bool(getattr(_counts, "signals", 0))


@contextmanager
def note_interrupts() -> Iterator[None]:
    """Count signals that Python handlers handle, and call these handlers; only the main thread has any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    ours = {number: _counting(handler) for number, handler in before.items() if callable(handler)}
    earlier, _counts.signals = getattr(_counts, "signals", 0), 0
    for number, handler in ours.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in ours.items():
            if signal.getsignal(number) is handler:  # otherwise the step has set one of its own
                signal.signal(number, before[number])
        _counts.signals = earlier


def _counting(handler: Any) -> Any:
    def note(number: int, frame: FrameType | None) -> Any:
        _counts.signals += 1
        return handler(number, frame)

    return note
