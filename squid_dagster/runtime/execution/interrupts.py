"""Signals that interrupt a step in the main thread, told apart from what the step raises by itself.

A `KeyboardInterrupt` is the step's failure when the step raised it, and the end of the caller's wait when a signal did.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_noted = threading.local()  # signals come to the main thread only; no other thread ever sees one


def is_interrupt(error: BaseException) -> bool:
    """Return whether a signal, and not the step, raised the error: one came to this thread in `note_interrupts`."""
    return not isinstance(error, Exception) and bool(getattr(_noted, "signals", 0))


@contextmanager
def note_interrupts() -> Iterator[None]:
    """Note signals that handlers written in Python answer, and hand them on; only the main thread has any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    ours = {number: _noting(handler) for number, handler in before.items() if callable(handler)}
    earlier, _noted.signals = getattr(_noted, "signals", 0), 0
    for number, handler in ours.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in ours.items():
            if signal.getsignal(number) is handler:  # else the step has set one of its own
                signal.signal(number, before[number])
        _noted.signals = earlier


def _noting(handler: Any) -> Any:
    def note(number: int, frame: FrameType | None) -> Any:
        _noted.signals += 1
        return handler(number, frame)

    return note
