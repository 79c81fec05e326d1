"""The nodes of a run's graph: every step that is declared or was seen, its compensations, and the ends of the run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from squid_dagster.inspection.deadlines import DeadlineState, DeadlineView, open_deadlines
from squid_dagster.inspection.display import shown, shown_object
from squid_dagster.inspection.explain.case import Case
from squid_dagster.inspection.snapshot.parts import AttemptView, ManualView, view_attempt, view_manual, visit_of
from squid_dagster.protocol.facts import ManualStepResolved, RunnableApplied
from squid_dagster.protocol.folds.attempt import Attempt, AttemptStatus
from squid_dagster.protocol.folds.visits import COMPENSATE
from squid_dagster.workflow.authoring.draft import COMPLETE, ENDS


class NodeStatus(StrEnum):
    """Where a step stands, by its latest visit."""

    WAITING = "waiting"  # the run has not come here
    PENDING = "pending"  # planned, or waiting for a worker
    SCHEDULED = "scheduled"  # not due yet
    DEFERRED = "deferred"
    RETRYING = "retrying"
    RUNNING = "running"
    EXPIRED = "expired"  # its worker has let the lease run out
    COMPLETING = "completing"  # done, not taken up by the run yet
    COMPLETED = "completed"
    PAUSED = "paused"
    REJECTED = "rejected"
    FAILED = "failed"
    DEAD_LETTER = "dead_letter"
    CANCELLED = "cancelled"  # open when the run ended
    SKIPPED = "skipped"  # the run has ended and never came here


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One step, compensation or end. `kind` is step, wait, log, pause, approval, external, compensation, end or, where
    no definition tells, unknown. What a step took and gave is only there when history was asked for.
    """

    id: str
    kind: str
    status: NodeStatus
    current: bool
    visits: int
    attempt_count: int
    deadline: DeadlineView | None = None
    transition: dict[str, Any] | None = None
    recovery: dict[str, Any] | None = None
    manual_state: ManualView | None = None
    input: Any = None
    output: Any = None
    error: Any = None
    attempts: tuple[AttemptView, ...] = ()

    @property
    def manual(self) -> bool:
        """Whether a person decides here."""
        return self.kind in ("pause", "approval")

    @property
    def late(self) -> bool:
        """Whether it has a deadline that is over, or nearly so."""
        return self.deadline is not None and self.deadline.state is not DeadlineState.ON_TIME


@dataclass(slots=True)
class StepHistory:
    """What the facts say about one step."""

    attempts: list[Attempt] = field(default_factory=list)
    visits: set[str] = field(default_factory=set)
    pauses: set[datetime] = field(default_factory=set)
    outcomes: dict[str, RunnableApplied] = field(default_factory=dict)
    resolution: ManualStepResolved | None = None
    runnable_input: Any = None

    @property
    def visit_count(self) -> int:
        """How often the run came here."""
        return len(self.visits) + len(self.pauses)

    @property
    def outcome(self) -> RunnableApplied | None:
        """What was applied last."""
        return next(reversed(self.outcomes.values()), None)

    @property
    def latest(self) -> Attempt | None:
        """The last attempt at the latest visit."""
        return max(self.attempts, key=lambda a: (visit_of(a.idempotency_key), a.attempt_number), default=None)


def stories(case: Case) -> dict[str, StepHistory]:
    """Return what the facts say of each step, in the order of its first appearance."""
    by_step: dict[str, StepHistory] = {}

    def of(step: str) -> StepHistory:
        return by_step.setdefault(step, StepHistory())

    for plan in case.run.planned.values():
        if plan.runnable is not None:
            story = of(plan.runnable.step)
            story.visits.add(plan.runnable.idempotency_key)
            story.runnable_input = plan.runnable.input
    for attempt in case.record.unit.dispatch.attempts.values():
        story = of(attempt.step)
        story.attempts.append(attempt)
        story.visits.add(attempt.idempotency_key)
    for key, applied in case.run.applied.items():
        planned = case.run.planned.get(key)
        if planned is not None and planned.runnable is not None and applied.fact is not None:
            of(planned.runnable.step).outcomes[planned.runnable.idempotency_key] = applied.fact
    for entry in case.record.every("manual_step_paused"):
        pause: Any = entry.fact
        of(pause.step).pauses.add(pause.paused_at or pause.occurred_at)
    for resolution in case.run.resolutions:
        of(resolution.step).resolution = resolution
    return by_step


def current_steps(case: Case) -> tuple[str, ...]:
    """Return the steps at which the run is now, each once; none when it has stopped."""
    if case.run.stopped:
        return ()
    manual = [case.run.manual_state.step] if case.run.manual_state is not None else []
    at_work = (*case.visible, *case.external, *case.expired, *case.claimed, *case.scheduled, *case.missing.dead_letters)
    return tuple(dict.fromkeys([*manual, *(attempt.step for attempt in at_work)]))


def make_nodes(case: Case, seen: Mapping[str, StepHistory], *, history: bool) -> list[GraphNode]:
    """Return a node for each step: first the declared ones in their order, then others of the facts."""
    declared = tuple(case.definition.steps) if case.definition is not None else ()
    current = set(current_steps(case))
    deadlines = {deadline.step: deadline for deadline in reversed(open_deadlines(case.run, case.now))}
    names = dict.fromkeys([*declared, *seen])
    return [_step(case, name, seen.get(name), name in current, deadlines.get(name), history=history) for name in names]


def make_end(case: Case, name: str) -> GraphNode:
    """Return the node of one of the ends, "complete" or "fail"."""
    reached = NodeStatus.COMPLETED if name == COMPLETE else NodeStatus.FAILED
    status = NodeStatus.SKIPPED if case.run.terminal else NodeStatus.WAITING
    here = case.run.terminal_status == reached.value
    return GraphNode(
        id=name, kind="end", status=reached if here else status, current=False, visits=int(here), attempt_count=0
    )


def _step(
    case: Case, name: str, story: StepHistory | None, current: bool, deadline: DeadlineView | None, *, history: bool
) -> GraphNode:
    story = story or StepHistory()
    state = case.run.manual_state
    manual = view_manual(state, deadline) if state is not None and state.step == name else None
    details: dict[str, Any] = {}
    if history:
        latest = story.latest
        details = {
            "input": shown(story.runnable_input),
            "output": shown(_output(story)),
            "error": shown(latest.error) if latest is not None else None,
            "manual_state": manual,
            "attempts": tuple(view_attempt(attempt, case.record) for attempt in story.attempts),
        }
    return GraphNode(
        id=name,
        kind=_kind(case, name, story, paused=manual is not None),
        status=_status(case, name, story),
        current=current,
        visits=story.visit_count,
        attempt_count=len(story.attempts),
        deadline=deadline,
        transition=_transition(story),
        recovery=_recovery(case, name),
        **details,
    )


def _kind(case: Case, name: str, story: StepHistory, *, paused: bool) -> str:
    if name.startswith(COMPENSATE):
        return "compensation"
    step = case.definition.steps.get(name) if case.definition is not None else None
    if step is not None:
        return step.kind.value
    state = case.run.manual_state
    if paused and state is not None:
        return state.kind
    if story.resolution is not None:
        return "pause" if story.resolution.action == "resumed" else "approval"
    return "unknown"


def _status(case: Case, name: str, story: StepHistory) -> NodeStatus:
    state, latest = case.run.manual_state, story.latest
    if state is not None and state.step == name:
        return NodeStatus.PAUSED
    if story.pauses:
        return _of_manual(case, name, story)
    if latest is None:
        if case.run.terminal:
            return NodeStatus.CANCELLED if story.visits else NodeStatus.SKIPPED
        return NodeStatus.PENDING if story.visits else NodeStatus.WAITING
    outcome = story.outcomes.get(latest.idempotency_key)
    if outcome is not None:
        failed = (outcome.transition or {}).get("on") == "error"
        return NodeStatus.FAILED if failed else NodeStatus.COMPLETED
    return _of_attempt(case, latest)


def _of_manual(case: Case, name: str, story: StepHistory) -> NodeStatus:
    """Return the state of a manual step at which the run does not stand now."""
    asked = case.record.last("manual_step_paused", name)
    answered = case.record.last("manual_step_resolved", name)
    if answered is None or story.resolution is None or (asked is not None and asked.position > answered.position):
        return NodeStatus.CANCELLED  # the run ended before a decision
    return NodeStatus.REJECTED if story.resolution.action == "rejected" else NodeStatus.COMPLETED


def _of_attempt(case: Case, attempt: Attempt) -> NodeStatus:
    match attempt.status:
        case AttemptStatus.COMPLETED:
            return NodeStatus.COMPLETING
        case AttemptStatus.FAILED:
            return NodeStatus.FAILED
        case AttemptStatus.DEAD_LETTERED:
            return NodeStatus.DEAD_LETTER
    if case.run.terminal or case.record.unit.dispatch.fenced:
        return NodeStatus.CANCELLED
    if attempt.status is AttemptStatus.CLAIMED:
        return NodeStatus.EXPIRED if attempt.expired(case.now) else NodeStatus.RUNNING
    if attempt in case.external and case.launch_of(attempt) is not None:
        return NodeStatus.RUNNING
    if attempt.status is AttemptStatus.RETRY_SCHEDULED:
        return NodeStatus.RETRYING
    if attempt.visible_at <= case.now:
        return NodeStatus.PENDING
    return NodeStatus.DEFERRED if case.deferral_of(attempt) is not None else NodeStatus.SCHEDULED


def _output(story: StepHistory) -> Any:
    if story.resolution is not None:
        return story.resolution.result
    return story.outcome.result if story.outcome is not None else None


def _transition(story: StepHistory) -> dict[str, Any] | None:
    fact = story.resolution or story.outcome
    return shown_object(fact.transition) if fact is not None and fact.transition is not None else None


def _recovery(case: Case, name: str) -> dict[str, Any] | None:
    step = case.definition.steps.get(name) if case.definition is not None else None
    return step.recovery() if step is not None and not step.is_manual and name not in ENDS else None
