"""Shrinking: a minimal set of faults with which a failing schedule still fails."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from squid_dagster.testing.simulation.faults import Fault
from squid_dagster.testing.simulation.scenario import Scenario
from squid_dagster.testing.simulation.schedule import ScheduleResult, expectation, play

_MAX_PLAYS = 150  # plays of one shrinking


@dataclass(frozen=True, slots=True)
class Failure:
    """A failing schedule: its seed, a minimal set of its faults with their numbers, and its problems."""

    seed: int
    atomic: bool
    fault_numbers: tuple[int, ...]
    faults: tuple[Fault, ...]
    problems: tuple[str, ...]
    starts: tuple[str, ...]

    def __str__(self) -> str:
        """Return how to repeat it, its faults and its problems."""
        commits = "commits span threads" if self.atomic else "commits do not span threads"
        numbers = ",".join(map(str, self.fault_numbers)) or "none"
        lines = [f"seed {self.seed}, faults kept: {numbers} ({commits}; runs: {', '.join(self.starts)})"]
        lines += [f"  fault {number}: {fault}" for number, fault in zip(self.fault_numbers, self.faults, strict=True)]
        lines += [f"  violation: {problem}" for problem in self.problems]
        return "\n".join(lines)


def shrink(scenario: Scenario, played: ScheduleResult) -> Failure:
    """Return the failure with a minimal set of faults."""
    expected = expectation(scenario)
    plays = 0

    def fails(faults: Sequence[Fault]) -> bool:
        nonlocal plays
        plays += 1
        return plays <= _MAX_PLAYS and bool(play(scenario, expected, played.seed, faults=faults).problems)

    minimal, best = list(played.faults), played
    if fails(minimal):
        minimal = fewest(minimal, fails)
        best = play(scenario, expected, played.seed, faults=minimal)
    numbers = tuple(number for number, fault in enumerate(played.faults) if fault in minimal)
    return Failure(
        played.seed,
        played.atomic,
        numbers,
        tuple(played.faults[number] for number in numbers),
        (best if best.problems else played).problems,
        tuple(start.key for start in scenario.starts),
    )


def fewest(faults: list[Fault], fails: Callable[[list[Fault]], bool]) -> list[Fault]:
    """Return a subset of these faults that still fails, and from which none can be removed."""
    size = len(faults)
    while size:
        place = 0
        while place < len(faults):
            left = faults[:place] + faults[place + size :]
            if fails(left):
                faults = left
            else:
                place += size
        size = min(size // 2, len(faults))
    return faults
