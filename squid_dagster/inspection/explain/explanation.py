"""Why is this run where it is? One reason, a sentence that a person can act on, and the facts that prove it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from squid_dagster.inspection.deadlines import open_deadlines
from squid_dagster.inspection.display import plain, shown
from squid_dagster.inspection.explain.case import Case, make_case
from squid_dagster.inspection.explain.diagnosis import diagnose
from squid_dagster.inspection.explain.reasons import Action
from squid_dagster.inspection.hold import Worker
from squid_dagster.inspection.queue_state import read_queue_state
from squid_dagster.inspection.run_record import Evidence, evidence, read_record
from squid_dagster.inspection.snapshot.parts import view_anomaly
from squid_dagster.journal.contract.queries import JournalQueries
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.entries import digest
from squid_dagster.protocol.facts import RunSignalReceived
from squid_dagster.workflow.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a run stands where it stands, as of a moment.

    `evidence` names the facts by thread and revision. `next_actions` are calls that make sense now, most useful first.
    """

    run_id: str
    workflow: str | None
    definition_version: str | None
    queue: str | None
    status: str
    reason: str
    step: str | None
    summary: str
    details: dict[str, Any]
    next_actions: tuple[Action, ...]
    evidence: tuple[Evidence, ...]
    as_of: datetime

    def to_dict(self) -> dict[str, Any]:
        """Give the explanation as JSON, always with the same keys."""
        whole: dict[str, Any] = plain(self)
        return whole


@checked
def explain_run(
    storage: Storage,
    queries: JournalQueries | None,
    run_id: str,
    *,
    now: datetime,
    registry: Registry | None = None,
    workers: Sequence[Worker] | None = None,
) -> Explanation:
    """Explain a run. `queries` tell whether its queue is paused; without them or `workers`, nothing is said of these.

    Raises:
        NotFound: no fact names this run.
        InvalidThread: this is no id that a run could have.
    """
    record = read_record(storage, run_id)
    case = make_case(record, now, registry=registry, workers=workers)
    if (
        queries is not None
        and case.queue is not None
        and (case.visible or case.external or case.expired or case.scheduled)
    ):
        found = read_queue_state(storage, queries, case.queue)
        case = make_case(record, now, registry=registry, workers=workers, queue_state=found)
    return explain(case)


def explain(case: Case) -> Explanation:
    """Explain the run of a case. Pure: a function of its facts, definitions, queue, workers and the time."""
    found, start = diagnose(case), case.run.start
    return Explanation(
        run_id=case.record.run_id,
        workflow=start.workflow if start is not None else None,
        definition_version=start.definition_version if start is not None else None,
        queue=case.queue,
        status=case.status,
        reason=found.reason.value,
        step=found.step,
        summary=found.summary,
        details={**found.details, **_commands(case), **_more(case)},
        next_actions=found.actions,
        evidence=evidence(*found.proofs),
        as_of=case.now,
    )


def _more(case: Case) -> dict[str, Any]:
    """What is worth knowing whatever the reason is."""
    deadlines = open_deadlines(case.run, case.now)
    anomalies = case.record.unit.anomalies
    return {
        **({"deadline": plain(deadlines[0])} if deadlines else {}),
        **({"anomalies": [plain(view_anomaly(each)) for each in anomalies]} if anomalies else {}),
    }


def _commands(case: Case) -> dict[str, Any]:
    """What people and programs have asked of the run, and what they have asked twice."""
    history = case.run.command_history
    if not history:
        return {}
    latest = history[-1]
    more: dict[str, Any] = {
        "command_count": len(history),
        "latest_command": {
            "signal_type": latest.signal_type,
            "at": latest.occurred_at,
            "actor": shown(latest.actor),
        },
    }
    repeated = _repeated(history)
    return {**more, "duplicate_commands": repeated} if repeated else more


def _repeated(history: Sequence[RunSignalReceived]) -> list[dict[str, Any]]:
    counts: Counter[tuple[str, str | None, str]] = Counter()
    for command in history:
        if command.idempotency_key is not None:
            counts[command.signal_type, command.idempotency_key, ""] += 1
        elif command.payload:
            counts[command.signal_type, None, digest(command.payload)] += 1
    return [
        {"signal_type": signal_type, "idempotency_key": key, "count": count}
        for (signal_type, key, _), count in counts.items()
        if count > 1
    ]
