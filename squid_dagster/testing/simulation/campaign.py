"""Campaigns: many schedules, counted, with every failure shrunk."""

import gc
import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count

from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.runtime.adapters import definitions
from squid_dagster.testing.simulation.scenario import Decision, Scenario, Start, approve_all, random_scenario
from squid_dagster.testing.simulation.schedule import expectation, play
from squid_dagster.testing.simulation.shrinker import Failure, shrink
from squid_dagster.workflow import Workflow
from squid_dagster.workflow.definition import Definition

PER_SCENARIO = 20  # schedules of one random scenario
_SEEDS = 1000  # seeds reserved for the schedules of one scenario
_CHUNK = 2  # scenarios of one part


@dataclass(slots=True)
class SimulationReport:
    """The result of a simulation."""

    schedules: int = 0
    faults: int = 0
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: "SimulationReport") -> None:
        """Add the counts and failures of another report."""
        self.schedules += other.schedules
        self.faults += other.faults
        self.failures += other.failures

    def __str__(self) -> str:
        """Return the report as one line."""
        word = "FAILED" if self.failures else "OK"
        counts = f"schedules={self.schedules} faults={self.faults} violations={len(self.failures)}"
        return f"SIMULATION {word}: {counts}"


class SimulationFailed(AssertionError):
    """A schedule broke a promise. `report` has all failures, each with a minimal set of faults."""

    def __init__(self, report: SimulationReport) -> None:
        """Build the message from the report and its failures."""
        super().__init__("\n".join([str(report), *map(str, report.failures)]))
        self.report = report


@checked
def simulate(
    workflows: Sequence[Workflow | Definition] | Workflow | Definition | str | None = None,
    payloads: Sequence[object] | Mapping[str, Sequence[object]] = (None,),
    *,
    schedules: int = 100,
    seed: int = 0,
    resources: Callable[[], Mapping[str, object]] = dict,
    approves: Decision = approve_all,
) -> SimulationReport:
    """Simulate workflows many times, each time with other faults, and check that all runs end as without faults.

    Without `workflows`, random ones. `payloads` are those of the first workflow's runs, or by the names of workflows.
    `resources` returns the resources of steps, new ones for every schedule. `approves` is called with the names of a
    workflow and a step. The result of a step must depend on its input, not on the number of its calls.

    Raises:
        SimulationFailed: a promise was broken; the message has the seed and a minimal set of faults.
        InvalidArgument: no schedules, or payloads of a workflow that is not given.
    """
    if isinstance(schedules, bool) or not isinstance(schedules, int) or schedules < 1:
        raise InvalidArgument(f"schedules must be a whole number of at least 1, not {schedules!r}")
    if workflows is None:
        report = play_random(range(seed, seed + -(-schedules // PER_SCENARIO)), schedules)
    else:
        scenario = scenario_of(workflows, payloads, resources, approves)
        report = play_scenario(scenario, range(seed, seed + schedules))
    if report.failures:
        raise SimulationFailed(report)
    return report


def scenario_of(
    workflows: Sequence[Workflow | Definition] | Workflow | Definition | str,
    payloads: Sequence[object] | Mapping[str, Sequence[object]],
    resources: Callable[[], Mapping[str, object]] = dict,
    approves: Decision = approve_all,
) -> Scenario:
    """Return the scenario of workflows that are given. Raises `InvalidArgument` for payloads of an unknown one."""
    frozen = definitions([workflows] if isinstance(workflows, Workflow | Definition) else workflows)
    if not frozen:
        raise InvalidArgument("a simulation needs at least one workflow")
    by_name = payloads if isinstance(payloads, Mapping) else {frozen[0].name: payloads}
    unknown = sorted(set(by_name) - {definition.name for definition in frozen})
    if unknown:
        raise InvalidArgument(f"there are payloads for {', '.join(unknown)}, which is not among the workflows")
    starts: list[Start] = []
    for name, of_workflow in by_name.items():
        for payload in of_workflow:
            number = len(starts)
            starts.append(Start(f"run-{number + 1}", name, payload, by_key=number % 2 == 1))
    return Scenario(frozen, starts, approves, resources)


def play_random(scenarios: range, most: int | None = None) -> SimulationReport:
    """Simulate random scenarios, each with several schedules."""
    report = SimulationReport()
    for number in scenarios:
        left = PER_SCENARIO if most is None else min(PER_SCENARIO, most - report.schedules)
        if left > 0:
            first = number * _SEEDS
            report.add(play_scenario(random_scenario(number), range(first, first + left)))
    return report


def play_scenario(scenario: Scenario, seeds: range) -> SimulationReport:
    """Simulate one scenario with each of these seeds."""
    report = SimulationReport()
    with quiet():
        expected = expectation(scenario)
        for seed in seeds:
            played = play(scenario, expected, seed)
            report.schedules += 1
            report.faults += len(played.faults)
            if played.problems:
                report.failures.append(shrink(scenario, played))
    return report


def repeat(seed: int, fault_numbers: Sequence[int] | None = None, scenario: Scenario | None = None) -> Failure | None:
    """Repeat the schedule of a seed, with the faults of these numbers only; return its failure, if it fails."""
    scenario = scenario or random_scenario(seed // _SEEDS)
    with quiet():
        expected = expectation(scenario)
        played = play(scenario, expected, seed)
        if fault_numbers is None:
            return shrink(scenario, played) if played.problems else None
        selected = tuple(played.faults[number] for number in fault_numbers)
        again = play(scenario, expected, seed, faults=selected)
    starts = tuple(start.key for start in scenario.starts)
    return (
        Failure(seed, again.atomic, tuple(fault_numbers), selected, again.problems, starts) if again.problems else None
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Disable the worker's log, and exclude existing objects from garbage collection."""
    logger = logging.getLogger("squid_dagster")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    ours = not gc.get_freeze_count()
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        logger.setLevel(level)
        if ours:
            gc.collect()  # the objects of the simulation; the next freeze would exclude them forever
            gc.unfreeze()


# --- many processes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Campaign:
    """A simulation over several processes: random workflows, or what `workflow` names, as "module:name"."""

    seed: int = 0
    schedules: int | None = None
    minutes: float | None = None
    processes: int = 2
    workflow: str | None = None

    def run(self, progress: Callable[[SimulationReport, float], None]) -> SimulationReport:
        """Simulate until the number of schedules or the time is reached; report progress meanwhile."""
        report, began = SimulationReport(), time.monotonic()
        if self.processes == 1:
            for number in self._parts(report, began):
                report.add(self._part(number))
                progress(report, time.monotonic() - began)
            return report
        with multiprocessing.get_context("fork").Pool(self.processes, maxtasksperchild=50) as pool:
            for part in pool.imap_unordered(self._part, self._parts(report, began)):
                report.add(part)
                progress(report, time.monotonic() - began)
        return report

    def _parts(self, report: SimulationReport, began: float) -> Iterator[int]:
        """Yield the numbers of parts; some are always queued in the pool."""
        ahead = 2 * self.processes * _CHUNK * PER_SCENARIO
        for number in count():
            handed = number * _CHUNK * PER_SCENARIO
            if self.schedules is not None and handed >= self.schedules:
                return
            while report.schedules + ahead <= handed:  # the pool asks from a thread of its own
                time.sleep(0.05)
                if self._over(report, began):
                    return
            if self._over(report, began):
                return
            yield number

    def _over(self, report: SimulationReport, began: float) -> bool:
        late = self.minutes is not None and time.monotonic() - began > self.minutes * 60
        return late or len(report.failures) >= 5

    def _part(self, number: int) -> SimulationReport:
        first = number * _CHUNK
        most = _CHUNK * PER_SCENARIO
        if self.schedules is not None:
            most = min(most, self.schedules - first * PER_SCENARIO)
        if self.workflow is None:
            return play_random(range(self.seed + first, self.seed + first + _CHUNK), most)
        begin = self.seed + first * PER_SCENARIO
        return play_scenario(load_scenario(self.workflow), range(begin, begin + most))


def load_scenario(name: str) -> Scenario:
    """Return the scenario that "module:name" names: a `Scenario`, or a workflow that takes no payload.

    Raises:
        InvalidArgument: there is none.
    """
    module, _, attribute = name.partition(":")
    try:
        target = getattr(import_module(module), attribute or "scenario")
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(f"there is no {name!r}: name a workflow or a Scenario as module:name ({error})") from None
    return target if isinstance(target, Scenario) else scenario_of(target, (None,))
