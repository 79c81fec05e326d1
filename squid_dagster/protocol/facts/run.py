"""The facts of a run's own thread: its start, commands, plans, applied outcomes, pauses, children and end."""

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from squid_dagster.protocol.facts.base import (
    DEFAULT_MAX_DELIVERIES,
    Actor,
    Comment,
    Count,
    Frozen,
    JsonObject,
    Part,
    Priority,
    Redacted,
    RunThreadFact,
    Text,
    UtcDatetime,
)

TerminalStatus = Literal["completed", "failed", "cancelled"]
ManualKind = Literal["pause", "approval"]
ManualAction = Literal["resumed", "approved", "rejected"]


class RunSignalReceived(RunThreadFact):
    """A command reached the run; recorded in the same commit as its effect."""

    type: Literal["run_signal_received"] = "run_signal_received"
    signal_type: Text
    payload: JsonObject
    metadata: Redacted
    idempotency_key: Text | None = None
    actor: Actor | None = None
    comment: Comment | None = None
    caller_time: UtcDatetime | None = None  # when the caller says that it happened; `occurred_at` is the journal's


class RunStarted(RunThreadFact):
    """The run exists: its workflow, input and definition version."""

    type: Literal["run_started"] = "run_started"
    workflow: Part
    trigger: Text | None = None
    input: JsonObject = Field(default_factory=dict)
    context: JsonObject = Field(default_factory=dict)
    queue: Part | None = None
    priority: Priority = 0
    replayed_from_run_id: Part | None = None
    definition_version: Text | None = None
    definition_fingerprint: Text | None = None


class Runnable(Frozen):
    """One planned attempt, as it will be scheduled."""

    run_id: Part
    runnable_key: Text
    idempotency_key: Text
    attempt_number: Count
    queue: Part = "default"
    step: Text
    input: JsonObject
    visible_at: UtcDatetime
    priority: Priority = 0
    max_deliveries: Count = DEFAULT_MAX_DELIVERIES
    recovery: JsonObject | None = None
    deadline: JsonObject | None = None
    external: JsonObject | None = None  # executed by another system, not by a worker: the request to it


class RunnablesPlanned(RunThreadFact):
    """Attempts were planned. Planning comes before scheduling; recovery repairs a plan without its schedule."""

    type: Literal["runnables_planned"] = "runnables_planned"
    runnables: list[Runnable]

    @model_validator(mode="after")
    def _of_this_run(self) -> Self:
        for runnable in self.runnables:
            if runnable.run_id != self.run_id:
                raise ValueError(f"a plan of run {self.run_id!r} cannot name a runnable of run {runnable.run_id!r}")
        return self


class RunnableApplied(RunThreadFact):
    """A settled attempt's outcome became part of the run."""

    type: Literal["runnable_applied"] = "runnable_applied"
    runnable_key: Text
    result: JsonValue = None
    transition: JsonObject | None = None
    execution_opts: JsonObject | None = None
    applied_at: UtcDatetime | None = None


class Origin(Frozen):
    """The attempt that started a child run."""

    runnable_key: Text
    step: Text
    attempt: Count


class ChildRunStarted(RunThreadFact):
    """The run links a child; the child's own thread may follow later."""

    type: Literal["child_run_started"] = "child_run_started"
    child_run_id: Part
    child_workflow: Part
    child_trigger: Text
    child_key: Text
    origin: Origin
    child_input: JsonObject | None = None  # with the queue, all that is needed to start the child after a crash
    child_queue: Part | None = None
    metadata: Redacted = Field(default_factory=dict)
    started_at: UtcDatetime | None = None


class ManualStepPaused(RunThreadFact):
    """The run waits for a person."""

    type: Literal["manual_step_paused"] = "manual_step_paused"
    step: Text
    kind: ManualKind
    metadata: Redacted = Field(default_factory=dict)
    paused_at: UtcDatetime | None = None
    runnable_key: Text | None = None


class ManualStepResolved(RunThreadFact):
    """A person decided."""

    type: Literal["manual_step_resolved"] = "manual_step_resolved"
    step: Text
    action: ManualAction
    result: JsonObject = Field(default_factory=dict)
    metadata: Redacted = Field(default_factory=dict)
    transition: JsonObject | None = None


class RunTerminal(RunThreadFact):
    """The run has ended. Only this fact decides that; it fences everything that comes later."""

    type: Literal["run_terminal"] = "run_terminal"
    status: TerminalStatus
    error: Redacted | None = None


class EntryQuarantined(RunThreadFact):
    """An entry of this run cannot be read: the run stops until an operator acts."""

    type: Literal["entry_quarantined"] = "entry_quarantined"
    entry_thread: Text
    entry_seq: Count
    reason: Comment


RunFact = Annotated[
    RunSignalReceived
    | RunStarted
    | RunnablesPlanned
    | RunnableApplied
    | ChildRunStarted
    | ManualStepPaused
    | ManualStepResolved
    | RunTerminal
    | EntryQuarantined,
    Field(discriminator="type"),
]
