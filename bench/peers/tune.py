"""`python -m bench tune [--beside peer ...]`: which documented setting of a peer is the best on this machine.

Rounds take the candidates in turn and a candidate is judged by its best round, since other load only makes it slower.
A setting that wins by more than the noise belongs into `systems.py`.
"""

import random
import sys
from collections import defaultdict
from collections.abc import Sequence

from bench.peers import environment
from bench.peers.measures import MEASUREMENTS, Measurement, prepare
from bench.peers.results import percentile
from bench.peers.server import Server, new_server
from bench.peers.systems import SYSTEMS, Candidates, System

ROUNDS = 3

_DBOS: Candidates = (
    {"workflows": "async", "worker_concurrency": None, "polling_interval_sec": 0.1, "pool_size": 20},
    {"workflows": "async", "worker_concurrency": 300, "polling_interval_sec": 0.01, "pool_size": 20},
    {"workflows": "sync", "worker_concurrency": None, "polling_interval_sec": 0.1, "pool_size": 20},
    {"workflows": "sync", "worker_concurrency": 50, "polling_interval_sec": 0.01, "pool_size": 20},
    {"workflows": "sync", "worker_concurrency": 20, "polling_interval_sec": 0.01, "pool_size": 20},
)
CANDIDATES: dict[str, dict[str, Candidates]] = {
    "one-step drain": {
        "dbos": _DBOS,
        "procrastinate": [
            {"concurrency": concurrency, "pool_size": concurrency + 1, "uvloop": loop}
            for concurrency in (1, 3, 10, 30)
            for loop in (False, True)
        ],
        "pgqueuer": [
            {"batch_size": 10, "managers": 1, "pool_size": 1},
            {"batch_size": 100, "managers": 1, "pool_size": 4},
            {"batch_size": 500, "managers": 1, "pool_size": 1},
            {"batch_size": 500, "managers": 1, "pool_size": 4},
            {"batch_size": 1_000, "managers": 1, "pool_size": 4},
            {"batch_size": 500, "managers": 2, "pool_size": 4},
            {"batch_size": 1_000, "managers": 2, "pool_size": 4},
            {"batch_size": 2_500, "managers": 2, "pool_size": 4},
            {"batch_size": 500, "managers": 5, "pool_size": 2},
        ],
    },
    "three-step drain": {"dbos": _DBOS},
    "idle latency": {
        "dbos": [
            {"workflows": "sync", "worker_concurrency": None, "polling_interval_sec": 0.001, "pool_size": 5},
            {"workflows": "sync", "worker_concurrency": 20, "polling_interval_sec": 0.01, "pool_size": 20},
            {"workflows": "async", "worker_concurrency": None, "polling_interval_sec": 0.001, "pool_size": 20},
        ],
        "procrastinate": [
            {"concurrency": 1, "pool_size": 2, "uvloop": False},
            {"concurrency": 1, "pool_size": 2, "uvloop": True},
            {"concurrency": 30, "pool_size": 31, "uvloop": True},
        ],
        "pgqueuer": [
            {"batch_size": 10, "managers": 1, "pool_size": 1},
            {"batch_size": 10, "managers": 1, "pool_size": 4},
            {"batch_size": 100, "managers": 1, "pool_size": 1},
        ],
    },
}


def tune(names: Sequence[str]) -> None:
    """Try the candidates of these peers and print what each reached, the best first."""
    environment.ensure()
    with new_server() as server:
        for name in names:
            prepare(server, SYSTEMS[name])
            for measurement in MEASUREMENTS:
                candidates = CANDIDATES.get(measurement.name, {}).get(name)
                if candidates:
                    _try(server, SYSTEMS[name], measurement, candidates)


def _try(server: Server, system: System, measurement: Measurement, candidates: Candidates) -> None:
    chance = random.Random(4711)
    samples: dict[int, list[float]] = defaultdict(list)
    for number in range(ROUNDS):
        for index, settings in enumerate(candidates):
            sys.stderr.write(f"round {number + 1} of {ROUNDS}: {measurement.name}, {system.name} {dict(settings)}\n")
            samples[index].append(percentile(measurement.take(server, system, settings, chance), 0.5))
    best = min if measurement.unit == "ms" else max
    print(f"{system.name}, {measurement.name}, {measurement.unit}")
    for index in sorted(samples, key=lambda index: best(samples[index]), reverse=best is max):
        print(f"  {', '.join(f'{value:,.1f}' for value in samples[index]):<36} {dict(candidates[index])}")
