"""What a decision or a command reads of runs, with the revisions of the threads that it was read from.

Reads from the cache where that knows enough, else all facts of the run. Writes nothing.
"""

from collections.abc import Collection, Iterable

from squid_dagster.journal.contract.command_target import CommandedRun, CommandTarget, first_signal
from squid_dagster.journal.contract.dispatch_store import ClaimRef, Lineage
from squid_dagster.journal.fold_store.fold_cache import FoldCache
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import Conflict
from squid_dagster.protocol.facts import RunSignalReceived
from squid_dagster.protocol.folds.dispatch import RunDispatch
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import dispatch_thread, run_thread

Revisions = dict[str, int]


def read_target(folds: FoldCache, target: CommandTarget) -> tuple[Revisions, CommandedRun]:
    """Return the parts of a run that a command asks for. The caller holds the cache's lock."""
    thread = run_thread(target.run_id)
    while True:
        revision, state = folds.state(target.run_id)
        commanded = _from_cache(folds, target, revision, state)
        if commanded is None:
            return _from_facts(folds, target)
        actual = folds.storage.revision(thread)
        if actual == revision:  # so that all parts are of one time
            return commanded
        folds.check_deletion(Conflict(thread, revision, actual))


def _from_cache(
    folds: FoldCache, target: CommandTarget, revision: int, state: PlanState
) -> tuple[Revisions, CommandedRun] | None:
    """Return what a command asks for from the cache; None if that does not know it."""
    run_id, thread = target.run_id, run_thread(target.run_id)
    if not state.plain or state.quarantined or state.start is None:
        return None
    revisions, dispatch = {thread: revision}, RunDispatch()
    if target.asks_for_attempts:
        queue = state.start.queue  # all work of the run is on it
        if queue is None or state.terminal:  # attempts of ended runs leave the index
            return None
        revisions[dispatch_thread(queue)], index = folds.queue(queue)
        dispatch = index.part(run_id, [*target.keys, *(state.planned if target.dead_letters else ())], target.visit)
        if dispatch.queue != queue or dispatch.stopped:
            return None
    first = None
    if target.signal is not None:
        seq = folds.keys(run_id).signals.get(target.signal)
        history = () if seq is None else folds.storage.read(thread, after=seq - 1, limit=1)
        first = first_signal((e.fact for e in history if isinstance(e.fact, RunSignalReceived)), target.signal)
    return revisions, CommandedRun(state, dispatch, first)


def _from_facts(folds: FoldCache, target: CommandTarget) -> tuple[Revisions, CommandedRun]:
    """Return what a command asks for from all facts of the run."""
    revisions: Revisions = {}
    entries = folds.storage.read_run(target.run_id)
    queue = RunUnit.fold(entries).dispatch.queue
    if target.asks_for_attempts and queue is not None:
        revisions[dispatch_thread(queue)] = folds.storage.revision(dispatch_thread(queue))
        entries = folds.storage.read_run(target.run_id)  # not older than the revision that is compared
    revisions[run_thread(target.run_id)] = _revision_of(target.run_id, entries)
    return revisions, CommandedRun.of(RunUnit.fold(entries), target)


def read_units(
    folds: FoldCache, run_ids: Collection[str], fence: ClaimRef | None, lineage: Lineage | None
) -> tuple[dict[str, RunUnit], Revisions]:
    """Return runs, and the revisions of their threads.

    Of a lineage's run: its start, its end and the attempt of the fence; all of it if it has a child of that key.
    """
    units: dict[str, RunUnit] = {}
    revisions: Revisions = {}
    for run_id in run_ids:
        thread = run_thread(run_id)
        lineage_part = (
            _lineage_part(folds, lineage, fence) if lineage is not None and run_id == lineage.run_id else None
        )
        if lineage_part is not None:
            revisions[thread], units[run_id] = lineage_part
        else:
            entries = folds.storage.read_run(run_id)
            revisions[thread], units[run_id] = _revision_of(run_id, entries), RunUnit.fold(entries)
    return units, revisions


def _lineage_part(folds: FoldCache, lineage: Lineage, fence: ClaimRef | None) -> tuple[int, RunUnit] | None:
    run_id = lineage.run_id
    with folds.lock:
        revision, state = folds.state(run_id)
        # Read last: a link that comes after `state` makes the commit a conflict.
        if lineage.child_key in folds.keys(run_id).children:
            return None
        unit = RunUnit(RunProjection(run_id, state.start, terminal_status=state.terminal_status))
        if fence is not None and fence.run_id == run_id:
            _, index = folds.queue(fence.queue)
            unit.dispatch = index.part(run_id, [fence.runnable_key])
        return revision, unit


def _revision_of(run_id: str, entries: Iterable[Entry]) -> int:
    thread = run_thread(run_id)
    return max((entry.seq for entry in entries if entry.thread == thread), default=0)
