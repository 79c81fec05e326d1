"""The planner's states of runs for one store: read before a plan, kept once what was planned is committed.

A state that the cache does not have is read from its checkpoint and from the entries since.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import LiteralString

from squid_dagster.journal.plan_state.cache import KnownState, PlanStates
from squid_dagster.journal.plan_state.checkpoints import keep_checkpoint, state_of
from squid_dagster.journal.postgres.entry_reader import ENTRY, PLANNED_BY, read_entries
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.transaction import GET_CHECKPOINTS, Transaction
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.threads import parse_thread, run_thread

# journal_threads_pkey, journal_entries_thread. Thread by thread: for one list, Postgres would scan the whole journal
# while that is short. One statement, so one snapshot. A thread without new entries has a row without an entry.
_READ: LiteralString = """SELECT e.*, k.id, t.rev FROM unnest(%s::text[], %s::bigint[]) k (id, rev) CROSS JOIN LATERAL (
    SELECT rev FROM {schema}.journal_threads WHERE id = k.id OFFSET 0) t LEFT JOIN LATERAL ("""
_READ += ENTRY + f"WHERE thread = k.id AND seq > k.rev AND {PLANNED_BY} ORDER BY seq OFFSET 0) e ON true"


def read_states(storage: PostgresStorage, cache: PlanStates, run_ids: Collection[str]) -> dict[str, KnownState]:
    """Return the states of runs without locks, those of the cache as they are; runs whose state is not plain are left
    out."""
    states = {run_id: known for run_id in run_ids if (known := cache.take(run_id)) is not None}
    missing = {run_thread(run_id): run_id for run_id in run_ids if run_id not in states}
    if missing:
        saved = {row[0]: state_of(*row[1:]) for row in storage.rows(GET_CHECKPOINTS, list(missing))}
        fresh = {thread: saved.get(thread) or KnownState(0, PlanState()) for thread in missing}
        rows = storage.rows(_READ, list(fresh), [known.revision for known in fresh.values()])
        for entry in read_entries([row[:-2] for row in rows if row[0] is not None]):
            fresh[entry.thread].state.add(entry)
        for thread, revision in {row[-2]: row[-1] for row in rows}.items():
            state = fresh[thread].state
            if state.plain:
                states[missing[thread]] = KnownState(revision, state)
    return states


def read_locked_states(transaction: Transaction, cache: PlanStates, run_ids: Iterable[str]) -> dict[str, KnownState]:
    """Return the current states of locked runs; it costs what was appended since they were known the last time."""
    states = {run_id: cache.take(run_id) or KnownState(0, PlanState()) for run_id in run_ids}
    cold = [run_thread(run_id) for run_id, known in states.items() if not known.revision]
    for thread, checkpoint in (transaction.read_checkpoints(cold) if cold else {}).items():
        states[parse_thread(thread).part] = state_of(*checkpoint)
    entries_of = transaction.read_new_entries({run_thread(run_id): known.revision for run_id, known in states.items()})
    odd: list[str] = []
    for run_id, (revision, state) in states.items():
        for entry in entries_of[run_thread(run_id)]:
            state.add(entry)
            revision = entry.seq
        states[run_id] = KnownState(revision, state)
        if not state.plain:
            odd.append(run_thread(run_id))
    for thread, entries in (transaction.read_new_entries(dict.fromkeys(odd, 0)) if odd else {}).items():
        states[parse_thread(thread).part] = KnownState(0, PlanState.of(RunProjection.fold(entries)))
    return states


def keep_states(storage: PostgresStorage, cache: PlanStates, states: Mapping[str, KnownState]) -> None:
    """Keep states that stand for what was committed: in the cache, and those of long runs as checkpoints."""
    for run_id, (revision, state) in states.items():
        keep_checkpoint(storage, run_id, revision, state)
        cache.put(run_id, revision, state)
