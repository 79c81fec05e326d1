"""Shrinking: from a schedule that fails to the fewest faults with which it still does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from squid_dagster.testing.simulation.faults import Fault
from squid_dagster.testing.simulation.scenario import Scenario
from squid_dagster.testing.simulation.schedule import Played, expectation, play

_MOST = 150  # plays of one shrinking


@dataclass(frozen=True, slots=True)
class Failure:
    """A schedule that fails: its seed, the faults that it takes, by number of those that befell, and what is wrong."""

    seed: int
    atomic: bool
    kept: tuple[int, ...]
    faults: tuple[Fault, ...]
    problems: tuple[str, ...]
    starts: tuple[str, ...]

    def __str__(self) -> str:
        """Tell how to repeat it, what befell and what came of it."""
        commits = "commits span threads" if self.atomic else "commits do not span threads"
        kept = ",".join(map(str, self.kept)) or "none"
        lines = [f"seed {self.seed}, faults kept: {kept} ({commits}; runs: {', '.join(self.starts)})"]
        lines += [f"  fault {number}: {fault}" for number, fault in zip(self.kept, self.faults, strict=True)]
        lines += [f"  violation: {problem}" for problem in self.problems]
        return "\n".join(lines)


def shrink(scenario: Scenario, played: Played) -> Failure:
    """Return the failure with as few faults as still fail."""
    expected = expectation(scenario)
    plays = 0

    def fails(faults: Sequence[Fault]) -> bool:
        nonlocal plays
        plays += 1
        return plays <= _MOST and bool(play(scenario, expected, played.seed, faults=faults).problems)

    kept, best = list(played.faults), played
    if fails(kept):
        kept = fewest(kept, fails)
        best = play(scenario, expected, played.seed, faults=kept)
    numbers = tuple(number for number, fault in enumerate(played.faults) if fault in kept)
    return Failure(
        played.seed,
        played.atomic,
        numbers,
        tuple(played.faults[number] for number in numbers),
        (best if best.problems else played).problems,
        tuple(start.key for start in scenario.starts),
    )


def fewest(faults: list[Fault], fails: Callable[[list[Fault]], bool]) -> list[Fault]:
    """Return a part of these faults that still fails, and from which none can be left out."""
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
