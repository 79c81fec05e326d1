"""Faults: what may go wrong at a storage call or a wakeup, drawn by chance, recorded, and repeated from the record."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import NamedTuple

from squid_dagster.protocol.errors import SquidError, StorageRefused, StorageUnavailable, ViewsMissing


class Kind(StrEnum):
    """What goes wrong."""

    CRASH_BEFORE = "crash_before"  # the process ends before the call
    CRASH_AFTER = "crash_after"  # the process ends when the call is done
    LOST_ANSWER = "lost_answer"  # the call is done, and its caller is told that the database is away
    ERROR = "error"  # the call is not done, and fails with a class of database error
    CONFLICT = "conflict"  # a commit that expects a revision is refused, as if another one had been faster
    STALL_BEFORE = "stall_before"  # the thread stands still before the call
    STALL_AFTER = "stall_after"  # the thread stands still when the call is done
    SUSPEND = "suspend"  # all threads of the process stand still
    WAKEUP_LOST = "wakeup_lost"
    WAKEUP_DOUBLED = "wakeup_doubled"
    CLOCK_BACK = "clock_back"  # the storage's clock is set back


class Place(NamedTuple):
    """The thread that makes a storage call, by name, and which call of that thread it is."""

    thread: str
    call: int


class Fault(NamedTuple):
    """One thing that goes wrong. `about` is what was called, and for reading only; `detail` the class of an error."""

    place: Place
    kind: Kind
    about: str = ""
    seconds: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        """Describe it in one line."""
        what = f" {self.detail}" if self.detail else f" {self.seconds:.3f} s" if self.seconds else ""
        return f"{self.kind.value}{what} at call {self.place.call} of {self.place.thread} ({self.about})"


# The classes of errors that a storage raises for what is no mistake of its caller.
ERRORS: dict[str, Callable[[], SquidError]] = {
    "unavailable": lambda: StorageUnavailable("the database cannot be reached: a simulated fault"),
    "views_missing": lambda: ViewsMissing("the live views are missing: a simulated fault"),
    "refused": lambda: StorageRefused("the database refuses it: a simulated fault"),
}
# Threads that settle: what the database refuses of an outcome is recorded as a failure of the step, as it should be.
_SETTLING = ("squid-committer", "squid-step")

_AT_A_COMMIT = (
    *[Kind.CRASH_BEFORE, Kind.CRASH_AFTER] * 2,
    *[Kind.LOST_ANSWER] * 4,
    *[Kind.ERROR] * 3,
    *[Kind.CONFLICT] * 2,
    *[Kind.STALL_BEFORE, Kind.STALL_AFTER] * 2,
    *[Kind.SUSPEND] * 5,
)
_AT_A_READ = (
    Kind.CRASH_BEFORE,
    *[Kind.ERROR] * 3,
    *[Kind.STALL_BEFORE, Kind.STALL_AFTER] * 2,
    Kind.SUSPEND,
)


@dataclass(slots=True)
class Chances:
    """How often faults come: the share of commits, reads and wakeups that one befalls, and how many in all."""

    commit: float = 0.10
    read: float = 0.02
    wakeup: float = 0.15
    clock: float = 0.001
    most: int = 14
    stall_seconds: float = 20.0  # a lease and more


@dataclass(slots=True)
class FaultPlan:
    """Where faults befall. With `given`, exactly these; else by chance, until `calm` or the most allowed."""

    random: Random
    chances: Chances = field(default_factory=Chances)
    given: Mapping[Place, Fault] | None = None
    happened: list[Fault] = field(default_factory=list)
    calm: bool = False

    @classmethod
    def of(cls, faults: Iterable[Fault]) -> "FaultPlan":
        """Return the plan in which these faults befall and no others."""
        return cls(Random(0), given={fault.place: fault for fault in faults})  # noqa: S311  no secret

    def at_call(self, place: Place, about: str, *, writes: bool, expects: bool) -> Fault | None:
        """Return what goes wrong at a storage call; `expects` is whether it is a commit that expects a revision."""
        if self.given is not None:
            return self._repeat(place, about)
        if self.calm or len(self.happened) >= self.chances.most:
            return None
        random = self.random
        if random.random() >= (self.chances.commit if writes else self.chances.read):
            return None
        if random.random() < self.chances.clock:
            return self._note(Fault(place, Kind.CLOCK_BACK, about, random.uniform(0.001, 5.0)))
        kind = random.choice(_AT_A_COMMIT if writes else _AT_A_READ)
        if kind is Kind.CONFLICT and not expects:
            kind = Kind.LOST_ANSWER
        if kind in (Kind.STALL_BEFORE, Kind.STALL_AFTER, Kind.SUSPEND):
            return self._note(Fault(place, kind, about, random.uniform(0.1, 1.0) * self.chances.stall_seconds))
        detail = random.choice(list(ERRORS)) if kind is Kind.ERROR else ""
        if detail == "refused" and any(name in place.thread for name in _SETTLING):
            detail = "unavailable"
        return self._note(Fault(place, kind, about, detail=detail))

    def at_wakeup(self, place: Place) -> Fault | None:
        """Return what goes wrong with a wakeup."""
        if self.given is not None:
            return self._repeat(place, "notify")
        if self.calm or len(self.happened) >= self.chances.most or self.random.random() >= self.chances.wakeup:
            return None
        return self._note(Fault(place, self.random.choice([Kind.WAKEUP_LOST, Kind.WAKEUP_DOUBLED]), "notify"))

    def _repeat(self, place: Place, about: str) -> Fault | None:
        fault = (self.given or {}).get(place)
        return None if fault is None else self._note(fault._replace(about=about))

    def _note(self, fault: Fault) -> Fault:
        self.happened.append(fault)
        return fault
