"""`python -m bench tune [peer ...]`: which documented setting of a peer is its best here.

Rounds take the candidates in turn and a candidate is judged by its best round, since the machine only ever takes away.
What wins by more than the noise belongs into `systems.py`.
"""

import random
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.peers import environment
from bench.peers.measures import drain_jobs, drain_workflows, idle_latency, prepare
from bench.peers.server import Server, new_server
from bench.peers.systems import SYSTEMS, System

ROUNDS = 3
Candidates = Sequence[Mapping[str, Any]]

_DBOS: Candidates = (
    {"async_workflows": True, "worker_concurrency": None, "polling_interval_sec": 0.1},
    {"async_workflows": True, "worker_concurrency": 300, "polling_interval_sec": 0.01},
    {"async_workflows": False, "worker_concurrency": None, "polling_interval_sec": 0.1},
    {"async_workflows": False, "worker_concurrency": 50, "polling_interval_sec": 0.01},
    {"async_workflows": False, "worker_concurrency": 20, "polling_interval_sec": 0.01},
)
DRAIN: dict[str, Candidates] = {
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
}
WORKFLOWS: dict[str, Candidates] = {"dbos": _DBOS}
IDLE: dict[str, Candidates] = {
    "dbos": [
        {"async_workflows": False, "worker_concurrency": None, "polling_interval_sec": 0.001, "pool_size": 5},
        {"async_workflows": False, "worker_concurrency": 20, "polling_interval_sec": 0.01},
        {"async_workflows": True, "worker_concurrency": None, "polling_interval_sec": 0.001},
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
}


def tune(names: Sequence[str]) -> None:
    """Try the candidates of these peers and print what each reached, the best first."""
    environment.ensure()
    with new_server() as server:
        for name in names:
            prepare(server, SYSTEMS[name])
            _try(server, SYSTEMS[name], "one-step drain, jobs/s", DRAIN.get(name, ()))
            _try(server, SYSTEMS[name], "three-step drain, workflows/s", WORKFLOWS.get(name, ()))
            _try(server, SYSTEMS[name], "idle latency, ms", IDLE.get(name, ()))


def _try(server: Server, system: System, what: str, candidates: Candidates) -> None:
    if not candidates:
        return
    chance = random.Random(4711)
    found: dict[int, list[float]] = defaultdict(list)
    for number in range(ROUNDS):
        for index, candidate in enumerate(candidates):
            sys.stderr.write(f"round {number + 1} of {ROUNDS}: {system.name}, {what}, {dict(candidate)}\n")
            tried = replace(system, settings={**system.settings, **candidate}, three_step={}, idle={})
            if what.startswith("one-step"):
                found[index] += drain_jobs(server, tried, chance)
            elif what.startswith("three-step"):
                found[index] += drain_workflows(server, tried, chance)
            else:
                found[index].append(-sorted(idle_latency(server, tried, chance))[system.sizes.latency // 2])
    print(f"{system.name}, {what}")
    for index in sorted(found, key=lambda index: max(found[index]), reverse=True):
        rounds = ", ".join(f"{abs(value):,.1f}" for value in found[index])
        print(f"  {rounds:<36} {dict(candidates[index])}")
