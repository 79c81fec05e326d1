"""From samples to figures: medians, ratios, targets, the table and the file."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from bench.peers.systems import ONE_PROCESS, OURS

T = TypeVar("T")
Samples = Mapping[str, Sequence[float]]  # by system


@dataclass(frozen=True, slots=True)
class Target:
    """The ratio to a peer that is to be reached."""

    peer: str
    at_least: float


# Of times on an idle queue, the middle may be half a millisecond above the peer's 4.1 ms, and the tail not at all.
TARGETS = {
    "one-step drain": (Target("dbos", 5.0), Target("procrastinate", 5.0), Target("pgqueuer", 0.3)),
    "three-step drain": (Target("dbos", 25.0),),
    "shared three-step drain": (Target(ONE_PROCESS, 1.3),),
    "idle latency p50": (Target("procrastinate", 0.9),),
    "idle latency p99": (Target("procrastinate", 1.0),),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement of all systems. A ratio above 1 is better, for rates and for times."""

    name: str
    unit: str
    lower_is_better: bool
    ours: float
    peers: Mapping[str, float]

    def ratio(self, peer: str) -> float:
        """Return the ratio to a peer."""
        theirs = self.peers[peer]
        return theirs / self.ours if self.lower_is_better else self.ours / theirs

    @property
    def ratio_to_best(self) -> float:
        """The ratio to the best peer; infinite where no peer can do it."""
        return min(map(self.ratio, self.peers), default=math.inf)

    def targets(self) -> dict[Target, bool]:
        """Return the targets for this figure, and whether each is reached."""
        known = (target for target in TARGETS.get(self.name, ()) if target.peer in self.peers)
        return {target: self.ratio(target.peer) >= target.at_least for target in known}


def figures(name: str, unit: str, samples: Samples) -> list[Figure]:
    """Compute the figures of one measurement from its samples: a median, and for times the 99th percentile too."""
    if unit != "ms":
        return [_figure(name, unit, {system: median(values) for system, values in samples.items()}, lower=False)]
    return [
        _figure(
            f"{name} p50", unit, {system: percentile(values, 0.50) for system, values in samples.items()}, lower=True
        ),
        _figure(
            f"{name} p99", unit, {system: percentile(values, 0.99) for system, values in samples.items()}, lower=True
        ),
    ]


def better(unit: str, one: T, other: T, key: Callable[[T], float]) -> T:
    """Return the one of two that did better by the measure of `key`, in this unit; the first when they are equal."""
    return (min if unit == "ms" else max)(one, other, key=key)


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least this share of all samples does not exceed."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def table(rows: Sequence[Figure]) -> str:
    """Format all figures, with how many times as good we are, and the targets."""
    peers = list(dict.fromkeys(peer for figure in rows for peer in figure.peers))
    head = f"{'median of rounds':<24} {'unit':<12} {OURS:>9}" + "".join(f"{peer:>22}" for peer in peers) + "   targets"
    lines = [head]
    for figure in rows:
        cells = "".join(f"{_cell(figure, peer):>22}" for peer in peers)
        targets = ", ".join(
            f"{target.at_least:g}x {target.peer} {'reached' if reached else 'MISSED'}"
            for target, reached in figure.targets().items()
        )
        lines.append(f"{figure.name:<24} {figure.unit:<12} {_number(figure.ours):>9}{cells}   {targets}")
    lines.append("In brackets: how many times as good as that peer ours is; above 1 is better for rates and for times.")
    return "\n".join(lines)


def write(path: Path, rows: Sequence[tuple[Figure, Mapping[str, Any]]], versions: Mapping[str, str]) -> None:
    """Write all figures, each with the versions and the settings that it was taken with."""
    items = [
        {
            "name": figure.name,
            "unit": figure.unit,
            "better": "lower" if figure.lower_is_better else "higher",
            "ours": round(figure.ours, 3),
            "peers": {peer: round(value, 3) for peer, value in figure.peers.items()},
            "ratio_to_best": round(figure.ratio_to_best, 3),
            "ratios": {peer: round(figure.ratio(peer), 3) for peer in figure.peers},
            "targets": [
                {"peer": target.peer, "at_least": target.at_least, "reached": reached}
                for target, reached in figure.targets().items()
            ],
            "versions": versions,
            "settings": settings,
        }
        for figure, settings in rows
    ]
    path.write_text(json.dumps(items, indent=2) + "\n")


def _figure(name: str, unit: str, values: Mapping[str, float], *, lower: bool) -> Figure:
    peers = {system: value for system, value in values.items() if system != OURS}
    return Figure(name, unit, lower, values[OURS], peers)


def _cell(figure: Figure, peer: str) -> str:
    if peer not in figure.peers:
        return "-"
    return f"{_number(figure.peers[peer])} ({figure.ratio(peer):,.2f}x)"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
