"""Rules about runs whose work is on a queue: waiting for a worker, claimed by one, or not due yet; and all others."""

from collections.abc import Sequence
from typing import Any

from squid_dagster.inspection.display import brief, message_of, shown, span, when
from squid_dagster.inspection.explain.case import Case
from squid_dagster.inspection.explain.reasons import (
    Action,
    Diagnosis,
    RunReason,
    cancel,
    inspect_history,
    recover,
    wait,
)
from squid_dagster.inspection.fact_sentences import named
from squid_dagster.inspection.hold import Worker, executes
from squid_dagster.inspection.run_record import RETRY
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.folds.attempt import Attempt, AttemptStatus, definition_key, out_of_deliveries
from squid_dagster.workflow.authoring.draft import StepKind


def queue_paused(case: Case) -> Diagnosis | None:
    """Explain a run with work that could be claimed, were its queue not paused."""
    due = (*case.visible, *case.expired)
    if not due or not case.queue_paused:
        return None
    state = case.queue_state
    fact = state.fact if state is not None else None
    since = f" since {when(state.since)}" if state is not None and state.since is not None else ""
    return Diagnosis(
        RunReason.QUEUE_PAUSED,
        f"Queue {case.queue!r} is paused{since}: nobody can claim step {due[0].step!r} until it is resumed.",
        due[0].step,
        {**_keys(due), "queue": case.queue},
        (Action("resume_queue", f"squid.resume_queue({case.queue!r})"),),
        (fact, *(_origin(case, attempt) for attempt in due)),
    )


def no_worker_for_queue(case: Case) -> Diagnosis | None:
    """Explain a run with work on a queue that no live worker serves."""
    due = (*case.visible, *case.expired)
    if not due or case.workers is None or _serving(case):
        return None
    return Diagnosis(
        RunReason.NO_WORKER_FOR_QUEUE,
        f"{named(due[0].step)} has been waiting for {_waited(case, due[0])}, "
        f"but no live worker has announced itself for queue {case.queue!r}.",
        due[0].step,
        {**_keys(due), "queue": case.queue, "workers": _names(case.workers)},
        (Action("start_worker", f"squid.worker({case.queue!r})"),),
        tuple(_origin(case, attempt) for attempt in due),
    )


def no_worker_for_definition(case: Case) -> Diagnosis | None:
    """Explain a run with work that no worker of its queue has the definition of."""
    due = (*case.visible, *case.expired)
    if not due or case.workers is None or any(_takers(case, attempt) for attempt in due):
        return None
    first = due[0]
    version = f"version {first.definition_version!r} of " if first.definition_version is not None else ""
    mark = f" (fingerprint {first.definition_fingerprint[:12]})" if first.definition_fingerprint else ""
    return Diagnosis(
        RunReason.NO_WORKER_FOR_DEFINITION,
        f"{named(first.step)} has been waiting for {_waited(case, first)}, but none of the live workers of queue "
        f"{case.queue!r} has {version}workflow {first.workflow!r}{mark}.",
        first.step,
        {
            **_keys(due),
            "queue": case.queue,
            "workflow": first.workflow,
            "definition_version": first.definition_version,
            "definition_fingerprint": first.definition_fingerprint,
            "workers": _names(_serving(case)),
        },
        (
            Action(
                "start_worker",
                f"squid.worker({case.queue!r})",
                f"in a process that has {version}workflow {first.workflow!r} registered",
            ),
        ),
        tuple(_origin(case, attempt) for attempt in due),
    )


def expired_claim(case: Case) -> Diagnosis | None:
    """Explain a run with an attempt whose worker has let its lease run out."""
    if not case.expired:
        return None
    first = min(case.expired, key=lambda attempt: attempt.lease_until or attempt.last_at)
    over = _waited(case, first)
    spent = out_of_deliveries(first)
    next_ = "becomes a dead letter" if spent else _next_delivery(first)
    return Diagnosis(
        RunReason.EXPIRED_CLAIM,
        f"Worker {first.owner_id!r} let its lease on step {first.step!r} run out {over} ago: "
        f"with the next claim on the queue the attempt {next_}.",
        first.step,
        {
            **_keys(case.expired),
            "owner_id": first.owner_id,
            "oldest_lease_until": first.lease_until,
            "deliveries": first.deliveries,
            "max_deliveries": first.max_deliveries,
            **_workers(case, first),
        },
        (wait(f"a worker of queue {case.queue!r} takes it over by itself"), recover()),
        tuple(proof for attempt in case.expired for proof in _lease(case, attempt)),
    )


def _next_delivery(attempt: Attempt) -> str:
    if attempt.deliveries + 1 < attempt.max_deliveries:
        return "is handed to another worker"
    return "is handed to another worker, once it has nothing else to do: it is the last delivery"


def compensating(case: Case) -> Diagnosis | None:
    """Explain a run that has failed and is being undone before it ends."""
    at_work = (*case.claimed, *case.visible)
    if case.failure is None or not at_work:
        return None
    first = at_work[0]
    doing = f"worker {first.owner_id!r} is at it" if first.owner_id is not None else "it waits for a worker"
    return Diagnosis(
        RunReason.COMPENSATING,
        f"The run has failed ({message_of(case.failure)}) and ends once everything is undone. "
        f"{named(first.step)} is next, and {doing}.",
        first.step,
        {**_keys(at_work), "error": shown(case.failure)},
        (wait("the run ends as failed when its steps are undone"),),
        tuple(proof for attempt in at_work for proof in (_lease(case, attempt) or (_origin(case, attempt),))),
    )


def attempt_visible(case: Case) -> Diagnosis | None:
    """Explain a run with work that any worker may claim now."""
    if not case.visible:
        return None
    first = case.visible[0]
    takers = _takers(case, first)
    full = bool(takers) and all(worker.running >= worker.capacity for worker in takers)
    busy = f"; other attempts of the run are being worked on ({len(case.claimed)})" if case.claimed else ""
    busy += f"; all live workers that could take it are busy ({len(takers)})" if full else ""
    more_workers = (Action("start_worker", f"squid.worker({case.queue!r})"),) if full else ()
    return Diagnosis(
        RunReason.ATTEMPT_VISIBLE,
        f"{named(first.step)} has been waiting for a worker of queue {case.queue!r} for {_waited(case, first)}{busy}.",
        first.step,
        {**_keys(case.visible), "visible_since": first.visible_at, **_workers(case, first)},
        (wait(f"the next free worker of queue {case.queue!r} takes it"), *more_workers),
        tuple(_origin(case, attempt) for attempt in case.visible),
    )


def attempt_claimed(case: Case) -> Diagnosis | None:
    """Explain a run with work that a worker holds."""
    if not case.claimed:
        return None
    first = min(case.claimed, key=lambda attempt: attempt.lease_until or attempt.last_at)
    claim = case.record.last("attempt_claimed", first.runnable_key)
    since = f" for {span(case.now - claim.fact.occurred_at)}" if claim is not None else ""
    until = f" (lease until {when(first.lease_until)})" if first.lease_until is not None else ""
    return Diagnosis(
        RunReason.ATTEMPT_CLAIMED,
        f"Worker {first.owner_id!r} works on step {first.step!r}{since}{until}.",
        first.step,
        {
            **_keys(case.claimed),
            "owner_id": first.owner_id,
            "claimed_at": claim.fact.occurred_at if claim is not None else None,
            "earliest_lease_until": first.lease_until,
            "deliveries": first.deliveries,
        },
        (wait("the worker completes it, or its lease runs out and another worker takes it"),),
        tuple(proof for attempt in case.claimed for proof in _lease(case, attempt)),
    )


def scheduled_for_later(case: Case) -> Diagnosis | None:
    """Explain a run whose next attempt is not due yet: a retry, a deferral, a wait, or something else."""
    if not case.scheduled:
        return None
    first = case.scheduled[0]
    reason, clause, details = _why_later(case, first)
    return Diagnosis(
        reason,
        f"{clause} at {when(first.visible_at)}, in {span(first.visible_at - case.now)}.",
        first.step,
        {
            **_keys(case.scheduled),
            "next_visible_at": first.visible_at,
            **details,
            **({"queue_paused": True} if case.queue_paused else {}),
        },
        (wait(f"until {when(first.visible_at)}"),),
        tuple(_origin(case, attempt) for attempt in case.scheduled),
    )


def _why_later(case: Case, attempt: Attempt) -> tuple[RunReason, str, dict[str, Any]]:
    if (fact := case.deferral_of(attempt)) is not None:
        why = f" ({brief(fact.reason)})" if fact.reason else ""
        clause = f"{named(attempt.step)} has deferred itself{why} and comes back"
        return RunReason.DEFERRED_CONTINUATION, clause, {"deferred_at": fact.occurred_at, "deferral": fact.reason}
    if attempt.status is AttemptStatus.RETRY_SCHEDULED:
        failure = case.record.last(RETRY, attempt.runnable_key)
        error = shown(getattr(failure.fact, "error", None)) if failure is not None else None
        step = case.step_of(attempt)
        of = f" of {step.retry.max_attempts}" if step is not None and step.retry is not None else ""
        clause = f"{named(attempt.step)} failed ({message_of(error)}); attempt {attempt.attempt_number}{of} begins"
        return RunReason.RETRY_SCHEDULED, clause, {"attempt_number": attempt.attempt_number, "last_error": error}
    step = case.step_of(attempt)
    if step is not None and step.kind is StepKind.WAIT:
        return RunReason.WAIT_STEP, f"The run rests in wait {attempt.step!r} and goes on", {}
    return RunReason.ATTEMPT_SCHEDULED_FOR_LATER, f"{named(attempt.step)} becomes visible", {}


def nothing_open(case: Case) -> Diagnosis:
    """Explain a run of which no attempt is open; every run that no other rule explains ends up here."""
    run, run_id = case.run, case.record.run_id
    reason, proof = RunReason.WAITING_FOR_DISPATCH, case.record.last("runnables_planned")
    summary = (
        "The run has planned work, but none of its attempts can be claimed, is claimed, or is scheduled for later."
    )
    if run.status == "started":
        reason, proof = RunReason.RUN_STARTED, case.record.first("run_started")
        summary = "The run has started, but nothing was planned for it yet."
    elif run.status == "idle":
        reason, proof = RunReason.IDLE, case.record.last("runnable_applied")
        summary = "Everything that was planned is done, but the run was neither continued nor ended."
    elif case.record.unit.dispatch.fenced:
        proof = case.record.first("run_fenced")
        summary = "The queue was told that the run has ended, but the run itself has not ended."
    counts = {
        "planned_count": len(run.planned),
        "applied_count": len(run.applied),
        "attempt_count": len(case.record.unit.dispatch.attempts),
    }
    return Diagnosis(reason, summary, None, counts, (inspect_history(run_id), cancel(run_id)), (proof,))


def _origin(case: Case, attempt: Attempt) -> Entry | None:
    """Return the fact by which an unclaimed attempt is visible, or will be."""
    record, key = case.record, attempt.runnable_key
    entries = [record.last(name, key) for name in ("attempt_released", "attempt_scheduled", RETRY, "attempt_claimed")]
    return max((entry for entry in entries if entry is not None), key=lambda entry: entry.position, default=None)


def _lease(case: Case, attempt: Attempt) -> tuple[Entry, ...]:
    """Return the facts that say which worker holds an attempt, and until when; none for one without a claim."""
    claim = case.record.last("attempt_claimed", attempt.runnable_key)
    if attempt.owner_id is None or claim is None:
        return ()
    beat = case.record.last("attempt_heartbeat", attempt.runnable_key)
    return (claim, beat) if beat is not None and beat.position > claim.position else (claim,)


def _serving(case: Case) -> list[Worker]:
    return [worker for worker in case.workers or () if case.queue in worker.queues]


def _takers(case: Case, attempt: Attempt) -> list[Worker]:
    key = definition_key(attempt.workflow, attempt.definition_fingerprint)
    return [worker for worker in _serving(case) if executes(worker, key)]


def _workers(case: Case, attempt: Attempt) -> dict[str, Any]:
    return {} if case.workers is None else {"workers": _names(_takers(case, attempt))}


def _names(workers: Sequence[Worker]) -> list[str]:
    return sorted(worker.worker_id for worker in workers)


def _waited(case: Case, attempt: Attempt) -> str:
    return span(case.now - (attempt.due_at or attempt.visible_at))


def _keys(attempts: Sequence[Attempt]) -> dict[str, Any]:
    return {"count": len(attempts), "runnable_keys": [attempt.runnable_key for attempt in attempts]}
