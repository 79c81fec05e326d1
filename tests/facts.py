"""Facts for tests: builders with sensible defaults, and their places in a journal.

Builders count time in seconds after `T0`. Those about an attempt take its `attempt` and `visit`, which are 1 unless
told otherwise; every other argument by name is a field of the fact. What facts mean is for tests to say.
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from squid_dagster.protocol import (
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
    Entry,
    EntryQuarantined,
    Fact,
    LiveWakeupEmitted,
    MalformedFact,
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
    UnknownFact,
)
from squid_dagster.protocol.entries import StoredFact
from squid_dagster.protocol.threads import (  # as they are: wrong values are for facts to refuse
    dispatch_thread,
    idempotency_key,
    runnable_key,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)
RUN, STEP, QUEUE, WORKFLOW = "run-1", "charge", "default", "billing"
RUNS, STEPS, QUEUES, CLAIMS = ("run-1", "run-2", "run-3"), ("charge", "ship"), ("default", "slow"), ("a", "b", "c")


# --- builders -------------------------------------------------------------------------------------------------------


def t(seconds: float) -> datetime:
    """Give the time so many seconds after `T0`."""
    return T0 + timedelta(seconds=seconds)


def token_hash(claim: str) -> str:
    """Give the hash of the token that belongs to a claim id."""
    return hashlib.sha256(claim.encode()).hexdigest()


def key(run: str = RUN, step: str = STEP, attempt: int = 1, visit: int = 1) -> str:
    """Give a runnable key."""
    return runnable_key(run, step, visit, attempt)


def _about(run: str, step: str, at: float, attempt: int = 1, visit: int = 1, **fields: Any) -> dict[str, Any]:
    """What every fact about an attempt says, and whatever else is to be said of it."""
    return {"run_id": run, "runnable_key": runnable_key(run, step, visit, attempt), "occurred_at": t(at), **fields}


def _intent(run: str, step: str, attempt: int, visit: int) -> dict[str, Any]:
    return {
        "idempotency_key": idempotency_key(run, step, visit),
        "attempt_number": attempt,
        "step": step,
        "input": {"amount": 5},
        "visible_at": t(0),
    }


def fence(claim: str) -> dict[str, Any]:
    return {"claim_id": claim, "claim_token_hash": token_hash(claim)}


def signal(run: str = RUN, *, at: float = 0, **fields: Any) -> RunSignalReceived:
    """A command reached the run."""
    base = {"run_id": run, "occurred_at": t(at), "signal_type": "start_run", "payload": {}, "metadata": {}}
    return RunSignalReceived(**{**base, **fields})


def started(run: str = RUN, *, at: float = 0, **fields: Any) -> RunStarted:
    """The run exists."""
    return RunStarted(**{"run_id": run, "occurred_at": t(at), "workflow": WORKFLOW, "queue": QUEUE, **fields})


def runnable(run: str = RUN, step: str = STEP, *, attempt: int = 1, visit: int = 1, **fields: Any) -> Runnable:
    """One planned attempt; `scheduled` with the same arguments has the same intent."""
    named = {"run_id": run, "runnable_key": runnable_key(run, step, visit, attempt)}
    return Runnable(**{**named, **_intent(run, step, attempt, visit), **fields})


def planned(*runnables: Runnable, run: str = RUN, at: float = 0, **fields: Any) -> RunnablesPlanned:
    """Work was decided on: the first attempt at `charge`, unless told otherwise."""
    base = {"run_id": run, "occurred_at": t(at), "runnables": list(runnables) or [runnable(run)]}
    return RunnablesPlanned(**{**base, **fields})


def applied(run: str = RUN, step: str = STEP, *, at: float = 40, **fields: Any) -> RunnableApplied:
    """An outcome became part of the run."""
    return RunnableApplied(**{"result": {"ok": True}, **_about(run, step, at, **fields)})


def child(run: str = RUN, *, at: float = 20, child_run_id: str = "child-1", **fields: Any) -> ChildRunStarted:
    """The run links a child."""
    base = {
        "run_id": run,
        "occurred_at": t(at),
        "child_run_id": child_run_id,
        "child_workflow": "refund",
        "child_trigger": "api",
        "child_key": "refund-1",
        "origin": Origin(runnable_key=key(run), step=STEP, attempt=1),
    }
    return ChildRunStarted(**{**base, **fields})


def step_paused(run: str = RUN, step: str = "review", *, at: float = 20, **fields: Any) -> ManualStepPaused:
    """The run waits for an approval, unless `kind` says otherwise."""
    return ManualStepPaused(**{"run_id": run, "step": step, "occurred_at": t(at), "kind": "approval", **fields})


def step_resolved(run: str = RUN, step: str = "review", *, at: float = 30, **fields: Any) -> ManualStepResolved:
    """A person approved, unless `action` says otherwise."""
    return ManualStepResolved(**{"run_id": run, "step": step, "occurred_at": t(at), "action": "approved", **fields})


def terminal(run: str = RUN, *, at: float = 50, **fields: Any) -> RunTerminal:
    """The run completed, unless `status` says otherwise."""
    return RunTerminal(**{"run_id": run, "occurred_at": t(at), "status": "completed", **fields})


def quarantined(run: str = RUN, *, at: float = 20, **fields: Any) -> EntryQuarantined:
    """An entry of the run cannot be read."""
    base = {"run_id": run, "occurred_at": t(at), "entry_thread": dispatch_thread(QUEUE), "entry_seq": 1}
    return EntryQuarantined(**{**base, "reason": "unreadable", **fields})


def queued(run: str = RUN, *, at: float = 0, **fields: Any) -> RunQueued:
    """The run's work goes through the queue."""
    return RunQueued(**{"run_id": run, "occurred_at": t(at), **fields})


def scheduled(
    run: str = RUN, step: str = STEP, *, attempt: int = 1, visit: int = 1, at: float = 0, **fields: Any
) -> AttemptScheduled:
    """An attempt may be claimed from `T0` on."""
    intent = {**_intent(run, step, attempt, visit), "workflow": WORKFLOW}
    return AttemptScheduled(**{**intent, **_about(run, step, at, attempt, visit, **fields)})


def claimed(
    run: str = RUN, step: str = STEP, *, at: float = 10, claim: str = "a", lease: float = 60, **fields: Any
) -> AttemptClaimed:
    """A worker holds the attempt for `lease` seconds."""
    base = {**fence(claim), "owner_id": f"worker-{claim}", "lease_until": t(at + lease)}
    return AttemptClaimed(**{**base, **_about(run, step, at, **fields)})


def heartbeat(
    run: str = RUN, step: str = STEP, *, at: float = 20, claim: str = "a", lease: float = 60, **fields: Any
) -> AttemptHeartbeat:
    """The holder extends its lease to `lease` seconds from now."""
    return AttemptHeartbeat(**{**fence(claim), "lease_until": t(at + lease), **_about(run, step, at, **fields)})


def released(run: str = RUN, step: str = STEP, *, at: float = 30, claim: str = "a", **fields: Any) -> AttemptReleased:
    """The holder gives the attempt back."""
    return AttemptReleased(**{**fence(claim), **_about(run, step, at, **fields)})


def completed(run: str = RUN, step: str = STEP, *, at: float = 30, claim: str = "a", **fields: Any) -> AttemptCompleted:
    """The holder succeeded."""
    return AttemptCompleted(**{**fence(claim), "result": {"ok": True}, **_about(run, step, at, **fields)})


def failed(run: str = RUN, step: str = STEP, *, at: float = 30, claim: str = "a", **fields: Any) -> AttemptFailed:
    """The holder failed, for good."""
    return AttemptFailed(**{**fence(claim), "error": {"message": "declined"}, **_about(run, step, at, **fields)})


def failed_with_retry(
    run: str = RUN,
    step: str = STEP,
    *,
    attempt: int = 1,
    visit: int = 1,
    at: float = 30,
    delay: float = 10,
    **fields: Any,
) -> AttemptFailed:
    """The holder failed, and the next attempt is due `delay` seconds later."""
    retry = {"retry_runnable_key": runnable_key(run, step, visit, attempt + 1), "retry_visible_at": t(at + delay)}
    return failed(run, step, attempt=attempt, visit=visit, at=at, **{**retry, **fields})


def dead_lettered(
    run: str = RUN, step: str = STEP, *, at: float = 100, deliveries: int = 1, **fields: Any
) -> AttemptDeadLettered:
    """Somebody found the attempt out of deliveries."""
    return AttemptDeadLettered(**{"deliveries": deliveries, **_about(run, step, at, **fields)})


def wakeup(run: str = RUN, step: str = STEP, *, at: float = 5, **fields: Any) -> LiveWakeupEmitted:
    """Somebody was told about the attempt."""
    return LiveWakeupEmitted(**_about(run, step, at, **fields))


def fenced(run: str = RUN, *, at: float = 50, **fields: Any) -> RunFenced:
    """The run has ended while attempts were open."""
    return RunFenced(**{"run_id": run, "occurred_at": t(at), **fields})


def queue_paused(queue: str = QUEUE, *, at: float = 5, **fields: Any) -> QueuePaused:
    """No claim from the queue."""
    return QueuePaused(**{"queue": queue, "occurred_at": t(at), **fields})


def queue_resumed(queue: str = QUEUE, *, at: float = 6, **fields: Any) -> QueueResumed:
    """Claims may go on."""
    return QueueResumed(**{"queue": queue, "occurred_at": t(at), **fields})


def indexed(run: str = RUN, *, at: float = 0, workflow: str = WORKFLOW, **fields: Any) -> RunIndexed:
    """The run can be found under its workflow."""
    return RunIndexed(**{"run_id": run, "occurred_at": t(at), "workflow": workflow, "queue": QUEUE, **fields})


def cataloged(run: str = RUN, *, at: float = 0, workflow: str = WORKFLOW, **fields: Any) -> RunCataloged:
    """The run can be found among all."""
    return RunCataloged(**{"run_id": run, "occurred_at": t(at), "workflow": workflow, "queue": QUEUE, **fields})


_HELD: dict[str, Any] = {"card_id": "A1", "fence": "token", "claim_token_hash": token_hash("a"), "occurred_at": T0}
CARD_EXAMPLES: tuple[Fact, ...] = (
    CardCreated(card_id="A1", title="schema", depends_on=["A0"], acceptance=["it migrates"], occurred_at=T0),
    CardLinked(card_id="A1", depends_on="A2", occurred_at=T0),
    CardClaimed(
        card_id="A1",
        claim_owner="worker-1",
        claim_ttl_seconds=900,
        claim_token_hash=token_hash("a"),
        attempt=1,
        occurred_at=T0,
    ),
    CardRenewed(**_HELD, claim_ttl_seconds=1800),
    CardReleased(card_id="A1", cause="expired", occurred_at=T0),
    CardBlocked(**_HELD, reason="waits for the vendor"),
    CardUnblocked(card_id="A1", cause="unblocked", occurred_at=T0),
    CardCompleted(**_HELD),
    CardFailed(**_HELD, error={"message": "no"}, not_before=t(60)),
    CardDeadLettered(**_HELD, cause="spent", attempts=3, error={"message": "no"}),
)
"""One fact of every type about cards, which no run knows of."""

EXAMPLES: tuple[Fact, ...] = (
    signal(),
    started(),
    planned(),
    applied(),
    child(),
    step_paused(),
    step_resolved(),
    terminal(),
    quarantined(),
    queued(),
    scheduled(),
    claimed(),
    heartbeat(),
    released(),
    completed(),
    failed_with_retry(),
    dead_lettered(),
    wakeup(),
    fenced(),
    queue_paused(),
    queue_resumed(),
    indexed(),
    cataloged(),
    *CARD_EXAMPLES,
)
"""One fact of every type."""


def with_fields(fact: Fact, **fields: Any) -> Fact:
    """Give the fact with some fields replaced or added, validated anew."""
    changed: Fact = type(fact).model_validate({**dict(fact), **(fact.__pydantic_extra__ or {}), **fields})
    return changed


# --- places in the journal ------------------------------------------------------------------------------------------


class OnThread(NamedTuple):
    """A stored fact with the thread it was found on; unreadable ones do not say it themselves."""

    thread: str
    fact: StoredFact


def unknown(thread: str = dispatch_thread(QUEUE), run: str | None = RUN, at: float = 20) -> OnThread:
    """A fact of a type that a later version may have written."""
    return OnThread(thread, UnknownFact("attempt_teleported", run, t(at), {"to": "mars"}))


def malformed(
    thread: str = dispatch_thread(QUEUE), run: str | None = RUN, at: float = 20, type_name: str = "attempt_claimed"
) -> OnThread:
    """A fact that cannot be decoded."""
    return OnThread(thread, MalformedFact(type_name, run, t(at), "runnable_key: Field required", "{}"))


def entries(items: Iterable[Fact | OnThread], after: Sequence[Entry] = ()) -> list[Entry]:
    """Place facts on their threads: contiguous there, growing with gaps over the journal, behind `after` if given."""
    revisions = {entry.thread: entry.seq for entry in after}
    position = after[-1].position if after else 0
    placed = []
    for item in items:
        thread, fact = (item.thread, item.fact) if isinstance(item, OnThread) else (item.thread, item)
        revisions[thread] = revisions.get(thread, 0) + 1
        position += 2
        placed.append(Entry(thread, revisions[thread], position, fact))
    return placed
