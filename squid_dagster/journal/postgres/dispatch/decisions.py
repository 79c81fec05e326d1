"""Decisions about runs: lock them, read what the decision needs, and write the facts that it returns in one commit.

The general way of starts, repairs, child runs and commands. Owns no rule: what follows is the caller's decision.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from squid_dagster.journal.contract.command_target import CommandDecision, CommandedRun, CommandTarget, first_signal
from squid_dagster.journal.contract.dispatch_store import ClaimRef, Decision, Lineage, NewRun
from squid_dagster.journal.plan_state.cache import KnownState, PlanStates
from squid_dagster.journal.postgres.connection.failures import retry_if_safe
from squid_dagster.journal.postgres.dispatch.run_states import keep_states, read_locked_states
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.transaction import OneCommit, Transaction
from squid_dagster.journal.postgres.views.row_changes import LockTargets, Units
from squid_dagster.journal.settlement.member_facts import check_held
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import run_thread


def start_runs(storage: PostgresStorage, runs: Sequence[NewRun]) -> datetime:
    """Write new runs, none of which may exist; return the time of their facts."""
    ids = {run.run_id for run in runs}
    return _write_once(storage, LockTargets(ids), lambda _, at: [f for run in runs for f in run.facts(at.now)], ids)[0]


def decide(
    storage: PostgresStorage,
    run_ids: Collection[str],
    decision: Decision,
    fence: ClaimRef | None,
    lineage: Lineage | None,
) -> list[Fact]:
    """Write what a decision makes of runs, all of whose facts it gets, or of a lineage the part that it asks for."""
    fenced = {(fence.run_id, fence.runnable_key)} if fence is not None else set[tuple[str, str]]()

    def facts_of(transaction: Transaction, units: Units) -> list[Fact]:
        if fence is not None:
            check_held(units.units[fence.run_id], fence, units.now)
        return list(decision(_read_runs(transaction, units, run_ids, lineage), units.now))

    return _write_once(storage, LockTargets(set(run_ids), set(), fenced), facts_of)[1]


def _write_once(
    storage: PostgresStorage,
    targets: LockTargets,
    facts_of: Callable[[Transaction, Units], list[Fact]],
    new: Collection[str] = (),
) -> tuple[datetime, list[Fact]]:
    """Lock, and write the facts that follow, in one commit that is repeated until it is known to have happened."""
    commit = OneCommit[tuple[datetime, list[Fact]]]()

    def once() -> tuple[datetime, list[Fact]]:
        with storage.transaction() as transaction:
            units = transaction.lock(targets)
            if commit.is_made(transaction):
                return commit.answer
            facts = facts_of(transaction, units)
            commit.note((units.now, facts))
            if facts:
                transaction.write_facts(units, facts, commit.id, new)
            return commit.answer

    return retry_if_safe(once)


def command(
    storage: PostgresStorage, cache: PlanStates, targets: Sequence[CommandTarget], decision: CommandDecision
) -> list[Fact]:
    """Write what a command makes of its runs, by their plan states."""
    commit = OneCommit[list[Fact]]()
    return retry_if_safe(lambda: _command_once(storage, cache, targets, decision, commit))


def _command_once(
    storage: PostgresStorage,
    cache: PlanStates,
    targets: Sequence[CommandTarget],
    decision: CommandDecision,
    commit: OneCommit[list[Fact]],
) -> list[Fact]:
    with storage.transaction() as transaction:
        keys = {(target.run_id, key) for target in targets for key in target.keys}
        units = transaction.lock(LockTargets({target.run_id for target in targets}, set(), keys))
        if commit.is_made(transaction):
            return commit.answer
        states = read_locked_states(transaction, cache, [target.run_id for target in targets])
        runs = {
            target.run_id: _commanded_run(transaction, units, target, states[target.run_id].state) for target in targets
        }
        for _, state in states.values():
            state.begin()
        facts: Sequence[Fact] = ()
        try:
            facts = decision(runs, units.now)
        finally:  # what is written is folded below, whether or not the decision has done so
            for run_id, (revision, state) in states.items():
                state.roll_back()
                if not facts:
                    cache.put(run_id, revision, state)
        written = commit.note(list(facts))
        if not written:
            return written
        receipt = transaction.write_facts(units, written, commit.id)
    for run_id, (revision, state) in states.items():
        thread = run_thread(run_id)
        for fact in written:
            if fact.thread == thread:
                state.add_fact(fact)
        states[run_id] = KnownState(receipt.get(thread, revision), state)
    keep_states(storage, cache, states)
    return written


def _read_runs(
    transaction: Transaction, units: Units, run_ids: Collection[str], lineage: Lineage | None
) -> dict[str, RunUnit]:
    """Return locked runs, folded from all of their facts; for a lineage, from those that it asks for."""
    links = None if lineage is None else transaction.read_links(lineage.run_id, lineage.child_key)
    if lineage is None or links is None:
        return transaction.read_runs(run_ids)
    parent = units.units[lineage.run_id].run
    brief = RunProjection.fold(links)
    if len(brief.children) != len(links):  # one of them cannot be read
        return transaction.read_runs(run_ids)
    brief.run_id, brief.terminal_status, brief.quarantine = parent.run_id, parent.terminal_status, parent.quarantine
    brief.start = transaction.read_start(lineage.run_id)
    runs = {lineage.run_id: brief}
    for run_id in run_ids:
        beginning = None if run_id in runs else transaction.read_beginning(run_id)
        if beginning is not None:
            runs[run_id] = beginning
    rest = [run_id for run_id in run_ids if run_id not in runs]
    whole = transaction.read_runs(rest) if rest else {}
    return {**whole, **{run_id: RunUnit(run) for run_id, run in runs.items()}}


def _commanded_run(transaction: Transaction, units: Units, target: CommandTarget, state: PlanState) -> CommandedRun:
    """Return a locked run with what a command asks for: attempts, and the first signal of its key."""
    run_id, signal = target.run_id, target.signal
    if target.dead_letters and state.planned:
        dead = transaction.find_dead_letters(run_id, list(state.planned))
        transaction.lock_more(units, LockTargets({run_id}, set(), {(run_id, key) for key in dead}))
    if target.visit is not None:
        keys = transaction.find_visit(run_id, target.visit)
        transaction.lock_more(units, LockTargets({run_id}, set(), {(run_id, key) for key in keys}))
    history = () if signal is None else transaction.read_signals(run_id, signal.idempotency_key)
    return CommandedRun(state, units.units[run_id].dispatch, first_signal(history, signal))
