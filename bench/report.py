"""What a benchmark found, and how it is shown."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure, with the bound that it has to keep, if any."""

    name: str
    unit: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    detail: str = ""

    @property
    def kept(self) -> bool:
        """Tell whether the figure keeps its bound."""
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)


def progress(name: str, done: int, of: int) -> None:
    """Show how far a benchmark is, on a terminal."""
    if sys.stderr.isatty() or done % max(1, of // 4) == 0:
        sys.stderr.write(f"\r{name}: {done:,} of {of:,}" + ("" if sys.stderr.isatty() else "\n"))
        sys.stderr.flush()


def show(measures: list[Measure]) -> bool:
    """Print all figures as a table; tell whether every bound was kept."""
    sys.stderr.write("\r" + " " * 78 + "\r")
    print(f"{'measure':<42} {'value':>10}  {'bound':<12} unit")
    for one in measures:
        bound = f">= {one.at_least:,g}" if one.at_least is not None else f"<= {one.at_most:,g}" if one.at_most else ""
        mark = "" if one.kept else "  MISSED"
        print(f"{one.name:<42} {one.value:>10,.2f}  {bound:<12} {one.unit}{mark}  ({one.detail})")
    return all(one.kept for one in measures)
