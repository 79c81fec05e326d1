"""Rules about runs that wait for a decision, a definition, the retry of a dead letter, or recovery."""

from typing import Any

from squid_dagster.inspection.display import message_of, shown, shown_object, span, when
from squid_dagster.inspection.explain.case import Case
from squid_dagster.inspection.explain.reasons import Action, Diagnosis, RunReason, cancel, recover
from squid_dagster.protocol.folds.attempt import Attempt


def manual(case: Case) -> Diagnosis | None:
    """Explain a run that stands still until a person decides."""
    state = case.run.manual_state
    if state is None:
        return None
    run_id, since = case.record.run_id, f"since {when(state.paused_at)}, for {span(case.now - state.paused_at)}"
    if state.kind == "approval":
        summary = f"Step {state.step!r} waits for an approval {since}."
        actions = [
            Action("approve", f"squid.approve({run_id!r}, actor=...)"),
            Action("reject", f"squid.reject({run_id!r}, actor=...)"),
        ]
    else:
        summary = f"The run stands still at {state.step!r} {since}, until somebody resumes it."
        actions = [Action("resume", f"squid.resume({run_id!r})")]
    details: dict[str, Any] = {
        "step": state.step,
        "kind": state.kind,
        "paused_at": state.paused_at,
        "metadata": shown_object(state.metadata),
    }
    if case.hold is not None:
        details["held"] = case.hold._asdict()
        actions.insert(0, _register(case))
        summary += " Its definition is not registered here, so that a decision would be refused."
    return Diagnosis(
        RunReason.MANUAL_INTERVENTION_REQUIRED,
        summary,
        state.step,
        details,
        (*actions, cancel(run_id)),
        (case.record.last("manual_step_paused", state.step),),
    )


def held(case: Case) -> Diagnosis | None:
    """Explain a run whose definition is not registered."""
    hold = case.hold
    if hold is None:
        return None
    persisted = f"version {hold.persisted_version!r} of workflow {hold.workflow!r}"
    have = "no definition of it is registered here, and no live worker announces it"
    if hold.current_fingerprint is not None:
        have = f"registered is version {hold.current_version!r} (fingerprint {hold.current_fingerprint[:12]})"
    return Diagnosis(
        RunReason.HELD,
        f"The run was started with {persisted} (fingerprint {hold.persisted_fingerprint[:12]}), but {have}: "
        "it goes on once its own version is registered.",
        details={**hold._asdict(), "claimed_attempts": [attempt.runnable_key for attempt in case.claimed]},
        actions=(_register(case), cancel(case.record.run_id)),
        proofs=(case.record.first("run_started"),),
    )


def _whose(case: Case, attempt: Attempt, alone: bool) -> str:
    """Return what is known of what ended the last delivery's worker; nothing if that worker reported the failure."""
    letter = case.record.last("attempt_dead_lettered", attempt.runnable_key)
    if letter is None or getattr(letter.fact, "claim_id", None) is not None:
        return ""
    if alone:
        return " The last time nothing else ran in its worker: no other step can have ended it."
    return " It may have run beside others in its worker, one of which may have ended the process."


def dead_letter(case: Case) -> Diagnosis | None:
    """Explain a run with an attempt that was handed out as often as it may be, and never finished."""
    if not case.missing.dead_letters:
        return None
    first = case.missing.dead_letters[0]
    times = "once" if first.deliveries == 1 else f"{first.deliveries} times"
    claim = case.record.last("attempt_claimed", first.runnable_key)
    alone = claim is not None and bool(getattr(claim.fact, "alone", None))
    return Diagnosis(
        RunReason.DEAD_LETTER,
        f"Step {first.step!r} was handed out {times} and never finished; "
        f"it is a dead letter, and nobody tries again by themselves.{_whose(case, first, alone)}",
        first.step,
        {
            **_keys(case.missing.dead_letters),
            "deliveries": first.deliveries,
            "alone": alone,
            "error": shown(first.error),
        },
        (
            *(
                Action("retry_attempt", f"squid.retry_attempt({case.record.run_id!r}, {letter.runnable_key!r})")
                for letter in case.missing.dead_letters
            ),
            cancel(case.record.run_id),
        ),
        tuple(
            case.record.last(type_name, letter.runnable_key)
            for letter in case.missing.dead_letters
            for type_name in ("attempt_claimed", "attempt_dead_lettered")
        ),
    )


def result_pending_apply(case: Case) -> Diagnosis | None:
    """Explain a run that has not taken up a result that is on record."""
    if not case.missing.results:
        return None
    first = case.missing.results[0]
    return Diagnosis(
        RunReason.COMPLETED_RESULT_PENDING_APPLY,
        f"Step {first.step!r} was completed{_settled(first)}, but the run has not taken up the result yet.",
        first.step,
        _keys(case.missing.results),
        (recover(),),
        tuple(case.record.first("attempt_completed", attempt.runnable_key) for attempt in case.missing.results),
    )


def failure_pending_apply(case: Case) -> Diagnosis | None:
    """Explain a run that has not gone on from a failure that is on record."""
    if not case.missing.failures:
        return None
    first = case.missing.failures[0]
    return Diagnosis(
        RunReason.FAILURE_PENDING_APPLY,
        f"Step {first.step!r} failed for good{_settled(first)} ({message_of(first.error)}), "
        "but the run has not gone on from that yet.",
        first.step,
        {**_keys(case.missing.failures), "error": shown(first.error)},
        (recover(),),
        tuple(
            case.record.first("attempt_failed", attempt.runnable_key)
            or case.record.first("attempt_dead_lettered", attempt.runnable_key)
            for attempt in case.missing.failures
        ),
    )


def pending_schedule(case: Case) -> Diagnosis | None:
    """Explain a run with planned work that is on no queue."""
    if not case.missing.schedules:
        return None
    first = case.missing.schedules[0]
    keys = [runnable.runnable_key for runnable in case.missing.schedules]
    return Diagnosis(
        RunReason.PLANNED_DISPATCH_PENDING_SCHEDULE,
        f"Step {first.step!r} is planned, but not on the queue yet.",
        first.step,
        {"count": len(keys), "runnable_keys": keys},
        (recover(),),
        tuple(case.record.first("runnables_planned", key) for key in keys),
    )


def _register(case: Case) -> Action:
    hold = case.hold
    version = f"version {hold.persisted_version!r}" if hold is not None and hold.persisted_version else "that version"
    return Action(
        "register_definition",
        "Squid.connect(workflows=[...])",
        f"register {version} beside the new one, here and in the workers",
    )


def _settled(attempt: Attempt) -> str:
    return f" at {when(attempt.settled_at)}" if attempt.settled_at is not None else ""


def _keys(attempts: tuple[Attempt, ...]) -> dict[str, Any]:
    return {"count": len(attempts), "runnable_keys": [attempt.runnable_key for attempt in attempts]}
