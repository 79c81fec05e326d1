"""The run fold: a run's plan, results, commands and end from the facts of its own thread."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, Self

from squid_dagster.protocol.anomalies import Anomaly, Reason, anomaly, unreadable
from squid_dagster.protocol.entries import Entry, digest
from squid_dagster.protocol.facts import (
    ChildRunStarted,
    EntryQuarantined,
    ManualStepPaused,
    ManualStepResolved,
    Runnable,
    RunnableApplied,
    RunnablesPlanned,
    RunSignalReceived,
    RunStarted,
    RunTerminal,
)
from squid_dagster.protocol.threads import run_thread


class Planned(NamedTuple):
    """A planned runnable; only its digest if it was read from a view."""

    stored_digest: str | None
    runnable: Runnable | None = None

    @property
    def digest(self) -> str:
        """The digest that distinguishes a repeated plan from a conflicting one; computed on use, which is rare."""
        return plan_digest(self.runnable) if self.runnable is not None else self.stored_digest or ""


class Applied(NamedTuple):
    """An applied outcome; only its digest if it was read from a view."""

    stored_digest: str | None
    fact: RunnableApplied | None = None

    @property
    def digest(self) -> str:
        """The digest that distinguishes a repeated application from a conflicting one; computed on use."""
        if self.fact is None:
            return self.stored_digest or ""
        return application_digest(self.fact.result, self.fact.transition)


class Child(NamedTuple):
    """A linked child run; only its digest if it was read from a view."""

    digest: str
    fact: ChildRunStarted | None = None


class ManualState(NamedTuple):
    """The decision of a person that the run waits for."""

    step: str
    kind: str
    paused_at: datetime
    metadata: dict[str, Any]


class Quarantine(NamedTuple):
    """An entry of the run that cannot be read."""

    thread: str
    seq: int
    reason: str


# Which action resolves which kind of manual step.
_RESOLVES = {"pause": ("resumed",), "approval": ("approved", "rejected")}
_RUN_PREFIX = run_thread("")


@dataclass(slots=True)
class RunProjection:
    """The fold of a run's own thread. A value: `fold` works on a copy."""

    run_id: str | None = None
    start: RunStarted | None = None
    stored_start_digest: str | None = None  # if the start was read from a view
    planned: dict[str, Planned] = field(default_factory=dict)
    applied: dict[str, Applied] = field(default_factory=dict)
    planned_visits: int = 0
    applied_visits: int = 0
    children: dict[str, Child] = field(default_factory=dict)
    command_history: list[RunSignalReceived] = field(default_factory=list)
    resolutions: list[ManualStepResolved] = field(default_factory=list)
    manual_state: ManualState | None = None
    terminal_status: str | None = None
    terminal_digest: str | None = None
    terminal_error: dict[str, Any] | None = None
    ended_at: datetime | None = None
    quarantine: Quarantine | None = None
    anomalies: list[Anomaly] = field(default_factory=list)

    @classmethod
    def fold(cls, entries: Iterable[Entry], onto: "RunProjection | None" = None) -> "RunProjection":
        """Fold entries in order, onto an earlier projection if given; neither is changed. Never raises."""
        run = onto.copy() if onto is not None else cls()
        for entry in entries:
            apply_run(run, entry)
        return run

    def copy(self) -> Self:
        """Return an independent copy; what the containers hold is immutable and shared."""
        return replace(
            self,
            planned=dict(self.planned),
            applied=dict(self.applied),
            children=dict(self.children),
            command_history=list(self.command_history),
            resolutions=list(self.resolutions),
            anomalies=list(self.anomalies),
        )

    @property
    def status(self) -> str:
        """The status of the run in one word, from its own thread alone."""
        return run_status(
            self.terminal_status,
            self.quarantine is not None,
            self.manual_state,
            self.planned_visits,
            self.applied_visits,
            self.start is not None or self.stored_start_digest is not None,
        )

    @property
    def start_digest(self) -> str | None:
        """The digest that distinguishes a repeated start from a conflicting one; None before the start."""
        if self.start is None:
            return self.stored_start_digest
        return digest(start_content(self.start))

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self.terminal_status is not None

    @property
    def stopped(self) -> bool:
        """Whether nothing more is to be scheduled or applied: the run has ended, or is quarantined."""
        return self.terminal or self.quarantine is not None


def run_status(
    terminal_status: str | None,
    quarantined: bool,
    manual_state: ManualState | None,
    planned_visits: int,
    applied_visits: int,
    started: bool,
) -> str:
    """Return the status of a run in one word."""
    if terminal_status is not None:
        return terminal_status
    if quarantined:
        return "quarantined"
    if manual_state is not None:
        return "paused"
    if planned_visits == 0:
        return "started" if started else "new"
    return "idle" if applied_visits >= planned_visits else "running"


def apply_run(run: RunProjection, entry: Entry) -> None:
    """Fold one entry into `run`, in place: follow it, ignore it, or record an anomaly and change nothing else."""
    if not entry.thread.startswith(_RUN_PREFIX):
        return
    reason = unreadable(entry) or _judge(run, entry)
    if reason is not None:
        run.anomalies.append(anomaly(reason, entry))


def _judge(run: RunProjection, entry: Entry) -> Reason | None:
    """Follow an entry, or return the reason why it is refused."""
    fact: Any = entry.fact
    if run.run_id is not None and run.run_id != fact.run_id:
        return Reason.WRONG_RUN
    run.run_id = fact.run_id
    if fact.type == "run_signal_received":
        run.command_history.append(fact)
        return None
    if fact.type == "run_terminal":
        return _terminal(run, fact)
    if run.terminal:
        return Reason.TERMINAL_RUN
    match fact.type:
        case "run_started":
            return _start(run, fact)
        case "runnables_planned":
            _plan(run, entry, fact)
        case "runnable_applied":
            return _apply(run, fact)
        case "child_run_started":
            return _child(run, fact)
        case "manual_step_paused":
            return _pause(run, fact)
        case "manual_step_resolved":
            return _resolve(run, fact)
        case "entry_quarantined":
            _quarantine(run, fact)
    return None


def _start(run: RunProjection, fact: RunStarted) -> Reason | None:
    if run.start is not None or run.stored_start_digest is not None:
        same = run.start_digest == RunProjection(start=fact).start_digest
        return None if same else Reason.CONFLICTING_RUN_START
    run.start = fact
    return None


def _plan(run: RunProjection, entry: Entry, fact: RunnablesPlanned) -> None:
    for runnable in fact.runnables:
        known = run.planned.get(runnable.runnable_key)
        if known is None:
            run.planned[runnable.runnable_key] = Planned(None, runnable)
            # A retry is another attempt at a visit that was counted when it was first planned.
            run.planned_visits += runnable.attempt_number == 1
        elif known.digest != plan_digest(runnable):
            run.anomalies.append(anomaly(Reason.CONFLICTING_RUNNABLE_INTENT, entry, runnable.runnable_key))


def plan_digest(runnable: Runnable) -> str:
    """Return the digest that distinguishes a repeated plan from a conflicting one."""
    return digest(plan_content(runnable))


def plan_content(runnable: Runnable) -> list[Any]:
    """Return what the digest of a plan covers."""
    return [
        runnable.idempotency_key,
        runnable.attempt_number,
        runnable.queue,
        runnable.step,
        runnable.input,
        runnable.visible_at.isoformat(),
    ]


def start_content(start: RunStarted) -> dict[str, Any]:
    """Return what the digest of a start covers."""
    return start.model_dump(mode="json", exclude={"occurred_at"})


def application_digest(result: Any, transition: dict[str, Any] | None) -> str:
    """Return the digest that distinguishes a repeated application from a conflicting one."""
    return digest([result, transition])


def _apply(run: RunProjection, fact: RunnableApplied) -> Reason | None:
    if fact.runnable_key not in run.planned:
        return Reason.UNKNOWN_RUNNABLE_INTENT
    known = run.applied.get(fact.runnable_key)
    if known is not None:
        same = known.digest == application_digest(fact.result, fact.transition)
        return None if same else Reason.CONFLICTING_RESULT
    run.applied[fact.runnable_key] = Applied(None, fact)
    run.applied_visits += 1
    return None


def _child(run: RunProjection, fact: ChildRunStarted) -> Reason | None:
    link = digest([fact.child_workflow, fact.child_trigger, fact.child_key, fact.metadata])
    known = run.children.get(fact.child_run_id)
    if known is not None:
        return None if known.digest == link else Reason.CONFLICTING_CHILD_RUN
    run.children[fact.child_run_id] = Child(link, fact)
    return None


def manual_state(fact: ManualStepPaused) -> ManualState:
    """Return what a run waits for after a pause."""
    return ManualState(fact.step, fact.kind, fact.paused_at or fact.occurred_at, fact.metadata)


def _pause(run: RunProjection, fact: ManualStepPaused) -> Reason | None:
    state = manual_state(fact)
    if run.manual_state is not None:
        return None if run.manual_state == state else Reason.ACTIVE_MANUAL_STEP
    run.manual_state = state
    return None


def resolves(state: ManualState | None, fact: ManualStepResolved) -> bool:
    """Return whether a decision is one that the run waits for."""
    return state is not None and state.step == fact.step and fact.action in _RESOLVES[state.kind]


def _resolve(run: RunProjection, fact: ManualStepResolved) -> Reason | None:
    if not resolves(run.manual_state, fact):
        return Reason.STALE_MANUAL_RESOLUTION
    run.manual_state = None
    run.resolutions.append(fact)
    return None


def _terminal(run: RunProjection, fact: RunTerminal) -> Reason | None:
    end = end_digest(fact.status, fact.error)
    if run.terminal_digest is not None:
        return None if run.terminal_digest == end else Reason.TERMINAL_RUN
    run.terminal_status, run.terminal_digest, run.terminal_error = fact.status, end, fact.error
    run.ended_at, run.manual_state = fact.occurred_at, None
    return None


def end_digest(status: str, error: dict[str, Any] | None) -> str:
    """Return the digest that distinguishes a repeated end from a conflicting one."""
    return _plain_end_digest(status) if error is None else digest([status, error])


@cache
def _plain_end_digest(status: str) -> str:
    return digest([status, None])


def _quarantine(run: RunProjection, fact: EntryQuarantined) -> None:
    # Only the first unreadable entry counts: it is why the run stopped.
    if run.quarantine is None:
        run.quarantine = Quarantine(fact.entry_thread, fact.entry_seq, fact.reason)
