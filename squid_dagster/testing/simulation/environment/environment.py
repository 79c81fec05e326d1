"""The ground that a schedule is played on: a journal, the sides of a runtime that go with it, and what is checked."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from squid_dagster.journal.contract.storage import Storage
from squid_dagster.testing.simulation.environment.machine import MachineClock
from squid_dagster.testing.simulation.environment.storage import Census, ProcessStorage, SharedJournal

if TYPE_CHECKING:
    from squid_dagster.testing.simulation.roles import Stage


@dataclass(frozen=True, slots=True)
class Ground:
    """An empty journal. `begin` may begin more processes, `problems` says what else is wrong at the end."""

    journal: Storage
    census: Census
    sides: Callable[[ProcessStorage], dict[str, Any]] = field(default=lambda _: {})
    begin: Callable[["Stage"], None] = field(default=lambda _: None)
    problems: Callable[[], Iterable[str]] = field(default=lambda: ())


# Makes the ground of one schedule, by its clock; the other value is whether commits should span threads.
MakeGround = Callable[[MachineClock, bool], Ground]


def in_memory(clock: MachineClock, atomic: bool) -> Ground:
    """Return an empty journal in memory."""
    journal = SharedJournal(clock, atomic_across_threads=atomic)
    return Ground(journal, journal)
