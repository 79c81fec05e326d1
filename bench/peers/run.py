"""The comparison as a whole: one server, rounds that take the systems in turn, a table, a file."""

import os
import platform
import random
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from bench.peers import environment, results
from bench.peers.measures import MEASUREMENTS, Measurement, prepare
from bench.peers.process import ROOT
from bench.peers.server import Server, new_server
from bench.peers.systems import OURS, SYSTEMS, System

RESULTS = ROOT / "bench" / "results.json"
ROUNDS = 3


def compare(names: Sequence[str] = tuple(SYSTEMS), rounds: int = ROUNDS, *, quick: bool = False) -> bool:
    """Measure all of it, print the table and write the file; tell whether every target was reached.

    A quick comparison is one round of a tenth of the work: it shows that everything works, and misses no target.

    Raises:
        BenchError: a system gave no figure, or its tables do not have what it claims to have done.
    """
    environment.ensure()
    systems = [SYSTEMS[name].small() if quick else SYSTEMS[name] for name in names]
    rounds = 1 if quick else rounds
    with new_server() as server:
        shown = server.settings()
        for system in systems:
            prepare(server, system)
        samples = _rounds(server, systems, rounds)
    found = [
        (figure, _settings(measurement, systems, rounds, shown))
        for measurement in MEASUREMENTS
        if OURS in samples[measurement.name]
        for figure in results.figures(measurement.name, measurement.unit, samples[measurement.name])
    ]
    all_figures = [figure for figure, _ in found]
    print(results.table(all_figures))
    print(", ".join(f"{name} {value}" for name, value in shown.items()))
    if quick:
        print("quick: a tenth of the work, once; nothing is judged or written")
    else:
        results.write(RESULTS, found, _versions(shown))
        print(f"written to {RESULTS.relative_to(ROOT)}")
    return quick or all(kept for figure in all_figures for kept in figure.targets().values())


def _rounds(server: Server, systems: Sequence[System], rounds: int) -> dict[str, dict[str, list[float]]]:
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    chance = random.Random(4711)
    for number in range(rounds):
        # Another one begins each time, so that nobody always runs on a warm or a tired machine.
        turn = number % len(systems)
        for measurement in MEASUREMENTS:
            for system in [*systems[turn:], *systems[:turn]]:
                if not measurement.jobs(system):
                    continue
                found = measurement.take(server, system, chance)
                samples[measurement.name][system.name] += found
                middle = results.percentile(found, 0.5)
                sys.stderr.write(
                    f"round {number + 1} of {rounds}: {measurement.name}, {system.name}: "
                    f"{middle:,.1f} {measurement.unit}\n"
                )
    return samples


def _settings(
    measurement: Measurement, systems: Sequence[System], rounds: int, shown: Mapping[str, str]
) -> dict[str, Any]:
    used = {
        system.name: {"jobs": measurement.jobs(system), **measurement.settings(system)}
        for system in systems
        if measurement.jobs(system)
    }
    return {"rounds": rounds, "server": dict(shown), "cores": os.cpu_count(), "systems": used}


def _versions(shown: Mapping[str, str]) -> dict[str, str]:
    found = environment.versions()
    theirs = {name: value for name, value in found.items() if name != "python"}
    return {
        OURS: version("squid-dagster"),
        **theirs,
        "postgres": shown["server_version"],
        "python": platform.python_version(),
        "peers_python": found["python"],
    }
