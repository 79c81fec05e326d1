"""Recovery: writes what crashes have left unwritten in runs. One bad run never stops it; it may run concurrently."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from squid_dagster.journal import Append, Storage, quarantine
from squid_dagster.journal.contract.queries import RunRow, WaitingStep
from squid_dagster.journal.settlement.rounds import may_concern_one
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.entries import run_of
from squid_dagster.protocol.errors import IncompatibleDefinition, SquidError, StorageUnavailable
from squid_dagster.protocol.facts import Fact, RunCataloged, RunIndexed
from squid_dagster.redaction import named_error, redacted_text
from squid_dagster.runtime.adapters import publish_cut
from squid_dagster.runtime.commands.run_start import beginning_of
from squid_dagster.runtime.recovery.run_repair import repair_run
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.workflow.planner.dead_letters import waiting_steps
from squid_dagster.workflow.planner.schedule import queue_of
from squid_dagster.workflow.registry import Registry

logger = redacting_logger(__name__)

_PAGE = 500


@dataclass(slots=True)
class RecoveryReport:
    """What a recovery did. `held` are runs whose definition is not registered here, `failed` those with an error.

    `quarantined` are runs with an unreadable entry, which were stopped: `explain_run` shows why. `listed` counts the
    runs that were added to the index and the catalog.
    """

    queued: int = 0
    scheduled: int = 0
    applied: int = 0
    progressed: int = 0
    dead_lettered: int = 0
    dead_letters: int = 0
    children: int = 0
    cascades: int = 0
    fenced: int = 0
    listed: int = 0
    held: list[str] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def repaired(self) -> int:
        """How many missing things were written, without `listed`: runs are listed later as a rule."""
        return (
            self.queued + self.scheduled + self.applied + self.progressed + self.dead_lettered + self.dead_letters
            + self.children + self.cascades + self.fenced
        )  # fmt: skip

    def add(self, done: Counter[str]) -> None:
        """Add the counts of one run."""
        for name, count in done.items():
            setattr(self, name, getattr(self, name) + count)


def recover(runtime: Runtime, queue: str | None = None) -> RecoveryReport:
    """Repair all runs, or those of one queue (see `repair_run`); dead-letter what was delivered too often; write
    missing index and catalog facts.

    Runs that cannot be repaired, such as one that another session holds locked, are named in the report and wait for
    the next recovery; everything else is done.

    Raises:
        StorageUnavailable: the database cannot be reached. What was done until then stays done.
    """
    report = RecoveryReport()
    for name in [queue] if queue is not None else [row.queue for row in runtime.queries.queues()]:
        while keys := runtime.dispatch.dead_letter_expired(name):  # a limited number at a time
            report.dead_lettered += len(keys)
    after, waiting = "", _waiting(runtime.registry)
    while page := runtime.queries.runs_to_repair(after, _PAGE, queue, waiting):
        for run_id in page:
            _repair(runtime, run_id, report)
        after = page[-1]
    report.listed = list_started(runtime, without=report.failed)
    publish_cut(runtime.storage)
    return report


def _waiting(registry: Registry) -> list[WaitingStep]:
    """Return the steps whose dead letters wait for a person, so that they are no matter of recovery."""
    return [
        WaitingStep(key, step)
        for definition in registry
        for step in sorted(waiting_steps(definition))
        for key in definition.keys
    ]


def _repair(runtime: Runtime, run_id: str, report: RecoveryReport) -> None:
    try:
        entries = runtime.storage.read_run(run_id)
        if quarantine(runtime.storage, entries):
            report.quarantined.append(run_id)
            logger.error("run %s is quarantined: an entry of it cannot be read", run_id)
            return
        report.add(repair_run(runtime, run_id, entries))
    except IncompatibleDefinition as error:
        report.held.append(run_id)
        logger.warning("run %s is held: %s", run_id, error)
    except SquidError as error:
        if isinstance(error, StorageUnavailable) and not may_concern_one(error):
            raise
        report.failed[run_id] = redacted_text(str(error))
        logger.error("run %s could not be repaired: %s", run_id, error)
    except Exception as error:  # a defect of ours, or of the run's definition, stops no other run's repair
        report.failed[run_id] = named_error(error)
        logger.exception("run %s could not be repaired", run_id)


def list_started(runtime: Runtime, most: int | None = None, without: Collection[str] = ()) -> int:
    """Write index and catalog facts of started runs that have none, in batches; return how many runs got one.

    Those in `without`, and those that cannot be written now, are left for the next recovery.
    """
    listed = 0
    last: list[RunRow] = []
    unlisted = set(without)
    while most is None or listed < most:
        page = runtime.queries.runs_to_list(_PAGE)
        rows = [row for row in page if row.run_id not in unlisted]
        if not rows or rows == last:  # the fold refuses to list these
            break
        last = rows
        before = len(unlisted)
        for thread, facts in _listing_facts(runtime.storage, rows).items():
            unlisted |= _list(runtime.storage, thread, [fact for fact in facts if run_of(fact) not in unlisted])
        listed += len(rows) - (len(unlisted) - before)
    return listed


def _list(storage: Storage, thread: str, facts: Sequence[Fact]) -> set[str]:
    """Write facts of many runs; return the runs for which that is not possible now, such as a locked one."""
    if not facts:
        return set()
    try:
        storage.commit([Append(thread, facts)])
    except StorageUnavailable as error:
        if not may_concern_one(error):
            raise
        if len(facts) > 1:
            return {run_id for fact in facts for run_id in _list(storage, thread, [fact])}
        logger.warning("run %s cannot be listed now, recovery will try again: %s", run_of(facts[0]), error)
        return {run_of(facts[0]) or ""}
    return set()


def _listing_facts(storage: Storage, rows: Iterable[RunRow]) -> dict[str, list[Fact]]:
    """Return the missing facts by thread. Time and queue are those of the start: two recoveries write the same."""
    by_thread: dict[str, list[Fact]] = {}
    for row in rows:
        if row.workflow is None or row.started_at is None:
            continue
        about: dict[str, Any] = {
            "run_id": row.run_id,
            "workflow": row.workflow,
            "queue": row.queue or queue_of(beginning_of(storage, row.run_id)),
            "occurred_at": row.started_at,
        }
        facts: list[Fact] = []
        if not row.indexed:
            facts.append(RunIndexed.model_construct(**about))
        if not row.cataloged:
            facts.append(RunCataloged.model_construct(**about))
        for fact in facts:
            by_thread.setdefault(fact.thread, []).append(fact)
    return by_thread
