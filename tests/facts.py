"""Facts for tests: builders with sensible defaults, and their places in a journal.

Builders count time in seconds after `T0`. Those about an attempt take its `attempt` and `visit`, which are 1 by
default; every other argument by name is a field of the fact. What facts mean is for tests to assert.
"""
# ruff: noqa: F405

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from squid_dagster.protocol import (
    AttemptDeadLettered,
    AttemptFailed,
    AttemptHeartbeat,
    AttemptReleased,
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
    Entry,
    EntryQuarantined,
    Fact,
    LiveWakeupEmitted,
    MalformedFact,
    ManualStepPaused,
    ManualStepResolved,
    QueueResumed,
    RunFenced,
    RunnableApplied,
    UnknownFact,
)
from squid_dagster.protocol.entries import StoredFact
from squid_dagster.protocol.threads import (  # unchecked: the facts refuse wrong values
    dispatch_thread,
    runnable_key,
)
from squid_dagster.testing.example_facts import *  # noqa: F403  the builders that the storage contract needs, too

RUNS, STEPS, QUEUES, CLAIMS = ("run-1", "run-2", "run-3"), ("charge", "ship"), ("default", "slow"), ("a", "b", "c")


# --- builders -------------------------------------------------------------------------------------------------------


def applied(run: str = RUN, step: str = STEP, *, at: float = 40, **fields: Any) -> RunnableApplied:
    """Return a fact: an outcome became part of the run."""
    return RunnableApplied(**{"result": {"ok": True}, **attempt_fields(run, step, at, **fields)})


def step_paused(run: str = RUN, step: str = "review", *, at: float = 20, **fields: Any) -> ManualStepPaused:
    """Return a fact: the run waits for an approval, unless `kind` says otherwise."""
    return ManualStepPaused(**{"run_id": run, "step": step, "occurred_at": t(at), "kind": "approval", **fields})


def step_resolved(run: str = RUN, step: str = "review", *, at: float = 30, **fields: Any) -> ManualStepResolved:
    """Return a fact: a person approved, unless `action` says otherwise."""
    return ManualStepResolved(**{"run_id": run, "step": step, "occurred_at": t(at), "action": "approved", **fields})


def quarantined(run: str = RUN, *, at: float = 20, **fields: Any) -> EntryQuarantined:
    """Return a fact: an entry of the run cannot be read."""
    base = {"run_id": run, "occurred_at": t(at), "entry_thread": dispatch_thread(QUEUE), "entry_seq": 1}
    return EntryQuarantined(**{**base, "reason": "unreadable", **fields})


def heartbeat(
    run: str = RUN, step: str = STEP, *, at: float = 20, claim: str = "a", lease: float = 60, **fields: Any
) -> AttemptHeartbeat:
    """Return a fact: the holder extends its lease to `lease` seconds from now."""
    return AttemptHeartbeat(**{**fence(claim), "lease_until": t(at + lease), **attempt_fields(run, step, at, **fields)})


def released(run: str = RUN, step: str = STEP, *, at: float = 30, claim: str = "a", **fields: Any) -> AttemptReleased:
    """Return a fact: the holder gives the attempt back."""
    return AttemptReleased(**{**fence(claim), **attempt_fields(run, step, at, **fields)})


def failed(run: str = RUN, step: str = STEP, *, at: float = 30, claim: str = "a", **fields: Any) -> AttemptFailed:
    """Return a fact: the holder failed, for good."""
    return AttemptFailed(
        **{**fence(claim), "error": {"message": "declined"}, **attempt_fields(run, step, at, **fields)}
    )


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
    """Return a fact: the holder failed, and the next attempt is due `delay` seconds later."""
    retry = {"retry_runnable_key": runnable_key(run, step, visit, attempt + 1), "retry_visible_at": t(at + delay)}
    return failed(run, step, attempt=attempt, visit=visit, at=at, **{**retry, **fields})


def dead_lettered(
    run: str = RUN, step: str = STEP, *, at: float = 100, deliveries: int = 1, **fields: Any
) -> AttemptDeadLettered:
    """Return a fact: the attempt's deliveries are spent."""
    return AttemptDeadLettered(**{"deliveries": deliveries, **attempt_fields(run, step, at, **fields)})


def wakeup(run: str = RUN, step: str = STEP, *, at: float = 5, **fields: Any) -> LiveWakeupEmitted:
    """Return a fact: a wakeup was sent for the attempt."""
    return LiveWakeupEmitted(**attempt_fields(run, step, at, **fields))


def fenced(run: str = RUN, *, at: float = 50, **fields: Any) -> RunFenced:
    """Return a fact: the run has ended while attempts were open."""
    return RunFenced(**{"run_id": run, "occurred_at": t(at), **fields})


def queue_resumed(queue: str = QUEUE, *, at: float = 6, **fields: Any) -> QueueResumed:
    """Return a fact: the queue gives claims again."""
    return QueueResumed(**{"queue": queue, "occurred_at": t(at), **fields})


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


# --- places in the journal ------------------------------------------------------------------------------------------


class OnThread(NamedTuple):
    """A stored fact with the thread it was found on; unreadable ones do not say it themselves."""

    thread: str
    fact: StoredFact


def unknown(thread: str = dispatch_thread(QUEUE), run: str | None = RUN, at: float = 20) -> OnThread:
    """Return a fact of a type that a later version may have written."""
    return OnThread(thread, UnknownFact("attempt_teleported", run, t(at), {"to": "mars"}))


def malformed(
    thread: str = dispatch_thread(QUEUE), run: str | None = RUN, at: float = 20, type_name: str = "attempt_claimed"
) -> OnThread:
    """Return a fact that cannot be decoded."""
    return OnThread(thread, MalformedFact(type_name, run, t(at), "runnable_key: Field required", "{}"))


def entries(items: Iterable[Fact | OnThread], after: Sequence[Entry] = ()) -> list[Entry]:
    """Append facts to their threads: contiguous there, with gaps over the journal, behind `after` if given."""
    revisions = {entry.thread: entry.seq for entry in after}
    position = after[-1].position if after else 0
    placed = []
    for item in items:
        thread, fact = (item.thread, item.fact) if isinstance(item, OnThread) else (item.thread, item)
        revisions[thread] = revisions.get(thread, 0) + 1
        position += 2
        placed.append(Entry(thread, revisions[thread], position, fact))
    return placed
