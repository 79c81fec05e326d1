"""All facts, as one discriminated union; `FACT_TYPES` maps the name of a type to its model."""

from typing import Annotated, get_args

from pydantic import Field

from squid_dagster.limits import MAX_PRIORITY, MIN_PRIORITY
from squid_dagster.protocol.facts.backlog import (
    BacklogFact,
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
)
from squid_dagster.protocol.facts.base import DEFAULT_MAX_DELIVERIES, FactBase
from squid_dagster.protocol.facts.dispatch import (
    AttemptClaimed,
    AttemptCompleted,
    AttemptDeadLettered,
    AttemptFailed,
    AttemptHeartbeat,
    AttemptReleased,
    AttemptScheduled,
    DispatchFact,
    LiveWakeupEmitted,
    QueuePaused,
    QueueResumed,
    RunFenced,
    RunQueued,
)
from squid_dagster.protocol.facts.index import IndexFact, RunCataloged, RunIndexed
from squid_dagster.protocol.facts.run import (
    ChildRunStarted,
    EntryQuarantined,
    ManualAction,
    ManualKind,
    ManualStepPaused,
    ManualStepResolved,
    Origin,
    RunFact,
    Runnable,
    RunnableApplied,
    RunnablesPlanned,
    RunSignalReceived,
    RunStarted,
    RunTerminal,
    TerminalStatus,
)

Fact = Annotated[RunFact | DispatchFact | IndexFact | BacklogFact, Field(discriminator="type")]

FACT_TYPES: dict[str, type[FactBase]] = {
    model.model_fields["type"].default: model
    for union in (RunFact, DispatchFact, IndexFact, BacklogFact)
    for model in get_args(get_args(union)[0])
}

# The types with a run id; an unknown field of that name on another type does not count.
RUN_FACT_TYPES = frozenset(name for name, model in FACT_TYPES.items() if "run_id" in model.model_fields)

__all__ = [
    "DEFAULT_MAX_DELIVERIES",
    "FACT_TYPES",
    "MAX_PRIORITY",
    "MIN_PRIORITY",
    "RUN_FACT_TYPES",
    "AttemptClaimed",
    "AttemptCompleted",
    "AttemptDeadLettered",
    "AttemptFailed",
    "AttemptHeartbeat",
    "AttemptReleased",
    "AttemptScheduled",
    "BacklogFact",
    "CardBlocked",
    "CardClaimed",
    "CardCompleted",
    "CardCreated",
    "CardDeadLettered",
    "CardFailed",
    "CardLinked",
    "CardReleased",
    "CardRenewed",
    "CardUnblocked",
    "ChildRunStarted",
    "DispatchFact",
    "EntryQuarantined",
    "Fact",
    "FactBase",
    "IndexFact",
    "LiveWakeupEmitted",
    "ManualAction",
    "ManualKind",
    "ManualStepPaused",
    "ManualStepResolved",
    "Origin",
    "QueuePaused",
    "QueueResumed",
    "RunCataloged",
    "RunFact",
    "RunFenced",
    "RunIndexed",
    "RunQueued",
    "RunSignalReceived",
    "RunStarted",
    "RunTerminal",
    "Runnable",
    "RunnableApplied",
    "RunnablesPlanned",
    "TerminalStatus",
]
