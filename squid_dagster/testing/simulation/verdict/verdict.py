"""The verdict on one schedule: the invariants of every journal, and that every run has ended as without faults."""

from collections.abc import Iterator, Mapping

from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import ThreadKind, parse_thread
from squid_dagster.testing.invariants import Rule, Violation, check_invariants
from squid_dagster.testing.simulation.environment.storage import SharedJournal, SharedState
from squid_dagster.testing.simulation.roles import ScheduleState
from squid_dagster.testing.simulation.verdict.journal_rules import rule_breaks
from squid_dagster.testing.simulation.verdict.run_results import RunResult, end_of, undoing_problems

_DECODED_AGAIN = 5  # one of so many schedules checks for facts that were changed in memory
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


def problems_of(state: ScheduleState, expected: Mapping[str, RunResult], run_ids: Mapping[str, str]) -> list[str]:
    """Return all problems at the end of a schedule, after a last recovery."""
    problems = [f"{name} ended by {type(error).__name__}: {error}" for name, error in state.shared.machine.died]
    problems += state.problems
    journal = state.shared.journal
    problems += [f"run {run_id!r} is stuck" for run_id in sorted(state.open_runs())]
    problems += _recovered(state)
    problems += [str(violation) for violation in check_invariants(journal) if not _is_overtaken(violation, journal)]
    problems += rule_breaks(journal.read_between(0, journal.cut()), state.scenario.every_minute)
    problems += _ends(state, expected, run_ids)
    if isinstance(journal, SharedJournal) and state.shared.seed % _DECODED_AGAIN == 0:
        problems += [
            f"entry {entry.position} ({entry.fact.type}) was changed in memory" for entry in journal.changed_facts()
        ]
    return problems


def _is_overtaken(violation: Violation, journal: Storage) -> bool:
    """Return whether a write to the queue's thread was overtaken by the run's end on the run's thread.

    Possible only where commits do not span threads; the fold refuses such an entry.
    """
    if journal.atomic_across_threads or parse_thread(violation.thread).kind is not ThreadKind.DISPATCH:
        return False
    if violation.rule is Rule.NO_ANOMALY:
        return violation.text.endswith("terminal_run")
    return violation.rule is Rule.NOTHING_AFTER_THE_END and not _knew_the_end(violation, journal)


def _knew_the_end(violation: Violation, journal: Storage) -> bool:
    """Return whether a writer on the queue's thread must have seen that the run had ended.

    It reads the queue's thread, then the run's, and writes only if the queue's thread has not changed. So it has
    seen an end that is before the last entry of the queue's thread that it has read.
    """
    queue = journal.read(violation.thread)
    number = violation.seq - 1
    written = queue[number]
    if written.fact.type not in _FENCED_BY_REVISION:
        return False
    while number and queue[number - 1].fact.occurred_at == written.fact.occurred_at:  # facts of one commit, or more
        number -= 1
    ends = [e.position for e in journal.read_run(violation.run_id or "") if e.fact.type == "run_terminal"]
    return number > 0 and bool(ends) and queue[number - 1].position > ends[0]


def _recovered(state: ScheduleState) -> Iterator[str]:
    squid = state.squid()
    squid.recover()
    report = squid.recover()
    if report.repaired or report.held or report.quarantined or report.failed:
        yield f"a second recovery still finds something to do: {report}"


def _runs(shared: SharedState) -> dict[str, RunProjection]:
    return {run_id: RunUnit.fold(shared.journal.read_run(run_id)).run for run_id in shared.runs.started}


def _ends(state: ScheduleState, expected: Mapping[str, RunResult], run_ids: Mapping[str, str]) -> Iterator[str]:
    definitions = {definition.name: definition for definition in state.scenario.definitions}
    runs = _runs(state.shared)
    actual = {run_id: end_of(run, definitions) for run_id, run in runs.items()}
    for key, run_id in run_ids.items():
        if key in state.run_ids and state.run_ids[key] != run_id:
            yield f"start {key!r} gave run {state.run_ids[key]!r}, not {run_id!r} as without faults"
    yield from _differing(state, expected, actual)
    for run_id in state.cancelled:
        if run_id in actual and actual[run_id].status != "cancelled":
            yield f"run {run_id!r} is {actual[run_id].status} although its cancel was acknowledged"
    for run_id, end in actual.items():
        definition = definitions.get(end.workflow)
        if end.status == "failed" and definition is not None:
            for problem in undoing_problems(state.shared.journal.read_run(run_id), definition):
                yield f"run {run_id!r} of {definition.name!r} failed, but {problem}"
    yield from _orphans(state, actual)
    if state.shared.journal.atomic_across_threads:
        yield from _left_behind(state)


def _differing(
    state: ScheduleState, expected: Mapping[str, RunResult], actual: Mapping[str, RunResult]
) -> Iterator[str]:
    """Yield runs that ended in another way than without faults, and runs that exist on one side only."""
    crons, free = state.scenario.crons, _free(state, expected, actual)
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


def _free(state: ScheduleState, expected: Mapping[str, RunResult], actual: Mapping[str, RunResult]) -> set[str]:
    """Return the runs whose end depends on timing: cancelled runs, and the runs that such runs started."""
    free = set(state.cancel_requested)
    everything = {**expected, **actual}
    for _ in range(5):  # children of children
        for run_id, end in everything.items():
            if end.parent is not None and (end.parent in free or everything.get(end.parent, end).loose):
                free.add(run_id)
    return free


def _orphans(state: ScheduleState, actual: Mapping[str, RunResult]) -> Iterator[str]:
    """Yield open runs below a run that was cancelled with all runs below it."""
    for run_id, end in actual.items():
        above = end.parent
        while above is not None and above in actual:
            if above in state.cancelled and end.status not in ENDED:
                yield f"run {run_id!r} is {end.status} although {above!r} was cancelled with all runs below it"
            above = actual[above].parent


def _left_behind(state: ScheduleState) -> Iterator[str]:
    """Yield runs that were open below a cancelled run, and that the commit of the cancel did not end.

    Only where commits span threads; elsewhere one run is cancelled after another.
    """
    journal = state.shared.journal
    for run_id in state.cancelled & state.families.keys():
        above = _end_entry(journal, run_id)
        if above is None:
            continue
        for below in sorted(state.families[run_id]):
            end = _end_entry(journal, below)
            together = end is not None and end.fact.occurred_at == above.fact.occurred_at
            if not together and (end is None or end.position > above.position):
                yield f"run {below!r} was not cancelled together with {run_id!r} above it"


def _end_entry(journal: Storage, run_id: str) -> Entry | None:
    return next((entry for entry in journal.read_run(run_id) if entry.fact.type == "run_terminal"), None)
