"""The comparison as a whole: one server, rounds that take the systems in turn, a table, a file."""

import os
import platform
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from statistics import median
from typing import Any

from bench.peers import environment, results
from bench.peers.measures import MEASUREMENTS, Measurement, prepare
from bench.peers.process import ROOT
from bench.peers.server import Server, new_server
from bench.peers.systems import OURS, SYSTEMS, Settings, System

RESULTS = ROOT / "bench" / "results.json"
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement of one system in one setting, with the samples of its rounds so far."""

    measurement: Measurement
    system: System
    settings: Settings
    samples: list[float] = field(default_factory=list)

    @property
    def middle(self) -> float:
        """The median of all samples."""
        return median(self.samples)

    def __str__(self) -> str:
        """Format measurement, system and settings."""
        return f"{self.measurement.name}, {self.system.name} {dict(self.settings)}"


def compare(names: Sequence[str] = tuple(SYSTEMS), rounds: int = ROUNDS, *, quick: bool = False) -> bool:
    """Measure all of it, print the table and write the file. Return whether every target was reached.

    The file is for all systems: a comparison of some of them writes none. A quick one is one round of a tenth of the
    work: it shows that everything works, judges and writes nothing.

    Raises:
        BenchError: a system has no figure, or its tables do not have the jobs that it reported as done.
    """
    environment.ensure()
    systems = [SYSTEMS[name].quick() if quick else SYSTEMS[name] for name in names]
    trials = list(_trials(systems))
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    with new_server() as server:
        shown = server.settings()
        for system in systems:
            prepare(server, system)
        _take_turns(server, trials, 1 if quick else rounds)
    common = {"rounds": 1 if quick else rounds, "server": shown, "cores": cores, "load_before": round(load, 2)}
    figures = list(_figures(trials, common))
    print(results.table([figure for figure, _ in figures]))
    print(", ".join(f"{name} {value}" for name, value in shown.items()))
    if load > cores / 2:
        print(f"other work kept the machine busy (load {load:.1f} on {cores} cores): measure again when it is quiet")
    if quick:
        print("quick: a tenth of the work, once; nothing is judged or written")
        return True
    if {*names} == {*SYSTEMS}:
        results.write(RESULTS, figures, _versions(shown))
        print(f"written to {RESULTS.relative_to(ROOT)}")
    return all(reached for figure, _ in figures for reached in figure.targets().values())


def _trials(systems: Sequence[System]) -> Iterator[Trial]:
    for measurement in MEASUREMENTS:
        for system in systems:
            if measurement.jobs(system):
                for settings in measurement.candidates(system):
                    yield Trial(measurement, system, settings)


def _take_turns(server: Server, trials: Sequence[Trial], rounds: int) -> None:
    chance = random.Random(4711)
    for number in range(rounds):
        for measurement in MEASUREMENTS:
            mine = [trial for trial in trials if trial.measurement is measurement]
            # Another one begins each time, so that no system always runs on a warm machine.
            turn = number % len(mine)
            for trial in [*mine[turn:], *mine[:turn]]:
                samples = measurement.take(server, trial.system, trial.settings, chance)
                trial.samples.extend(samples)
                sys.stderr.write(
                    f"round {number + 1} of {rounds}: {trial}: {median(samples):,.1f} {measurement.unit}\n"
                )


def _figures(trials: Sequence[Trial], common: Mapping[str, Any]) -> Iterator[tuple[results.Figure, Mapping[str, Any]]]:
    """Yield the figures of every measurement, each system in its best setting, with the settings."""
    for measurement in MEASUREMENTS:
        best: dict[str, Trial] = {}
        for trial in trials:
            if trial.measurement is measurement:
                known = best.setdefault(trial.system.name, trial)
                best[trial.system.name] = results.better(measurement.unit, known, trial, key=lambda one: one.middle)
        samples = {name: trial.samples for name, trial in best.items()}
        used = {name: {"jobs": measurement.jobs(one.system), **one.settings} for name, one in best.items()}
        for figure in results.figures(measurement.name, measurement.unit, samples):
            yield figure, {**common, "systems": used}


def _versions(shown: Mapping[str, str]) -> dict[str, str]:
    installed = environment.versions()
    theirs = {name: value for name, value in installed.items() if name != "python"}
    return {
        OURS: version("squid-dagster"),
        **theirs,
        "postgres": shown["server_version"],
        "python": platform.python_version(),
        "peers_python": installed["python"],
    }
