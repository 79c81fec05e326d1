"""Messages between the benchmark and the processes of every system: one order in, lines of JSON out.

Standard library only: this module is imported in the peers' environment too. Times are `time.monotonic()`, which all
processes of one machine share.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

WARM_UP = 20  # starts before a rate is taken, so that plans are cached and pools are open
CHAIN, WIDTH = 11, 100  # steps one after another; siblings, or children


@dataclass(frozen=True, slots=True)
class Shape:
    """The runs that follow from one start, those of children included, and the steps of each."""

    steps: int = 1
    runs: int = 1


# By the name of the workflow. A fan-out has a step before its siblings and one after them.
SHAPES = {
    "one_step": Shape(),
    "three_steps": Shape(steps=3),
    "chain": Shape(steps=CHAIN),
    "fan": Shape(steps=1 + WIDTH + 1),
    "family": Shape(runs=1 + WIDTH),
}


@dataclass(frozen=True, slots=True)
class Order:
    """A command for a process, with its arguments."""

    command: str
    url: str
    count: int = 0
    workflow: str = "one_step"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """How many runs its starts lead to; the last step of each calls the handler."""
        return self.count * SHAPES[self.workflow].runs

    def text(self) -> str:
        """Return the order as the argument of a process."""
        return json.dumps(asdict(self))


def obey(commands: Mapping[str, Callable[[Order], None]]) -> None:
    """Execute the order in the process's argument. Raises `KeyError` for a command that the system does not have."""
    order = Order(**json.loads(sys.argv[1]))
    commands[order.command](order)


def say(event: str, **details: Any) -> None:
    """Write an event to the benchmark."""
    sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **details}) + "\n")
    sys.stdout.flush()


def asked() -> Iterator[int]:
    """Yield a number for every line that the benchmark sends, until it closes stdin."""
    for number, _ in enumerate(sys.stdin):
        yield number


class Stopwatch:
    """Measures the time of a block, and writes it when the block ends without an error."""

    def __init__(self, starts: int) -> None:
        """Set how many starts the block makes."""
        self._starts = starts

    def __enter__(self) -> None:
        self._begin = time.monotonic()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            say("timed", seconds=time.monotonic() - self._begin, count=self._starts)


class Countdown:
    """Counts the calls of handlers in one process, from any thread, and writes an event at the last one."""

    def __init__(self, expected: int) -> None:
        """Set how many calls are expected."""
        self._expected = expected
        self._calls = count(1)
        self._first = 0.0

    def tick(self) -> None:
        """Count one call."""
        number = next(self._calls)
        if number == 1:
            self._first = time.monotonic()
        if number == self._expected:
            say("last", first=self._first)
