"""Rules about runs that do not go on: ended, quarantined, with an entry that cannot be read, or never begun."""

from typing import Any

from squid_dagster.inspection.display import brief, message_of, shown, when, who, without_values
from squid_dagster.inspection.explain.case import Case
from squid_dagster.inspection.explain.reasons import Action, Diagnosis, RunReason, cancel, inspect_history, recover
from squid_dagster.protocol.entries import Entry, MalformedFact
from squid_dagster.protocol.folds.plan_state import FAIL


def terminal(case: Case) -> Diagnosis | None:
    """Explain a run that has ended: how, when and, where it is on record, and what caused it."""
    run = case.run
    if run.terminal_status is None:
        return None
    end = case.record.first("run_terminal")
    at = f" at {when(run.ended_at)}" if run.ended_at is not None else ""
    details: dict[str, Any] = {"terminal_status": run.terminal_status, "ended_at": run.ended_at}
    proofs: tuple[Entry | None, ...] = (end,)
    actions: tuple[Action, ...] = ()
    summary, step = f"The run completed{at}.", None
    if run.terminal_status == "failed":
        failing = _failing(case)
        step = _step_of(failing)
        proofs = (failing, end)
        place = f" in step {step!r}" if step is not None else ""
        summary = f"The run failed{place}{at}: {message_of(run.terminal_error)}."
        details["error"] = shown(run.terminal_error)
        actions = _replay(case)
    elif run.terminal_status == "cancelled":
        signal = case.record.last("run_signal_received", "cancel_run")
        proofs = (signal, end)
        summary = f"The run was cancelled{at}{_by(signal)}."
        actions = _replay(case)
    if case.missing.fence:
        details["unfenced"] = True
        actions = (*actions, recover())
    return Diagnosis(RunReason.TERMINAL, summary, step, details, actions, proofs)


def quarantined(case: Case) -> Diagnosis | None:
    """Explain a run that was stopped because one of its entries cannot be read."""
    quarantine = case.run.quarantine
    if quarantine is None:
        return None
    proofs = [e for e in case.record.entries if (e.thread, e.seq) == (quarantine.thread, quarantine.seq)]
    reason = without_values(quarantine.reason)
    return Diagnosis(
        RunReason.QUARANTINED,
        f"The run is quarantined: entry {quarantine.seq} of thread {quarantine.thread!r} cannot be read "
        f"({brief(reason)}).",
        details={"thread": quarantine.thread, "revision": quarantine.seq, "reason": reason},
        actions=(inspect_history(case.record.run_id), cancel(case.record.run_id)),
        proofs=(*proofs, case.record.first("entry_quarantined")),
    )


def unreadable_entry(case: Case) -> Diagnosis | None:
    """Explain a run with an entry that cannot be read, and that is not quarantined yet."""
    unreadable = case.record.unreadable
    if not unreadable:
        return None
    entry = unreadable[0]
    reason = without_values(entry.fact.reason) if isinstance(entry.fact, MalformedFact) else ""
    return Diagnosis(
        RunReason.UNREADABLE_ENTRY,
        f"Entry {entry.seq} of thread {entry.thread!r} cannot be read ({brief(reason)}): "
        "whoever meets it next will quarantine the run.",
        details={
            "thread": entry.thread,
            "revision": entry.seq,
            "type": entry.fact.type,
            "reason": reason,
            "unreadable_count": len(unreadable),
        },
        actions=(inspect_history(case.record.run_id),),
        proofs=tuple(unreadable),
    )


def not_started(case: Case) -> Diagnosis | None:
    """Explain a run that facts name although none of them has started it."""
    if case.run.start is not None:
        return None
    first = case.record.entries[0]
    return Diagnosis(
        RunReason.NOT_STARTED,
        f"Facts name this run since {when(first.fact.occurred_at)}, but no fact has started it.",
        details={"fact_count": len(case.record.entries)},
        actions=(inspect_history(case.record.run_id),),
        proofs=(first,),
    )


def _failing(case: Case) -> Entry | None:
    """Return the fact by which the run decided to fail."""
    decisions = [*case.record.every("runnable_applied"), *case.record.every("manual_step_resolved")]
    failing = [e for e in decisions if (getattr(e.fact, "transition", None) or {}).get("to") == FAIL]
    return min(failing, key=lambda entry: entry.position, default=None)


def _step_of(failing: Entry | None) -> str | None:
    step = (getattr(failing.fact, "transition", None) or {}).get("from") if failing is not None else None
    return step if isinstance(step, str) else None


def _by(signal: Entry | None) -> str:
    fact: Any = signal.fact if signal is not None else None
    if fact is None:
        return ""
    by = f" by {who(fact.actor)}" if fact.actor is not None else ""
    return f"{by}: {brief(fact.comment)}" if fact.comment is not None else by


def _replay(case: Case) -> tuple[Action, ...]:
    """Return the call of a replay, with a note about steps that cannot be repeated safely."""
    run, run_id = case.run, case.record.run_id
    done = [run.planned[key].runnable for key in run.applied if key in run.planned]
    unsafe = sorted(
        {runnable.step for runnable in done if runnable and (runnable.recovery or {}).get("irreversible") is True}
    )
    if not unsafe:
        return (Action("replay", f"squid.replay({run_id!r})", "starts a new run with the same input"),)
    note = f"starts a new run and repeats what cannot be undone: {', '.join(unsafe)}"
    return (Action("replay", f"squid.replay({run_id!r}, allow_irreversible=True)", note),)
