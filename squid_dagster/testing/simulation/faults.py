"""The faults of storage calls and wakeups: drawn at random, recorded, and repeated from the record."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import NamedTuple

from squid_dagster.protocol.errors import SquidError, StorageRefused, StorageUnavailable, ViewsMissing


class Kind(StrEnum):
    """The kind of a fault."""

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
    """One fault. `about` is the call, for display only; `detail` the class of an error."""

    place: Place
    kind: Kind
    about: str = ""
    seconds: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        """Describe the fault in one line."""
        what = f" {self.detail}" if self.detail else f" {self.seconds:.3f} s" if self.seconds else ""
        return f"{self.kind.value}{what} at call {self.place.call} of {self.place.thread} ({self.about})"


# The errors of a storage that its caller did not cause.
ERRORS: dict[str, Callable[[], SquidError]] = {
    "unavailable": lambda: StorageUnavailable("the database cannot be reached: a simulated fault"),
    "views_missing": lambda: ViewsMissing("the live views are missing: a simulated fault"),
    "refused": lambda: StorageRefused("the database refuses it: a simulated fault"),
}
# Threads that settle: an outcome that the database refuses is recorded as a failure of the step, as intended.
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
class FaultSettings:
    """The rates of faults: the share of commits, reads and wakeups with one, and the maximum number."""

    commit: float = 0.10
    read: float = 0.02
    wakeup: float = 0.15
    clock: float = 0.001
    most: int = 14
    stall_seconds: float = 20.0  # a lease and more


@dataclass(slots=True)
class FaultPlan:
    """The faults of a schedule. With `given`, exactly these; else at random, until `calm` or the maximum."""

    random: Random
    chances: FaultSettings = field(default_factory=FaultSettings)
    given: Mapping[Place, Fault] | None = None
    happened: list[Fault] = field(default_factory=list)
    calm: bool = False

    @classmethod
    def of(cls, faults: Iterable[Fault]) -> "FaultPlan":
        """Return a plan with exactly these faults."""
        return cls(Random(0), given={fault.place: fault for fault in faults})  # noqa: S311  no secret

    def at_call(self, place: Place, about: str, *, writes: bool, expects: bool) -> Fault | None:
        """Return the fault of a storage call, if any; `expects` is whether it is a commit with an expected revision."""
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
        """Return the fault of a wakeup, if any."""
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
