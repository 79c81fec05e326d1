"""The figures of a benchmark, and their table."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure, with its bound if there is one."""

    name: str
    unit: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    detail: str = ""

    @property
    def kept(self) -> bool:
        """Whether the figure is within its bound."""
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)


def progress(name: str, done: int, of: int) -> None:
    """Show how far a benchmark is, on a terminal."""
    if sys.stderr.isatty() or done % max(1, of // 4) == 0:
        sys.stderr.write(f"\r{name}: {done:,} of {of:,}" + ("" if sys.stderr.isatty() else "\n"))
        sys.stderr.flush()


def show(measures: list[Measure]) -> bool:
    """Print all figures as a table. Return whether each is within its bound."""
    sys.stderr.write("\r" + " " * 78 + "\r")
    print(f"{'measure':<42} {'value':>10}  {'bound':<12} unit")
    for one in measures:
        bound = f">= {one.at_least:,g}" if one.at_least is not None else f"<= {one.at_most:,g}" if one.at_most else ""
        mark = "" if one.kept else "  MISSED"
        print(f"{one.name:<42} {one.value:>10,.2f}  {bound:<12} {one.unit}{mark}  ({one.detail})")
    return all(one.kept for one in measures)
