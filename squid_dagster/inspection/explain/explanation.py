"""`Explanation`: why a run stands where it stands. One reason, a sentence to act on, and the facts that prove it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from squid_dagster.inspection.deadlines import open_deadlines
from squid_dagster.inspection.display import plain, shown
from squid_dagster.inspection.explain.case import Case
from squid_dagster.inspection.explain.diagnosis import diagnose
from squid_dagster.inspection.explain.reasons import Action
from squid_dagster.inspection.run_record import Evidence, evidence
from squid_dagster.inspection.snapshot.parts import view_anomaly
from squid_dagster.protocol.entries import digest
from squid_dagster.protocol.facts import RunSignalReceived

_NOT_RECORDED = ("workers", "queue_paused", "held")
"""What decides about an open run now, and is in no fact of it: of a moment in the past it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a run stands where it stands, as of a moment.

    `evidence` names the facts by thread and revision. `next_actions` are calls that make sense now, most useful first;
    there are none about a moment in the past. `details["unknown"]` names what is not known of such a moment.
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
        """Return the explanation as JSON, always with the same keys."""
        whole: dict[str, Any] = plain(self)
        return whole


def explain(case: Case) -> Explanation:
    """Return why the run of a case stands where it stands: a pure function of facts, definitions, queue and workers."""
    finding, start = diagnose(case), case.run.start
    return Explanation(
        run_id=case.record.run_id,
        workflow=start.workflow if start is not None else None,
        definition_version=start.definition_version if start is not None else None,
        queue=case.queue,
        status=case.status,
        reason=finding.reason.value,
        step=finding.step,
        summary=finding.summary,
        details={**finding.details, **_commands(case), **_always(case)},
        next_actions=() if case.past else finding.actions,
        evidence=evidence(*finding.proofs),
        as_of=case.now,
    )


def _always(case: Case) -> dict[str, Any]:
    """Return the details that do not depend on the reason."""
    deadlines = open_deadlines(case.run, case.now)
    anomalies = case.record.unit.anomalies
    return {
        **({"deadline": plain(deadlines[0])} if deadlines else {}),
        **({"anomalies": [plain(view_anomaly(anomaly)) for anomaly in anomalies]} if anomalies else {}),
        **({"unknown": list(_NOT_RECORDED)} if case.past and not case.run.stopped else {}),
    }


def _commands(case: Case) -> dict[str, Any]:
    """Return how many commands the run got, the latest one, and those that came more than once."""
    history = case.run.command_history
    if not history:
        return {}
    latest = history[-1]
    details: dict[str, Any] = {
        "command_count": len(history),
        "latest_command": {
            "signal_type": latest.signal_type,
            "at": latest.occurred_at,
            "actor": shown(latest.actor),
        },
    }
    repeated = _repeated(history)
    return {**details, "duplicate_commands": repeated} if repeated else details


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
