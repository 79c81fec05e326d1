"""The dispatch fold: attempts, claims and leases from the facts of a queue's thread.

All rules read one attempt and its run, so the unit is `RunDispatch`, one run's part of the queue. A run's terminal
and quarantine facts are accepted too: merged by position, they fence as `run_fenced` does.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from squid_dagster.protocol.anomalies import Anomaly, Reason, anomaly, unreadable
from squid_dagster.protocol.entries import Entry, digest, run_of
from squid_dagster.protocol.facts import (
    AttemptClaimed,
    AttemptCompleted,
    AttemptDeadLettered,
    AttemptFailed,
    AttemptHeartbeat,
    AttemptReleased,
    AttemptScheduled,
)
from squid_dagster.protocol.folds.attempt import (
    OPEN,
    Attempt,
    AttemptStatus,
    check_completion,
    check_failure,
    check_fence,
    claim_order,
    completed,
    intent_digest,
    out_of_deliveries,
)
from squid_dagster.protocol.threads import dispatch_thread

STOPS = frozenset({"run_fenced", "run_terminal", "entry_quarantined"})
_DISPATCH_PREFIX = dispatch_thread("")


@dataclass(slots=True)
class RunDispatch:
    """One run's attempts on its queue. A value: `folded` works on a copy."""

    queue: str | None = None
    fenced: bool = False
    quarantined: bool = False
    unfenced: bool = False  # the run's end came while attempts were open, and no `run_fenced` followed yet
    attempts: dict[str, Attempt] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)  # claims so far by idempotency key
    anomalies: list[Anomaly] = field(default_factory=list)

    def copy(self) -> "RunDispatch":
        """Return an independent copy; attempts and anomalies are immutable and shared."""
        return RunDispatch(
            self.queue,
            self.fenced,
            self.quarantined,
            self.unfenced,
            dict(self.attempts),
            dict(self.tokens),
            list(self.anomalies),
        )

    @property
    def stopped(self) -> bool:
        """Whether no attempt of the run may be claimed any more."""
        return self.fenced or self.quarantined

    def next_token(self, idempotency_key: str) -> int:
        """Return the fencing token of the next claim of any attempt of that key."""
        return self.tokens.get(idempotency_key, 0) + 1

    def open_attempts(self) -> Iterator[Attempt]:
        """Iterate over the attempts that could still be claimed or settled."""
        return iter(()) if self.fenced else (a for a in self.attempts.values() if a.status in OPEN)

    def claimable(self, at: datetime) -> Iterator[Attempt]:
        """Iterate over the attempts that a claim may take or dead-letter at that time."""
        if self.stopped:
            return iter(())
        return (a for a in self.attempts.values() if a.due_at is not None and a.due_at <= at)


def apply_dispatch(run: RunDispatch, entry: Entry) -> None:
    """Fold one entry into `run`, in place: follow it, ignore it, or record an anomaly and change nothing else."""
    verdict: Attempt | Reason | None = unreadable(entry)
    if verdict is None and entry.fact.type in STOPS:
        if entry.fact.type == "entry_quarantined":
            run.quarantined = True
        else:
            run.unfenced = entry.fact.type == "run_terminal" and (run.unfenced or any(run.open_attempts()))
            run.fenced = True
        return
    if not entry.thread.startswith(_DISPATCH_PREFIX):
        return
    verdict = verdict or _judge(run, entry)
    if isinstance(verdict, Reason):
        run.anomalies.append(anomaly(verdict, entry))
    elif verdict is not None:
        run.attempts[verdict.runnable_key] = verdict


def _judge(run: RunDispatch, entry: Entry) -> Attempt | Reason | None:
    """Return what an entry does: a new state of an attempt, the reason why it is refused, or None."""
    fact: Any = entry.fact
    if run.fenced:
        return Reason.TERMINAL_RUN
    if run.queue is not None and run.queue != fact.queue:
        return Reason.WRONG_QUEUE
    match fact.type:
        case "run_queued":
            run.queue = fact.queue
            return None
        case "attempt_scheduled":
            run.queue = fact.queue
            return _schedule(run, entry, fact)
    attempt = run.attempts.get(fact.runnable_key)
    if attempt is None:
        return Reason.UNKNOWN_RUNNABLE_INTENT
    if fact.occurred_at < attempt.last_at:
        return Reason.OUT_OF_ORDER
    return _judge_attempt(run, entry, attempt, fact)


def _judge_attempt(run: RunDispatch, entry: Entry, attempt: Attempt, fact: Any) -> Attempt | Reason | None:
    """Return what a fact about a known attempt does."""
    match fact.type:
        case "attempt_claimed":
            return _claim(run, attempt, fact)
        case "attempt_heartbeat":
            return _heartbeat(attempt, fact)
        case "attempt_released":
            return _release(attempt, fact)
        case "attempt_completed":
            return _complete(attempt, fact)
        case "attempt_failed":
            return _fail(run, entry, attempt, fact)
        case "attempt_dead_lettered":
            return _dead_letter(attempt, fact)
        case "live_wakeup_emitted":
            return attempt._replace(wakeup_emitted=True, last_at=fact.occurred_at) if attempt.status in OPEN else None
    return None


def _schedule(run: RunDispatch, entry: Entry, fact: AttemptScheduled) -> Attempt | Reason | None:
    intent = intent_digest(fact.idempotency_key, fact.attempt_number, fact.step, fact.input, fact.visible_at)
    known = run.attempts.get(fact.runnable_key)
    if known is not None:
        return None if known.intent_digest == intent else Reason.CONFLICTING_RUNNABLE_INTENT
    return Attempt(
        fact.run_id,
        fact.runnable_key,
        fact.idempotency_key,
        fact.attempt_number,
        fact.queue,
        fact.step,
        fact.input,
        fact.visible_at,
        fact.priority,
        fact.max_deliveries,
        fact.workflow,
        fact.definition_version,
        fact.definition_fingerprint,
        intent,
        entry.position,
        fact.occurred_at,
    )


def _claim(run: RunDispatch, attempt: Attempt, fact: AttemptClaimed) -> Attempt | Reason:
    if attempt.status not in OPEN:
        return Reason.TERMINAL_ATTEMPT
    if run.quarantined:
        return Reason.QUARANTINED_RUN
    if attempt.status is AttemptStatus.CLAIMED and not attempt.expired(fact.occurred_at):
        return Reason.ACTIVE_CLAIM
    if attempt.visible_at > fact.occurred_at:
        return Reason.ATTEMPT_NOT_VISIBLE
    if out_of_deliveries(attempt):
        return Reason.DELIVERIES_EXHAUSTED
    token = run.next_token(attempt.idempotency_key)
    if fact.fencing_token is not None and fact.fencing_token != token:
        return Reason.WRONG_FENCING_TOKEN
    run.tokens[attempt.idempotency_key] = token
    return attempt._replace(
        status=AttemptStatus.CLAIMED,
        claim_id=fact.claim_id,
        claim_token_hash=fact.claim_token_hash,
        owner_id=fact.owner_id,
        lease_until=fact.lease_until,
        deliveries=attempt.deliveries + 1,
        fencing_token=token,
        last_at=fact.occurred_at,
    )


def _fence(
    attempt: Attempt, fact: AttemptHeartbeat | AttemptReleased | AttemptCompleted | AttemptFailed
) -> Reason | None:
    return check_fence(attempt, fact.claim_id, fact.claim_token_hash, fact.occurred_at)


def _heartbeat(attempt: Attempt, fact: AttemptHeartbeat) -> Attempt | Reason:
    refused = _fence(attempt, fact)
    if refused is not None or attempt.lease_until is None:
        return refused or Reason.STALE_CLAIM
    return attempt._replace(lease_until=max(attempt.lease_until, fact.lease_until), last_at=fact.occurred_at)


def _release(attempt: Attempt, fact: AttemptReleased) -> Attempt | Reason:
    return _fence(attempt, fact) or attempt._replace(
        status=AttemptStatus.AVAILABLE,
        visible_at=fact.visible_at or attempt.visible_at,
        claim_id=None,
        claim_token_hash=None,
        owner_id=None,
        lease_until=None,
        deliveries=attempt.deliveries - (0 if fact.counted else 1),
        last_at=fact.occurred_at,
    )


def _complete(attempt: Attempt, fact: AttemptCompleted) -> Attempt | Reason | None:
    outcome = digest(fact.result)
    verdict = check_completion(attempt, fact.claim_id, fact.claim_token_hash, outcome, fact.occurred_at)
    if verdict is True:
        return completed(attempt, fact.result, outcome, fact.occurred_at)
    return verdict or None


def _fail(run: RunDispatch, entry: Entry, attempt: Attempt, fact: AttemptFailed) -> Attempt | Reason | None:
    outcome = digest(fact.error)
    verdict = check_failure(attempt, fact.claim_id, fact.claim_token_hash, outcome, fact.occurred_at)
    if verdict is not True:
        return verdict or None
    if fact.retry_runnable_key is not None and fact.retry_visible_at is not None:
        _retry(run, entry, attempt, fact.retry_runnable_key, fact.retry_visible_at)
    return attempt._replace(
        status=AttemptStatus.FAILED,
        error=fact.error,
        outcome_digest=outcome,
        settled_at=fact.occurred_at,
        last_at=fact.occurred_at,
    )


def _retry(run: RunDispatch, entry: Entry, failed: Attempt, key: str, visible_at: datetime) -> None:
    number = failed.attempt_number + 1
    intent = intent_digest(failed.idempotency_key, number, failed.step, failed.input or {}, visible_at)
    known = run.attempts.get(key)
    if known is not None:
        if known.intent_digest != intent:
            run.anomalies.append(anomaly(Reason.CONFLICTING_RUNNABLE_INTENT, entry, key))
        return
    run.attempts[key] = failed._replace(
        runnable_key=key,
        attempt_number=number,
        visible_at=visible_at,
        intent_digest=intent,
        position=entry.position,
        last_at=entry.fact.occurred_at,
        status=AttemptStatus.RETRY_SCHEDULED,
        claim_id=None,
        claim_token_hash=None,
        owner_id=None,
        lease_until=None,
        deliveries=0,
        fencing_token=0,
        wakeup_emitted=False,
    )


def _dead_letter(attempt: Attempt, fact: AttemptDeadLettered) -> Attempt | Reason | None:
    if attempt.status is AttemptStatus.DEAD_LETTERED:
        return None
    if attempt.status not in OPEN:
        return Reason.TERMINAL_ATTEMPT
    expired = attempt.status is AttemptStatus.CLAIMED and attempt.expired(fact.occurred_at)
    given_up = fact.claim_id is not None and not check_fence(
        attempt, fact.claim_id, fact.claim_token_hash or "", fact.occurred_at
    )
    if not (expired or given_up) or not out_of_deliveries(attempt):
        return Reason.PREMATURE_DEAD_LETTER
    return attempt._replace(
        status=AttemptStatus.DEAD_LETTERED, error=fact.error, settled_at=fact.occurred_at, last_at=fact.occurred_at
    )


@dataclass(frozen=True, slots=True)
class DispatchProjection:
    """The fold of a queue's thread: each run's part, and for each queue that was ever paused whether it still is."""

    runs: dict[str, RunDispatch] = field(default_factory=dict)
    queues: dict[str, bool] = field(default_factory=dict)
    queue_anomalies: tuple[Anomaly, ...] = ()

    @classmethod
    def fold(cls, entries: Iterable[Entry], onto: "DispatchProjection | None" = None) -> Self:
        """Fold entries in order, onto an earlier projection if given; neither is changed. Never raises."""
        base = onto if onto is not None else DispatchProjection()
        runs, queues, anomalies = dict(base.runs), dict(base.queues), list(base.queue_anomalies)
        copied: set[str] = set()
        for entry in entries:
            run_id = run_of(entry.fact)
            if run_id is not None:
                if run_id not in copied:
                    copied.add(run_id)
                    runs[run_id] = runs[run_id].copy() if run_id in runs else RunDispatch()
                apply_dispatch(runs[run_id], entry)
            else:
                apply_queue(queues, anomalies, entry)
        return cls(runs, queues, tuple(anomalies))

    @property
    def paused(self) -> frozenset[str]:
        """The queues that give no claims."""
        return frozenset(queue for queue, paused in self.queues.items() if paused)

    @property
    def attempts(self) -> dict[str, Attempt]:
        """All attempts by runnable key; keys start with their run's id, and so are unique over all runs."""
        return {key: attempt for run in self.runs.values() for key, attempt in run.attempts.items()}

    @property
    def anomalies(self) -> tuple[Anomaly, ...]:
        """All anomalies, in the order of the entries that caused them."""
        run_anomalies = [a for run in self.runs.values() for a in run.anomalies]
        return tuple(sorted([*run_anomalies, *self.queue_anomalies], key=lambda a: (a.position, a.thread, a.seq)))

    def claimable(self, at: datetime) -> list[Attempt]:
        """Return the attempts that a claim may take at that time, in claim order. A paused queue has none."""
        paused = self.paused
        due = (a for run in self.runs.values() for a in run.claimable(at) if a.queue not in paused)
        return sorted(due, key=claim_order)

    def visible(self, at: datetime) -> list[Attempt]:
        """Return unclaimed attempts whose time has come, in claim order, whether the queue is paused or not."""
        return self._due(at, lambda a: a.status is not AttemptStatus.CLAIMED)

    def expired(self, at: datetime) -> list[Attempt]:
        """Return claimed attempts whose lease has run out, in claim order."""
        return self._due(at, lambda a: a.status is AttemptStatus.CLAIMED)

    def _due(self, at: datetime, wanted: Any) -> list[Attempt]:
        return sorted((a for run in self.runs.values() for a in run.claimable(at) if wanted(a)), key=claim_order)


def apply_queue(queues: dict[str, bool], anomalies: list[Anomaly], entry: Entry) -> None:
    """Fold an entry of a queue's thread that belongs to no run, in place."""
    if not entry.thread.startswith(_DISPATCH_PREFIX):
        return
    fact: Any = entry.fact
    if (reason := unreadable(entry)) is not None:
        anomalies.append(anomaly(reason, entry))
    elif fact.type == "queue_paused" or fact.type == "queue_resumed":
        queues[fact.queue] = fact.type == "queue_paused"
