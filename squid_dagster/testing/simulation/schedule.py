"""One schedule: a scenario executed once by many processes, with the faults of a seed or of a record."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from squid_dagster.testing.simulation.environment.machine import Machine, MachineClock, in_charge
from squid_dagster.testing.simulation.environment.primitives import virtual_time
from squid_dagster.testing.simulation.environment.storage import MakeJournal, SharedJournal, SharedState, in_memory
from squid_dagster.testing.simulation.faults import Fault, FaultPlan, FaultSettings
from squid_dagster.testing.simulation.roles import ScheduleState
from squid_dagster.testing.simulation.scenario import Scenario
from squid_dagster.testing.simulation.verdict.run_results import RunResult, ends_of, next_due, play_without_faults
from squid_dagster.testing.simulation.verdict.verdict import problems_of

_FAULTS_UNTIL = 60.0  # seconds; after that there are no faults, and every run has to end
_LOOK = 30.0
_LOOKS = 30  # then runs that are still open are stuck
_STOP_WITHIN = 200.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """How the runs of a scenario end without faults, by run id, and the run ids of its starts, by key."""

    ends: dict[str, RunResult]
    run_ids: dict[str, str]


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """The result of a schedule: its faults, and its problems."""

    seed: int
    atomic: bool
    faults: tuple[Fault, ...]
    problems: tuple[str, ...]
    seconds: float  # of virtual time
    switches: int


def expectation(scenario: Scenario) -> Expectation:
    """Execute a scenario without faults, one attempt at a time."""
    scenario.reset()
    machine = Machine()
    clock = MachineClock(machine)
    journal = SharedJournal(clock, atomic_across_threads=True)
    shared = SharedState(machine, clock, journal, journal, FaultPlan.of(()), 0, jitter=False)
    state = ScheduleState(shared, scenario, Random(0))  # noqa: S311
    run_ids: dict[str, str] = {}
    with in_charge(machine), virtual_time():
        machine.launch("alone", lambda: run_ids.update(play_without_faults(state.squid(), scenario)))
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
    make_journal: MakeJournal = in_memory,
) -> ScheduleResult:
    """Execute a scenario with the faults of a seed, or with exactly these."""
    scenario.reset()
    random = Random(f"schedule {seed}")  # noqa: S311  no secret
    machine = Machine()
    clock = MachineClock(machine)
    atomic = random.random() < 0.5
    simulated = make_journal(clock, atomic)
    strength = random.choice([0.3, 1.0, 1.0, 1.0, 2.0])
    chances = FaultSettings(commit=0.10 * strength, read=0.02 * strength, most=int(4 + 14 * strength))
    plan = FaultPlan(Random(f"faults {seed}"), chances) if faults is None else FaultPlan.of(faults)  # noqa: S311
    shared = SharedState(machine, clock, simulated.journal, simulated.runs, plan, seed, jitter, simulated.adapters)
    with in_charge(machine), virtual_time():
        state = ScheduleState(shared, scenario, random)
        state.launch_all_processes()
        machine.launch("calm", lambda: _calm(state))
        simulated.begin(state)
        machine.launch("time", lambda: _skip_idle_times(state))
        _run(state)
        seconds = machine.now
        _stop(state)
        problems = [*problems_of(state, expected.ends, expected.run_ids), *simulated.problems()]
    return ScheduleResult(
        seed, simulated.journal.atomic_across_threads, tuple(plan.happened), tuple(problems), seconds, machine.switches
    )


def _run(state: ScheduleState) -> None:
    """Run until all runs have ended, or for `_LOOKS` periods."""
    machine = state.shared.machine
    for _ in range(_LOOKS):
        if _done(state):
            return
        machine.run(machine.now + _LOOK, lambda: _done(state))


def _skip_idle_times(state: ScheduleState) -> None:
    """Skip idle time: if no entry is written and no claim is held, move to the next due time."""
    machine, journal = state.shared.machine, state.shared.journal
    last_cut = -1
    while True:
        state.sleep(_LOOK)
        last_cut, before = journal.cut(), last_cut
        due = next_due(journal, state.open_runs()) if last_cut == before else None
        if due is not None and (idle := (due - journal.now()).total_seconds() - 1) > _LOOK:
            machine.skip(idle)


def _calm(state: ScheduleState) -> None:
    state.sleep(_FAULTS_UNTIL)
    state.shared.plan.calm = True


def _done(state: ScheduleState) -> bool:
    return not state.pending and not state.open_runs()


def _stop(state: ScheduleState) -> None:
    """Stop all workers as a signal would; then execute what a stalled process has written late."""
    _stop_workers(state)
    if not _done(state):
        state.shared.plan.calm, state.over = True, False
        state.launch_last_processes()
        _run(state)
        _stop_workers(state)
    state.shared.machine.close()


def _stop_workers(state: ScheduleState) -> None:
    machine = state.shared.machine
    state.over = True
    for worker in state.workers.values():
        worker.stop()
    workers = [process for process in machine.processes if process.name.startswith("worker")]

    def stopped() -> bool:
        return all(process.threads[0].over for process in workers)

    machine.run(machine.now + _STOP_WITHIN, stopped)
    for process in workers:
        if not process.threads[0].over:
            state.problems.append(f"{process.name} did not stop within {_STOP_WITHIN:.0f} s")
