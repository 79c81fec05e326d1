"""Simulated processes on virtual time: every thread is a greenlet, and only one of them runs at any moment.

A thread runs until it waits (for a time, a lock, a storage); the machine then moves the clock to whatever is due next.
Nothing here depends on chance: the same threads that wait for the same times run in the same order, every time.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from greenlet import getcurrent, greenlet

from squid_dagster.journal.contract.clock import VirtualClock

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class ProcessCrash(BaseException):
    """The process of this thread has ended: nothing that it still does has any effect."""


def _nothing() -> None:
    """Return without effect: the default `on_exit`."""


class Process:
    """A simulated operating system process: threads that end together."""

    def __init__(self, machine: "Machine", name: str) -> None:
        """Use `Machine.launch`."""
        self.machine, self.name = machine, name
        self.alive = True
        self.suspended_until = 0.0
        self.threads: list[SimulatedThread] = []
        self.numbers: dict[str, int] = {}  # how many threads of each name were made
        self.on_exit: Callable[[], None] = _nothing

    def spawn(self, target: Callable[[], Any], name: str) -> "SimulatedThread":
        """Start a thread; it runs when the current one waits."""
        self.numbers[name] = number = self.numbers.get(name, 0) + 1
        thread = SimulatedThread(self, f"{self.name}/{name}" + (f"-{number}" if number > 1 else ""), target)
        self.threads.append(thread)
        self.machine.schedule(thread, self.machine.now)
        return thread

    def kill(self) -> None:
        """End the process here and now: each thread gets `Killed` when it would run next, the calling one too."""
        self.alive = False
        for thread in self.threads:
            if not thread.over and thread is not getcurrent():
                self.machine.schedule(thread, self.machine.now)

    def suspend(self, seconds: float) -> None:
        """Suspend all threads of the process for that long, as SIGSTOP does."""
        self.suspended_until = max(self.suspended_until, self.machine.now + seconds)


class SimulatedThread(greenlet):  # type: ignore[misc]  # it has no types
    """One thread of a process."""

    def __init__(self, process: Process, name: str, target: Callable[[], Any]) -> None:
        """Use `Process.spawn`."""
        super().__init__(parent=process.machine.home)
        self.process, self.name, self.target = process, name, target
        self.points = 0  # storage calls so far
        self.ticket = 0  # of the latest wait: older ones are ignored
        self.over = False
        self.woken = False
        self.joiners: list[SimulatedThread] = []

    def run(self) -> None:
        """Run the thread to its end."""
        try:
            if self.process.alive:
                self.target()
        except ProcessCrash:
            pass
        except BaseException as error:  # noqa: BLE001  it ends this thread only, and the verdict tells
            self.process.machine.died.append((self.name, error))
        finally:
            self.over = True
            for joiner in self.joiners:
                joiner.process.machine.wake(joiner)
            if self is self.process.threads[0]:
                self.process.on_exit()


@dataclass(slots=True, eq=False)
class Machine:
    """The scheduler of all threads, and their virtual time in seconds since `BEGIN`."""

    now: float = 0.0
    home: greenlet = field(default_factory=getcurrent)
    died: list[tuple[str, BaseException]] = field(default_factory=list)  # threads that ended by an exception
    processes: list[Process] = field(default_factory=list)
    switches: int = 0
    skipped: float = 0.0  # seconds of idle time that no thread waited for
    _due: list[tuple[float, int, int, SimulatedThread]] = field(default_factory=list)
    _order: int = 0

    def launch(self, name: str, target: Callable[[], Any]) -> Process:
        """Launch a process with one thread."""
        process = Process(self, name)
        self.processes.append(process)
        process.spawn(target, "main")
        return process

    def schedule(self, thread: SimulatedThread, at: float) -> None:
        """Run the thread at that time, or before if it is woken."""
        self._order += 1
        heapq.heappush(self._due, (at, self._order, thread.ticket, thread))

    def run(self, until: float, over: Callable[[], bool] = lambda: False) -> None:
        """Run whatever is due, in order, up to that time or until it is `over`."""
        while self._due and not over():
            at, _, ticket, thread = self._due[0]
            if thread.over or ticket != thread.ticket:
                heapq.heappop(self._due)
                continue
            if at > until:
                break
            heapq.heappop(self._due)
            process = thread.process
            if process.alive and process.suspended_until > max(at, self.now):
                self.schedule(thread, process.suspended_until)
                continue
            self.now = max(self.now, at)
            self.switches += 1
            if process.alive or not thread:
                thread.switch()
            else:
                thread.throw(ProcessCrash)
        if not over():
            self.now = max(self.now, until)

    # --- for the thread that runs now -------------------------------------------------------------------------------

    def current(self) -> SimulatedThread | None:
        """Return the thread that runs now; None outside of all of them."""
        thread = getcurrent()
        return thread if isinstance(thread, SimulatedThread) else None

    def wait(self, seconds: float | None) -> bool:
        """Wait until this thread is woken, or for so many seconds; return whether it was woken.

        Raises:
            ProcessCrash: the process has ended meanwhile, or before.
        """
        thread = self.current()
        if thread is None:
            raise RuntimeError("only a simulated thread can wait for virtual time")
        if not thread.process.alive:
            raise ProcessCrash
        thread.woken = False
        thread.ticket += 1
        if seconds is not None:
            self.schedule(thread, self.now + max(0.0, seconds))
        loop = asyncio._get_running_loop()  # there is one place for it per real thread
        asyncio._set_running_loop(None)
        try:
            self.home.switch()
        finally:
            asyncio._set_running_loop(loop)
        if not thread.process.alive:
            raise ProcessCrash
        return thread.woken

    def wake(self, thread: SimulatedThread) -> None:
        """End the wait of a thread."""
        if not thread.over and not thread.woken:
            thread.woken = True
            self.schedule(thread, self.now)

    def skip(self, seconds: float) -> None:
        """Advance the time at once; what was due meanwhile is due now."""
        self.now += seconds
        self.skipped += seconds

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.alive = False
            for thread in process.threads:
                if not thread.dead:
                    thread.throw(ProcessCrash)
        # The garbage collector untracks such tuples while their greenlet lives: a cycle through them would stay.
        self._due.clear()


class MachineClock(VirtualClock):
    """The clock of a machine. `advance` adds a jump to the machine's time, as clocks of databases can jump."""

    def __init__(self, machine: Machine) -> None:
        """Follow a machine."""
        super().__init__(BEGIN)
        self._machine = machine
        self._jumped = timedelta(0)

    def now(self) -> datetime:
        """Return the time."""
        return BEGIN + timedelta(seconds=round(self._machine.now, 6)) + self._jumped

    def advance(self, by: timedelta) -> datetime:
        """Move relative to the machine's time."""
        self._jumped += by
        return self.now()


# The machine that the replaced primitives of the runtime use: see `virtual_time`.
_machine: Machine | None = None


def machine() -> Machine:
    """Return the current machine. Raises `RuntimeError` outside of a simulation."""
    if _machine is None:
        raise RuntimeError("there is no simulation under way")
    return _machine


@contextmanager
def in_charge(current: Machine) -> Iterator[Machine]:
    """Set the current machine for the block."""
    global _machine
    before, _machine = _machine, current
    try:
        yield current
    finally:
        _machine = before


class WaiterQueue:
    """Waiting threads, in the order of their arrival."""

    __slots__ = ("_threads",)

    def __init__(self) -> None:
        """Initialize without waiting threads."""
        self._threads: deque[SimulatedThread] = deque()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait to be woken; return whether that happened."""
        here = machine()
        thread = here.current()
        if thread is None:
            raise RuntimeError("only a simulated thread can wait")
        self._threads.append(thread)
        try:
            return here.wait(seconds)
        finally:
            if thread in self._threads:
                self._threads.remove(thread)

    def wake(self, count: int | None = None) -> None:
        """Wake `count` threads, or all."""
        here = machine()
        for _ in range(len(self._threads) if count is None else min(count, len(self._threads))):
            here.wake(self._threads.popleft())
