"""The facts of a queue's thread: scheduled attempts, claims, leases, outcomes, retries, fences, pauses."""

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from squid_dagster.protocol.facts.base import (
    DEFAULT_MAX_DELIVERIES,
    Actor,
    AttemptFact,
    Comment,
    Count,
    FencedFact,
    JsonObject,
    Part,
    Priority,
    QueueThreadFact,
    Redacted,
    RunDispatchFact,
    Text,
    UtcDatetime,
)


class RunQueued(RunDispatchFact):
    """The run's work goes through this queue."""

    type: Literal["run_queued"] = "run_queued"


class AttemptScheduled(AttemptFact):
    """An attempt may be claimed from `visible_at` on."""

    type: Literal["attempt_scheduled"] = "attempt_scheduled"
    idempotency_key: Text
    attempt_number: Count
    step: Text
    input: JsonObject
    visible_at: UtcDatetime
    priority: Priority = 0
    max_deliveries: Count = DEFAULT_MAX_DELIVERIES
    workflow: Part | None = None
    definition_version: Text | None = None
    definition_fingerprint: Text | None = None


class _Leased(FencedFact):
    lease_until: UtcDatetime

    @model_validator(mode="after")
    def _lease_ends_later(self) -> Self:
        if self.lease_until <= self.occurred_at:
            raise ValueError(
                f"lease_until {self.lease_until.isoformat()} must be after occurred_at {self.occurred_at.isoformat()}"
            )
        return self


class AttemptClaimed(_Leased):
    """A worker holds the attempt until `lease_until`; with `alone`, it holds no other meanwhile."""

    type: Literal["attempt_claimed"] = "attempt_claimed"
    owner_id: Text
    fencing_token: Count | None = None
    alone: bool | None = None


class AttemptHeartbeat(_Leased):
    """The holder extends its lease."""

    type: Literal["attempt_heartbeat"] = "attempt_heartbeat"


class AttemptReleased(FencedFact):
    """The holder returns the attempt, visible at once or later. Counts neither as a failure nor as a delivery.

    With `counted`, the delivery stays counted: the step was interrupted, or could not be executed.
    """

    type: Literal["attempt_released"] = "attempt_released"
    reason: Comment | None = None
    visible_at: UtcDatetime | None = None  # the step deferred itself until then, or has to wait after an interruption
    counted: Literal[True] | None = None


class AttemptCompleted(FencedFact):
    """The holder succeeded."""

    type: Literal["attempt_completed"] = "attempt_completed"
    result: JsonValue


class AttemptFailed(FencedFact):
    """The holder failed; with both retry fields, this fact also creates the next attempt."""

    type: Literal["attempt_failed"] = "attempt_failed"
    error: Redacted
    retry_runnable_key: Text | None = None
    retry_visible_at: UtcDatetime | None = None

    @model_validator(mode="after")
    def _retry_is_whole(self) -> Self:
        if (self.retry_runnable_key is None) != (self.retry_visible_at is None):
            raise ValueError("retry_runnable_key and retry_visible_at must be given together or not at all")
        if self.retry_runnable_key == self.runnable_key:
            raise ValueError(
                f"retry_runnable_key {self.retry_runnable_key!r} must differ from the failed attempt's own key"
            )
        return self


class AttemptDeadLettered(AttemptFact):
    """The attempt was claimed `max_deliveries` times and never settled. Needs no fence once the lease has run out.

    With a fence, the holder of the last delivery gives it up while its lease lasts; `error` says why.
    """

    type: Literal["attempt_dead_lettered"] = "attempt_dead_lettered"
    deliveries: Count
    error: Redacted | None = None
    claim_id: Text | None = None
    claim_token_hash: Text | None = None

    @model_validator(mode="after")
    def _fence_is_whole(self) -> Self:
        if (self.claim_id is None) != (self.claim_token_hash is None):
            raise ValueError("claim_id and claim_token_hash must be given together or not at all")
        return self


class LiveWakeupEmitted(AttemptFact):
    """A wakeup was sent for the attempt. A hint: losing it costs latency, never work."""

    type: Literal["live_wakeup_emitted"] = "live_wakeup_emitted"


class RunFenced(RunDispatchFact):
    """The run has ended while attempts were open on this queue: none of them may continue."""

    type: Literal["run_fenced"] = "run_fenced"


class _QueueOnly(QueueThreadFact):
    actor: Actor | None = None
    comment: Comment | None = None
    metadata: Redacted | None = None
    idempotency_key: Text | None = None

    @model_validator(mode="after")
    def _of_no_run(self) -> Self:
        if "run_id" in (self.__pydantic_extra__ or ()):
            raise ValueError("a fact about a queue names no run: remove run_id")
        return self


class QueuePaused(_QueueOnly):
    """The queue gives no claims until it is resumed."""

    type: Literal["queue_paused"] = "queue_paused"


class QueueResumed(_QueueOnly):
    """The queue gives claims again."""

    type: Literal["queue_resumed"] = "queue_resumed"


DispatchFact = Annotated[
    RunQueued
    | AttemptScheduled
    | AttemptClaimed
    | AttemptHeartbeat
    | AttemptReleased
    | AttemptCompleted
    | AttemptFailed
    | AttemptDeadLettered
    | LiveWakeupEmitted
    | RunFenced
    | QueuePaused
    | QueueResumed,
    Field(discriminator="type"),
]
