"""One schedule: a scenario played once by many processes, with the faults that its seed or a record says."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from squid_dagster.testing.simulation.environment.environment import MakeGround, in_memory
from squid_dagster.testing.simulation.environment.machine import Machine, MachineClock, in_charge
from squid_dagster.testing.simulation.environment.primitives import virtual_time
from squid_dagster.testing.simulation.environment.storage import SharedJournal, World
from squid_dagster.testing.simulation.faults import Chances, Fault, FaultPlan
from squid_dagster.testing.simulation.roles import Stage
from squid_dagster.testing.simulation.scenario import Scenario
from squid_dagster.testing.simulation.verdict.run_ends import End, ends_of, next_due, play_without_faults
from squid_dagster.testing.simulation.verdict.verdict import problems_of

_FAULTS_UNTIL = 60.0  # seconds; then it stays calm, and every run has to come to its end
_LOOK = 30.0
_LOOKS = 30  # after so many in vain, what is still open is stuck
_STOP_WITHIN = 200.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """How the runs of a scenario end without faults, by run id, and the run ids of its starts, by key."""

    ends: dict[str, End]
    run_ids: dict[str, str]


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a schedule: the faults that befell, and what is wrong at its end."""

    seed: int
    atomic: bool
    faults: tuple[Fault, ...]
    problems: tuple[str, ...]
    seconds: float  # of virtual time
    switches: int


def expectation(scenario: Scenario) -> Expectation:
    """Play a scenario without faults, one attempt at a time."""
    scenario.reset()
    machine = Machine()
    clock = MachineClock(machine)
    journal = SharedJournal(clock, atomic_across_threads=True)
    world = World(machine, clock, journal, journal, FaultPlan.of(()), 0, jitter=False)
    stage = Stage(world, scenario, Random(0))  # noqa: S311
    run_ids: dict[str, str] = {}
    with in_charge(machine), virtual_time():
        machine.launch("alone", lambda: run_ids.update(play_without_faults(stage.squid(), scenario)))
        machine.run(1e9)
        machine.close()
    if machine.died:
        raise machine.died[0][1]
    return Expectation(ends_of(journal, journal.started, scenario.definitions), run_ids)


def play(
    scenario: Scenario,
    expected: Expectation,
    seed: int,
    *,
    faults: Sequence[Fault] | None = None,
    jitter: bool = True,
    make_ground: MakeGround = in_memory,
) -> Played:
    """Play a scenario with the faults of a seed, or with these and no others."""
    scenario.reset()
    random = Random(f"schedule {seed}")  # noqa: S311  no secret
    machine = Machine()
    clock = MachineClock(machine)
    atomic = random.random() < 0.5
    ground = make_ground(clock, atomic)
    strength = random.choice([0.3, 1.0, 1.0, 1.0, 2.0])
    chances = Chances(commit=0.10 * strength, read=0.02 * strength, most=int(4 + 14 * strength))
    plan = FaultPlan(Random(f"faults {seed}"), chances) if faults is None else FaultPlan.of(faults)  # noqa: S311
    world = World(machine, clock, ground.journal, ground.census, plan, seed, jitter, ground.sides)
    with in_charge(machine), virtual_time():
        stage = Stage(world, scenario, random)
        stage.cast()
        machine.launch("weather", lambda: _calm(stage))
        ground.begin(stage)
        machine.launch("time", lambda: _skip_idle_times(stage))
        _run(stage)
        seconds = machine.now
        _stop(stage)
        problems = [*problems_of(stage, expected.ends, expected.run_ids), *ground.problems()]
    return Played(
        seed, ground.journal.atomic_across_threads, tuple(plan.happened), tuple(problems), seconds, machine.switches
    )


def _run(stage: Stage) -> None:
    """Run until all is done, or nothing has come to an end for too long."""
    machine = stage.world.machine
    for _ in range(_LOOKS):
        if _done(stage):
            return
        machine.run(machine.now + _LOOK, lambda: _done(stage))


def _skip_idle_times(stage: Stage) -> None:
    """Where nothing happens and nothing is held, go on to when something is due: a workflow may wait for days."""
    machine, journal = stage.world.machine, stage.world.journal
    seen = -1
    while True:
        stage.sleep(_LOOK)
        seen, before = journal.cut(), seen
        due = next_due(journal, stage.open_runs()) if seen == before else None
        if due is not None and (idle := (due - journal.now()).total_seconds() - 1) > _LOOK:
            machine.skip(idle)


def _calm(stage: Stage) -> None:
    stage.sleep(_FAULTS_UNTIL)
    stage.world.plan.calm = True


def _done(stage: Stage) -> bool:
    return not stage.pending and not stage.open_runs()


def _stop(stage: Stage) -> None:
    """Stop all workers as a signal would; whatever a process that stood still has written late is then worked off."""
    _stop_workers(stage)
    if not _done(stage):
        stage.world.plan.calm, stage.over = True, False
        stage.cast_last()
        _run(stage)
        _stop_workers(stage)
    stage.world.machine.close()


def _stop_workers(stage: Stage) -> None:
    machine = stage.world.machine
    stage.over = True
    for worker in stage.workers.values():
        worker.stop()
    workers = [process for process in machine.processes if process.name.startswith("worker")]

    def stopped() -> bool:
        return all(process.threads[0].over for process in workers)

    machine.run(machine.now + _STOP_WITHIN, stopped)
    for process in workers:
        if not process.threads[0].over:
            stage.problems.append(f"{process.name} did not stop within {_STOP_WITHIN:.0f} s")
