"""`threading`, `time` and `queue` on virtual time, and the block in which the runtime uses them.

The worker, its committers, heartbeats and housekeeping are the real ones: only what they wait with is replaced.
"""

import queue
import sys
import threading
import time
from asyncio import SelectorEventLoop
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from selectors import SelectSelector
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from squid_dagster.testing.simulation.environment.machine import (
    BEGIN,
    ProcessCrash,
    SimulatedThread,
    WaiterQueue,
    machine,
)

T = TypeVar("T")


class Lock:
    """`threading.Lock`, and as `RLock` one that its thread may take again."""

    again = False

    def __init__(self) -> None:
        """Initialize an unlocked lock."""
        self._holder: object | None = None
        self._times = 0
        self._waiters = WaiterQueue()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock."""
        mine = machine().current()
        if self.again and self._times and self._holder is mine:
            self._times += 1
            return True
        until = machine().now + timeout
        while self._times:
            if not blocking or (timeout >= 0 and machine().now >= until):
                return False
            self._waiters.wait(None if timeout < 0 else until - machine().now)
        self._holder, self._times = mine, 1
        return True

    def release(self) -> None:
        """Release the lock."""
        self._times -= 1
        if not self._times:
            self._holder = None
            self._waiters.wake(1)

    def locked(self) -> bool:
        """Return whether it is held."""
        return self._times > 0

    def __enter__(self) -> bool:
        """Acquire the lock."""
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self.release()


class _RLock(Lock):
    """`threading.RLock`."""

    again = True


class Condition:
    """`threading.Condition`. No other thread runs between two waits, so that its lock need not be a real one."""

    def __init__(self, lock: Lock | None = None) -> None:
        """Store the lock, or create one."""
        self._lock = lock or _RLock()
        self._waiters = WaiterQueue()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        """Acquire the lock."""
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait to be notified, acquire it again."""
        self._lock.release()
        try:
            return self._waiters.wait(timeout)
        finally:
            try:
                self._lock.acquire()
            except ProcessCrash:
                self._lock._times += 1  # so that the surrounding `with` can release it
                raise

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the predicate is true."""
        until = None if timeout is None else machine().now + timeout
        while not (holds := predicate()):
            left = None if until is None else until - machine().now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return holds

    def notify(self, n: int = 1) -> None:
        """Wake `n` threads."""
        self._waiters.wake(n)

    def notify_all(self) -> None:
        """Wake all threads."""
        self._waiters.wake()


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        """Initialize an unset event."""
        self._set = False
        self._waiters = WaiterQueue()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._set

    def set(self) -> None:
        """Set the event, and wake all threads."""
        self._set = True
        self._waiters.wake()

    def clear(self) -> None:
        """Clear the event."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set."""
        until = None if timeout is None else machine().now + timeout
        while not self._set:
            left = None if until is None else until - machine().now
            if left is not None and left <= 0:
                break
            self._waiters.wait(left)
        return self._set


class Thread:
    """`threading.Thread`: one more thread of the process that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        """Store target and arguments."""
        self.name, self.daemon = name or "thread", daemon
        self._target, self._args, self._kwargs = target, args, dict(kwargs or {})
        self._thread: SimulatedThread | None = None

    def run(self) -> None:
        """Call the target."""
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        """Start the thread."""
        starter = machine().current()
        if starter is None:
            raise RuntimeError("only a simulated thread can start another")
        self._thread = starter.process.spawn(self.run, self.name)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread's end."""
        here = machine()
        until = None if timeout is None else here.now + timeout
        while self.is_alive():
            left = None if until is None else until - here.now
            if left is not None and left <= 0:
                return
            mine = here.current()
            if mine is not None and self._thread is not None:
                self._thread.joiners.append(mine)
            here.wait(left)

    def is_alive(self) -> bool:
        """Return whether the thread was started and has not ended."""
        return self._thread is not None and not self._thread.over

    @property
    def ident(self) -> int | None:
        """Return a number of its own."""
        return None if self._thread is None else id(self._thread)


class SimpleQueue(Generic[T]):
    """`queue.SimpleQueue` and `queue.Queue`, without a bound."""

    def __init__(self, maxsize: int = 0) -> None:
        """Initialize an empty queue."""
        self._items: deque[T] = deque()
        self._waiters = WaiterQueue()

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """Append an item."""
        self._items.append(item)
        self._waiters.wake(1)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Return the first item; raise `queue.Empty` when there is none in time."""
        until = None if timeout is None else machine().now + timeout
        while not self._items:
            left = None if until is None else until - machine().now
            if not block or (left is not None and left <= 0):
                raise queue.Empty
            self._waiters.wait(left)
        return self._items.popleft()

    put_nowait = put

    def get_nowait(self) -> T:
        """Return the first item without waiting."""
        return self.get(block=False)

    def qsize(self) -> int:
        """Return the number of items."""
        return len(self._items)

    def empty(self) -> bool:
        """Return whether the queue is empty."""
        return not self._items


class _Selector(SelectSelector):
    """A selector whose waits pass in virtual time."""

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is not None and timeout > 0:
            machine().wait(timeout)
        return ready


class _EventLoop(SelectorEventLoop):
    """An event loop on virtual time, for one async step."""

    def time(self) -> float:
        return machine().now


class AsyncLoop:
    """`runtime.pool.AsyncLoop`, without a thread: a step's coroutine runs in the step's own."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        loop = _EventLoop(_Selector())
        try:
            return loop.run_until_complete(coroutine)
        finally:
            loop.close()

    def close(self) -> None:
        """Release nothing: `run` closes its loop."""


class _Module:
    """A module with some names replaced."""

    def __init__(self, real: Any, **replaced: Any) -> None:
        self._real = real
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _now() -> float:
    return machine().now


def _sleep(seconds: float) -> None:
    machine().wait(seconds)


_THREADING = _Module(
    threading,
    Lock=Lock,
    RLock=_RLock,
    Condition=Condition,
    Event=Event,
    Thread=Thread,
    current_thread=lambda: machine().current(),
    main_thread=lambda: None,
    get_ident=lambda: id(machine().current()),
)
_TIME = _Module(
    time,
    monotonic=_now,
    perf_counter=_now,
    time=lambda: BEGIN.timestamp() + machine().now,
    time_ns=lambda: int((BEGIN.timestamp() + machine().now) * 1_000_000_000),
    sleep=_sleep,
)
# The replacements, by the id of the original, whatever its name in a module of the runtime.
_REPLACED: dict[int, object] = {
    id(threading): _THREADING,
    id(threading.Lock): Lock,
    id(threading.RLock): _RLock,
    id(threading.Condition): Condition,
    id(threading.Event): Event,
    id(threading.Thread): Thread,
    id(time): _TIME,
    id(queue.SimpleQueue): SimpleQueue,
    id(queue.Queue): SimpleQueue,
}
_PATCHED = (
    "squid_dagster.runtime.",
    "squid_dagster.journal.contract.notifier",
    "squid_dagster.journal.fold_store.",
    "squid_dagster.journal.contract.worker_liveness",
    "squid_dagster.workflow.authoring.step_context",
)


class VirtualTime:
    """A context in which the runtime waits on the current machine. For one thread of a process at a time."""

    def __init__(self) -> None:
        """Initialize; nothing is replaced yet."""
        self._before: list[tuple[Any, str, object]] = []

    def __enter__(self) -> Self:
        """Replace the primitives of the runtime."""
        from squid_dagster.runtime.worker.step_pool import AsyncLoop as RealLoop

        replaced = {**_REPLACED, id(RealLoop): AsyncLoop}
        for name, module in list(sys.modules.items()):
            if not name.startswith(_PATCHED) or name == "squid_dagster.runtime.worker.garbage_collection":
                continue
            for attribute, value in list(vars(module).items()):
                replacement = replaced.get(id(value))
                if replacement is not None:
                    self._before.append((module, attribute, value))
                    setattr(module, attribute, replacement)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the primitives."""
        for module, attribute, value in self._before:
            setattr(module, attribute, value)
        self._before.clear()


@contextmanager
def virtual_time() -> Iterator[None]:
    """Run the block with the runtime on virtual time."""
    with VirtualTime():
        yield
