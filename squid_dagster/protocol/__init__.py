"""Facts, threads and folds: what is written, and what it means. Pure: no I/O, no clock, no dependency but pydantic.

Functions exported here check their arguments; the library itself imports the unchecked ones from their modules.
"""

from squid_dagster.protocol import codec as _codec
from squid_dagster.protocol import redaction as _redaction
from squid_dagster.protocol import threads as _threads
from squid_dagster.protocol.anomalies import Anomaly, Reason
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.backlog.card import Card, CardStatus
from squid_dagster.protocol.backlog.projection import BacklogProjection
from squid_dagster.protocol.codec import parse_fact
from squid_dagster.protocol.entries import Entry, MalformedFact, UnknownFact
from squid_dagster.protocol.facts import (
    DEFAULT_MAX_DELIVERIES,
    FACT_TYPES,
    AttemptClaimed,
    AttemptCompleted,
    AttemptDeadLettered,
    AttemptFailed,
    AttemptHeartbeat,
    AttemptReleased,
    AttemptScheduled,
    CardBlocked,
    CardClaimed,
    CardCompleted,
    CardCreated,
    CardDeadLettered,
    CardFailed,
    CardLinked,
    CardReleased,
    CardRenewed,
    CardUnblocked,
    ChildRunStarted,
    EntryQuarantined,
    Fact,
    LiveWakeupEmitted,
    ManualStepPaused,
    ManualStepResolved,
    Origin,
    QueuePaused,
    QueueResumed,
    RunCataloged,
    RunFenced,
    RunIndexed,
    Runnable,
    RunnableApplied,
    RunnablesPlanned,
    RunQueued,
    RunSignalReceived,
    RunStarted,
    RunTerminal,
)
from squid_dagster.protocol.folds import attempt as _attempts
from squid_dagster.protocol.folds import run_unit as _unit
from squid_dagster.protocol.folds.attempt import Attempt, AttemptStatus
from squid_dagster.protocol.folds.dispatch import DispatchProjection, RunDispatch
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.run_index import RunCatalogProjection, RunIndexProjection, RunSummary
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import BACKLOG_THREAD, CATALOG_THREAD, ThreadKind, parse_thread

__all__ = [
    "BACKLOG_THREAD",
    "CATALOG_THREAD",
    "DEFAULT_MAX_DELIVERIES",
    "FACT_TYPES",
    "Anomaly",
    "Attempt",
    "AttemptClaimed",
    "AttemptCompleted",
    "AttemptDeadLettered",
    "AttemptFailed",
    "AttemptHeartbeat",
    "AttemptReleased",
    "AttemptScheduled",
    "AttemptStatus",
    "BacklogProjection",
    "Card",
    "CardBlocked",
    "CardClaimed",
    "CardCompleted",
    "CardCreated",
    "CardDeadLettered",
    "CardFailed",
    "CardLinked",
    "CardReleased",
    "CardRenewed",
    "CardStatus",
    "CardUnblocked",
    "ChildRunStarted",
    "DispatchProjection",
    "Entry",
    "EntryQuarantined",
    "Fact",
    "LiveWakeupEmitted",
    "MalformedFact",
    "ManualStepPaused",
    "ManualStepResolved",
    "Origin",
    "QueuePaused",
    "QueueResumed",
    "Reason",
    "RunCatalogProjection",
    "RunCataloged",
    "RunDispatch",
    "RunFenced",
    "RunIndexProjection",
    "RunIndexed",
    "RunProjection",
    "RunQueued",
    "RunSignalReceived",
    "RunStarted",
    "RunSummary",
    "RunTerminal",
    "RunUnit",
    "Runnable",
    "RunnableApplied",
    "RunnablesPlanned",
    "ThreadKind",
    "UnknownFact",
    "decode",
    "definition_key",
    "dispatch_thread",
    "encode",
    "idempotency_key",
    "parse_fact",
    "parse_thread",
    "planned_but_unscheduled",
    "redact",
    "results_ready_to_apply",
    "run_index_thread",
    "run_thread",
    "runnable_key",
    "to_json",
    "unfenced_attempts",
]

decode = checked(_codec.decode)
definition_key = checked(_attempts.definition_key)
dispatch_thread = checked(_threads.dispatch_thread)
encode = checked(_codec.encode)
idempotency_key = checked(_threads.idempotency_key)
planned_but_unscheduled = checked(_unit.planned_but_unscheduled)
redact = checked(_redaction.redact)
results_ready_to_apply = checked(_unit.results_ready_to_apply)
run_index_thread = checked(_threads.run_index_thread)
run_thread = checked(_threads.run_thread)
runnable_key = checked(_threads.runnable_key)
to_json = checked(_codec.to_json)
unfenced_attempts = checked(_unit.unfenced_attempts)
