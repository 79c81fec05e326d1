"""The repair of one run: writes everything that should have followed from recorded facts. Safe to run concurrently."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from squid_dagster.journal.contract.queries import parent_of
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.facts import ChildRunStarted, Fact, RunFenced, RunQueued
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.runtime.commands.child_runs import start_linked_child
from squid_dagster.runtime.commands.run_commands import cancel_orphan, family_of
from squid_dagster.runtime.commands.signals import SignalType
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.workflow.planner.missing_facts import missing_facts
from squid_dagster.workflow.planner.planner import plan_settled
from squid_dagster.workflow.planner.schedule import queue_of, schedule


def repair_run(runtime: Runtime, run_id: str, entries: Sequence[Entry] | None = None) -> Counter[str]:
    """Write what is missing after a crash; return counts by kind. Repeating finds nothing to do.

    `entries` are the run's, if they were just read: a run that is complete is not locked.

    Raises:
        IncompatibleDefinition: something should follow from an outcome, but the run's definition is not registered.
        NotFound, TerminalRun, ConflictingCommand: a linked child cannot be started.
    """
    done: Counter[str] = Counter()

    def decision(units: Mapping[str, RunUnit], now: datetime) -> list[Fact]:
        done.clear()
        return _plan_missing(runtime, run_id, units[run_id], now, done)

    entries = runtime.storage.read_run(run_id) if entries is None else entries
    unit = RunUnit.fold(entries)
    if entries and decision({run_id: unit}, entries[-1].fact.occurred_at):
        runtime.decide([run_id], decision)
        unit = RunUnit.fold(runtime.storage.read_run(run_id))
    for link in missing_facts(unit, None).links:
        if not _started(runtime, link):
            done["children"] += not start_linked_child(runtime, link).repeated
    ancestor = None if unit.run.terminal else _cancelled_above(runtime, unit)
    if ancestor is not None:
        for below in family_of(runtime, run_id):
            done["cascades"] += cancel_orphan(runtime, below, ancestor)
    return done


def _plan_missing(runtime: Runtime, run_id: str, unit: RunUnit, now: datetime, done: Counter[str]) -> list[Fact]:
    run, dispatch = unit.run, unit.dispatch
    missing = missing_facts(unit, None)
    facts: list[Fact] = []
    if missing.fence:
        facts.append(RunFenced(run_id=run_id, queue=dispatch.queue or queue_of(run), occurred_at=now))
        done["fenced"] += 1
    if missing.queue:
        facts.append(RunQueued(run_id=run_id, queue=queue_of(run), occurred_at=now))
        done["queued"] += not missing.schedules
    for runnable in missing.schedules:
        facts.append(schedule(runnable, run.start, now))
        done["scheduled"] += 1
    if missing.settled:
        definition = runtime.definition_of(run_id, run)
        room = runtime.storage.max_fact_bytes
        settled = missing.settled
        followed = plan_settled(definition, run, settled, dispatch.attempts, now, max_fact_bytes=room)
        for attempt in settled if followed else ():
            done[{"completed": "applied", "failed": "progressed"}.get(attempt.status, "dead_letters")] += 1
        facts += followed
    return facts


def _started(runtime: Runtime, link: ChildRunStarted) -> bool:
    return runtime.storage.revision(f"squid:run:{link.child_run_id}") > 0


def _cancelled_above(runtime: Runtime, unit: RunUnit) -> str | None:
    """Return the ancestor that was cancelled with all runs below it, at any distance; None if there is none.

    Runs in between may have ended by themselves: their children are cancelled all the same.
    """
    parent, seen = _parent_of(unit.run), set[str]()
    while parent is not None and parent not in seen:
        seen.add(parent)
        above = RunUnit.fold(runtime.storage.read_run(parent)).run
        for signal in above.command_history if above.terminal_status == "cancelled" else ():
            if signal.signal_type == SignalType.CANCEL_RUN and signal.payload.get("cascade") is True:
                return str(signal.payload.get("cancelled_with", parent))
        parent = _parent_of(above)
    return None


def _parent_of(run: RunProjection) -> str | None:
    return parent_of(run.start.context) if run.start is not None else None
