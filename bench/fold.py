"""The rate of the fold, in facts a second on one core."""

import time
from itertools import chain, count

from bench.journals import life
from bench.report import Measure
from squid_dagster.protocol import DispatchProjection, Entry, RunUnit

RUNS, ROUNDS = 4_000, 5


def measure() -> list[Measure]:
    """Fold whole runs, and a queue's thread; the best of a few rounds, since other load only makes them slower."""
    positions = count(1)
    runs = [[Entry(f.thread, i, next(positions), f) for i, f in enumerate(life(f"run-{n}"), 1)] for n in range(RUNS)]
    queue = [entry for entry in chain.from_iterable(runs) if entry.thread == "squid:dispatch:default"]
    total = sum(map(len, runs))
    return [
        _rate("fold, whole runs", total, lambda: [RunUnit.fold(run) for run in runs]),
        _rate("fold, one queue's thread", len(queue), lambda: DispatchProjection.fold(queue)),
    ]


def _rate(name: str, facts: int, work: object) -> Measure:
    assert callable(work)
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return Measure(name, "facts a second", facts / best, at_least=100_000, detail=f"{facts:,} facts, best of {ROUNDS}")
