"""The garbage collector of a worker's process: objects that existed before the work are excluded from collections.

A worker creates and drops many short-lived objects. Each full collection would visit every module, class and schema of
the process, which are never garbage; that took a fifth of a worker's time.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0
_ours = False  # whether we have frozen objects


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Freeze all current objects (`gc.freeze`) until the last such block of the process ends. Takes no time.

    If the application has frozen objects before, as is usual before a fork, nothing is done: there is one frozen
    generation per process, and `gc.unfreeze` would return the application's objects too.
    """
    global _inside, _ours
    with _lock:
        if not _inside and not gc.get_freeze_count():
            gc.freeze()
            _ours = True
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and _ours:
                gc.unfreeze()
                _ours = False
