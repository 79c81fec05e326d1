"""Checkpoints of the planner's states of runs: a process without a cached state reads one, and what came since.

A lost or damaged checkpoint, or one of another version, costs only time. It is replaced once folding what came since
takes about as long as reading it, so that the cost of both stays proportional to what is appended.
"""

from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.plan_state.cache import KnownState
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import SquidError
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.threads import run_thread

logger = redacting_logger(__name__)

CHECKPOINT_EVERY = 256  # facts; folding fewer costs less than reading a checkpoint


@checked
def load_state(storage: Storage, run_id: str) -> KnownState:
    """Return the planner's state of a run, from its checkpoint and the facts since.

    If the thread holds what the planner never writes, the whole thread is folded.
    """
    thread = run_thread(run_id)
    saved = storage.get_checkpoint(thread)
    revision, state = KnownState(0, PlanState()) if saved is None else state_of(saved.revision, saved.data)
    for entry in storage.read(thread, after=revision):
        state.add(entry)
        revision = entry.seq
    if not state.plain:
        return KnownState(revision, PlanState.of(RunProjection.fold(storage.read(thread))))
    keep_checkpoint(storage, run_id, revision, state)
    return KnownState(revision, state)


def state_of(revision: int, data: str) -> KnownState:
    """Return the state of a checkpoint; an empty one at revision 0, if this version of the fold cannot read it."""
    try:
        state = PlanState.load(data)
    except ValueError:
        return KnownState(0, PlanState())
    state.checkpoint = revision
    return KnownState(revision, state)


def keep_checkpoint(storage: Storage, run_id: str, revision: int, state: PlanState) -> None:
    """Write a checkpoint of a state as of that revision, if one is due; a failure is only logged."""
    since = revision - state.checkpoint
    if since < CHECKPOINT_EVERY or since < state.size or not state.plain or state.terminal:
        return
    try:
        storage.put_checkpoint(run_thread(run_id), revision, state.dump())
    except SquidError as error:
        logger.debug("no checkpoint of run %s: %s", run_id, error)
    state.checkpoint = revision
