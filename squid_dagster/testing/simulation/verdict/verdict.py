"""The verdict on one schedule: what holds for every journal, and that every run has ended as it does without faults."""

from collections.abc import Iterator, Mapping

from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import ThreadKind, parse_thread
from squid_dagster.testing.invariants import Rule, Violation, check_invariants
from squid_dagster.testing.simulation.environment.storage import SharedJournal, World
from squid_dagster.testing.simulation.roles import Stage
from squid_dagster.testing.simulation.verdict.journal_rules import rule_breaks
from squid_dagster.testing.simulation.verdict.run_ends import End, end_of, undoing_problems

_DECODED_AGAIN = 5  # of so many schedules, one looks for facts that were changed in memory
_FENCED_BY_REVISION = frozenset(
    {
        "attempt_claimed",
        "attempt_heartbeat",
        "attempt_released",
        "attempt_completed",
        "attempt_failed",
        "attempt_dead_lettered",
    }
)
ENDED = ("completed", "failed", "cancelled")


def problems_of(stage: Stage, expected: Mapping[str, End], run_ids: Mapping[str, str]) -> list[str]:
    """Return everything that is wrong at the end of a schedule. Recovers first, as a last recovery would."""
    found = [f"{name} ended by {type(error).__name__}: {error}" for name, error in stage.world.machine.died]
    found += stage.problems
    journal = stage.world.journal
    found += [f"run {run_id!r} is stuck" for run_id in sorted(stage.open_runs())]
    found += _recovered(stage)
    found += [str(each) for each in check_invariants(journal) if not _is_overtaken(each, journal)]
    found += rule_breaks(journal.read_between(0, journal.cut()), stage.scenario.every_minute)
    found += _ends(stage, expected, run_ids)
    if isinstance(journal, SharedJournal) and stage.world.seed % _DECODED_AGAIN == 0:
        found += [
            f"entry {entry.position} ({entry.fact.type}) was changed in memory" for entry in journal.changed_facts()
        ]
    return found


def _is_overtaken(found: Violation, journal: Storage) -> bool:
    """Tell whether a writer on the queue's thread was overtaken by the run's end on the run's own thread.

    Only where a commit cannot span threads; the fold refuses what was written too late.
    """
    if journal.atomic_across_threads or parse_thread(found.thread).kind is not ThreadKind.DISPATCH:
        return False
    if found.rule is Rule.NO_ANOMALY:
        return found.text.endswith("terminal_run")
    return found.rule is Rule.NOTHING_AFTER_THE_END and not _knew_the_end(found, journal)


def _knew_the_end(found: Violation, journal: Storage) -> bool:
    """Tell whether a writer on the queue's thread must have seen that the run had ended.

    It reads the queue's thread, then the run's, and writes only if the queue's has not moved: an end that stands before
    the last entry of the queue's thread that it has read was there to be seen.
    """
    queue = journal.read(found.thread)
    number = found.seq - 1
    written = queue[number]
    if written.fact.type not in _FENCED_BY_REVISION:
        return False
    while number and queue[number - 1].fact.occurred_at == written.fact.occurred_at:  # facts of one commit, or more
        number -= 1
    ends = [e.position for e in journal.read_run(found.run_id or "") if e.fact.type == "run_terminal"]
    return number > 0 and bool(ends) and queue[number - 1].position > ends[0]


def _recovered(stage: Stage) -> Iterator[str]:
    squid = stage.squid()
    squid.recover()
    report = squid.recover()
    if report.repaired or report.held or report.quarantined or report.failed:
        yield f"a second recovery still finds something to do: {report}"


def _runs(world: World) -> dict[str, RunProjection]:
    return {run_id: RunUnit.fold(world.journal.read_run(run_id)).run for run_id in world.census.started}


def _ends(stage: Stage, expected: Mapping[str, End], run_ids: Mapping[str, str]) -> Iterator[str]:
    definitions = {each.name: each for each in stage.scenario.definitions}
    runs = _runs(stage.world)
    actual = {run_id: end_of(run, definitions) for run_id, run in runs.items()}
    for key, run_id in run_ids.items():
        if key in stage.run_ids and stage.run_ids[key] != run_id:
            yield f"start {key!r} gave run {stage.run_ids[key]!r}, not {run_id!r} as without faults"
    yield from _differing(stage, expected, actual)
    for run_id in stage.cancelled:
        if run_id in actual and actual[run_id].status != "cancelled":
            yield f"run {run_id!r} is {actual[run_id].status} although its cancel was acknowledged"
    for run_id, end in actual.items():
        definition = definitions.get(end.workflow)
        if end.status == "failed" and definition is not None:
            for problem in undoing_problems(stage.world.journal.read_run(run_id), definition):
                yield f"run {run_id!r} of {definition.name!r} failed, but {problem}"
    yield from _orphans(stage, actual)
    if stage.world.journal.atomic_across_threads:
        yield from _left_behind(stage)


def _differing(stage: Stage, expected: Mapping[str, End], actual: Mapping[str, End]) -> Iterator[str]:
    """Yield runs that have ended in another way than without faults, and those that only one side knows."""
    crons, free = stage.scenario.crons, _free(stage, expected, actual)
    for run_id, end in expected.items():
        if end.workflow not in crons and run_id not in actual and run_id not in free:
            yield f"run {run_id!r} was never started"
    timed = {end.workflow: end for end in expected.values() if end.workflow in crons}
    for run_id, end in actual.items():
        known = timed.get(end.workflow) or expected.get(run_id)
        if run_id in free or (end.workflow in crons and end.status not in ENDED):
            continue
        if known is None:
            yield f"run {run_id!r} of {end.workflow!r} does not exist without faults"
        elif (end.status, end.path) != (known.status, known.path):
            yield f"run {run_id!r} of {end.workflow!r} ended as {end}, and without faults as {known}"


def _free(stage: Stage, expected: Mapping[str, End], actual: Mapping[str, End]) -> set[str]:
    """Return the runs whose end is a matter of time: those that were cancelled, and what such runs have started."""
    free = set(stage.asked)
    everything = {**expected, **actual}
    for _ in range(5):  # children of children
        for run_id, end in everything.items():
            if end.parent is not None and (end.parent in free or everything.get(end.parent, end).loose):
                free.add(run_id)
    return free


def _orphans(stage: Stage, actual: Mapping[str, End]) -> Iterator[str]:
    """Yield children of runs that were cancelled with all below them, and that go on all the same."""
    for run_id, end in actual.items():
        above = end.parent
        while above is not None and above in actual:
            if above in stage.cancelled and end.status not in ENDED:
                yield f"run {run_id!r} is {end.status} although {above!r} was cancelled with all runs below it"
            above = actual[above].parent


def _left_behind(stage: Stage) -> Iterator[str]:
    """Yield runs that were open below a run when it was cancelled with all of them, and that its commit did not end.

    Only where a commit can span threads; elsewhere one run is cancelled after another.
    """
    journal = stage.world.journal
    for run_id in stage.cancelled & stage.families.keys():
        above = _end_entry(journal, run_id)
        if above is None:
            continue
        for below in sorted(stage.families[run_id]):
            end = _end_entry(journal, below)
            together = end is not None and end.fact.occurred_at == above.fact.occurred_at
            if not together and (end is None or end.position > above.position):
                yield f"run {below!r} was not cancelled together with {run_id!r} above it"


def _end_entry(journal: Storage, run_id: str) -> Entry | None:
    return next((entry for entry in journal.read_run(run_id) if entry.fact.type == "run_terminal"), None)
