"""The planner's state of a run: only what decides how the run continues. A fold of the run's own thread.

`RunProjection` holds every visit of a run. This holds one record per step, and the open visits: its size does not grow
with the number of visits, and folding a fact costs the same in a run's first and in its ten-thousandth visit.

The fold follows histories as the planner writes them. Any other fact (a repeat, a conflict, an unreadable entry) makes
the state not `plain`: then fold the whole thread to a `RunProjection`, and use `PlanState.of`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, JsonValue, PlainSerializer, TypeAdapter

from squid_dagster.protocol.anomalies import Reason, unreadable
from squid_dagster.protocol.entries import Entry, digest
from squid_dagster.protocol.facts import Fact, Runnable, RunnableApplied, RunSignalReceived, RunStarted
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.launches import Launch, latest_launches, launched_key, next_launch
from squid_dagster.protocol.folds.run import ManualState, RunProjection, manual_state, resolves, run_status
from squid_dagster.protocol.folds.visits import COMPENSATE, succeeded, undone_visit, visit_number, visit_of, visits
from squid_dagster.protocol.threads import idempotency_key, run_thread, runnable_key

FAIL = "fail"  # the target of a transition that fails the run
DUMP_VERSION = 2  # raise it when a rule or a field of `PlanState` changes: older checkpoints are then ignored
_RUN_PREFIX = run_thread("")
_CHILD_LINK = "child_run_started"
_ABSENT: Any = object()


# Keys of JSON objects cannot be tuples.
_ToUndo = Annotated[
    dict[tuple[str, int], JsonValue],
    PlainSerializer(lambda values: [[step, visit, result] for (step, visit), result in values.items()]),
    BeforeValidator(lambda rows: {(step, visit): result for step, visit, result in rows}),
]


class StepState(NamedTuple):
    """One step: how often it was entered, how many visits have an outcome, and the latest output, if there is one."""

    visits: int = 0
    applied: int = 0
    output: JsonValue = None
    has_output: bool = False


@dataclass(slots=True)
class PlanState:
    """What the planner reads of a run. Folds work in place; `roll_back` reverts those since `begin`."""

    run_id: str | None = None
    start: RunStarted | None = None
    steps: dict[str, StepState] = field(default_factory=dict)
    planned: dict[str, Runnable] = field(default_factory=dict)  # by runnable key, of open visits alone
    open: dict[str, int] = field(default_factory=dict)  # open visits by idempotency key: the last attempt planned
    launches: dict[str, Launch] = field(default_factory=dict)  # the latest of each open attempt, by runnable key
    to_undo: _ToUndo = field(default_factory=dict)  # results by step and visit, oldest first
    undo_failures: list[JsonObject] = field(default_factory=list)
    done: int = 0  # steps that have an outcome, compensations aside
    planned_visits: int = 0
    applied_visits: int = 0
    failure: JsonObject | None = None  # the error that the run will fail with, once everything is undone
    manual_state: ManualState | None = None
    terminal_status: str | None = None
    quarantined: bool = False
    readable: bool = True
    plain: bool = True
    facts: int = 0  # folded so far
    weight: int = 0  # about how many characters its inputs, outputs and results to undo have
    closed: frozenset[str] | None = None  # set by `of`: runnable keys of visits that are not open any more
    assumed: bool = False  # assumed for a run that is at one step alone: its history is unknown
    checkpoint: int = field(default=0, compare=False)  # the revision of its latest checkpoint
    saved: "PlanState | None" = field(default=None, repr=False, compare=False)  # set by `begin`
    changes: list[tuple[dict[Any, Any], Any, Any]] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def fold(cls, entries: Iterable[Entry]) -> Self:
        """Fold the entries of a run's own thread; the result is of no use unless it is `plain`."""
        state = cls()
        for entry in entries:
            state.add(entry)
        return state

    @classmethod
    def of(cls, run: RunProjection) -> Self:
        """Return the state of a run whose whole thread was folded, whatever is on it; not `plain`, so never cached."""
        state = cls(run.run_id, run.start, plain=False)
        state.manual_state, state.terminal_status = run.manual_state, run.terminal_status
        state.quarantined = run.quarantine is not None
        state.planned_visits, state.applied_visits = run.planned_visits, run.applied_visits
        state.readable = not any(
            anomaly.reason is Reason.MALFORMED_ENTRY and anomaly.entry_type != _CHILD_LINK for anomaly in run.anomalies
        )
        runnables = {key: plan.runnable for key, plan in run.planned.items() if plan.runnable is not None}
        entered = {runnable.idempotency_key: runnable.step for runnable in runnables.values()}
        for step in [*entered.values(), *(resolution.step for resolution in run.resolutions)]:
            state._enter(step)
        if run.manual_state is not None:
            state._enter(run.manual_state.step)
        closed = {runnable.idempotency_key for key, runnable in runnables.items() if key in run.applied}
        for key, runnable in runnables.items():
            if runnable.idempotency_key not in closed:
                state._open(key, runnable)
        state.closed = frozenset(run.planned).difference(state.planned)
        launches = latest_launches(run.command_history)
        done = {visit for visit in entered if visit not in state.open}
        state.launches = {key: launch for key, launch in launches.items() if visit_of("", key)[0] not in done}
        for visit in visits(run):
            state._apply(visit.runnable, visit.fact)
        undone = set(map(undone_visit, runnables.values()))
        state.to_undo = {visit: result for visit, result in state.to_undo.items() if visit not in undone}
        for resolution in run.resolutions:
            state._outcome(resolution.step, resolution.result, resolution.transition)
        return state

    def copy(self) -> Self:
        """Return an independent copy; what the containers hold is immutable and shared."""
        return replace(
            self,
            steps=dict(self.steps),
            planned=dict(self.planned),
            open=dict(self.open),
            launches=dict(self.launches),
            to_undo=dict(self.to_undo),
            undo_failures=list(self.undo_failures),
        )

    def begin(self) -> None:
        """Record what is folded from now on, for `roll_back`; the cost does not depend on the size of the state."""
        self.saved = replace(self, saved=None, changes=[])
        self.changes = []

    def roll_back(self) -> None:
        """Undo what was folded since `begin`."""
        assert self.saved is not None  # noqa: S101  the caller has called `begin`
        for values, key, known in reversed(self.changes):
            if known is _ABSENT:
                del values[key]
            else:
                values[key] = known
        for name in _SCALARS:
            setattr(self, name, getattr(self.saved, name))
        self.saved, self.changes = None, []

    def _set(self, values: dict[Any, Any], key: Any, value: Any) -> None:
        if self.saved is not None:
            self.changes.append((values, key, values.get(key, _ABSENT)))
        values[key] = value

    def _pop(self, values: dict[Any, Any], key: Any) -> Any:
        known = values.pop(key, _ABSENT)
        if self.saved is not None and known is not _ABSENT:
            self.changes.append((values, key, known))
        return known

    @property
    def size(self) -> int:
        """About how many facts take as long to fold as this takes to read: it grows with what is open."""
        return len(self.steps) + len(self.planned) + len(self.to_undo) + max(self.weight, 0) // 500

    def dump(self) -> str:
        """Return the state as JSON, for a checkpoint."""
        body = _adapter().dump_python(self, mode="json", exclude=_TRANSIENT)
        return json.dumps({"version": DUMP_VERSION, "digest": digest(body), "state": body})

    @classmethod
    def load(cls, text: str) -> "PlanState":
        """Read what `dump` wrote. Raises `ValueError` if that is damaged, or of another version of the fold."""
        dump = json.loads(text)
        if not isinstance(dump, dict) or dump.get("version") != DUMP_VERSION:
            raise ValueError("written by another version of the fold")
        if dump.get("digest") != digest(dump.get("state")):
            raise ValueError("damaged: its digest does not fit")
        return _adapter().validate_json(json.dumps(dump["state"]))

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self.terminal_status is not None

    @property
    def stopped(self) -> bool:
        """Whether nothing more is to be scheduled or applied: the run has ended, or is quarantined."""
        return self.terminal or self.quarantined

    @property
    def status(self) -> str:
        """The status of the run in one word, as `RunProjection.status`."""
        return run_status(
            self.terminal_status,
            self.quarantined,
            self.manual_state,
            self.planned_visits,
            self.applied_visits,
            self.start is not None,
        )

    def visits(self, step: str) -> int:
        """Return how often a step was entered so far."""
        return self.steps[step].visits if step in self.steps else 0

    def is_done(self, step: str) -> bool:
        """Return whether a visit of the step has an outcome."""
        return step in self.steps and self.steps[step].applied > 0

    def is_closed(self, key: str, visit_key: str, step: str) -> bool:
        """Return whether an attempt belongs to a visit that has its outcome."""
        if self.closed is not None and key in self.closed:
            return True
        if visit_key in self.open:
            return False
        number = visit_number(visit_key)
        if step.startswith(COMPENSATE):
            undone = step.removeprefix(COMPENSATE)
            return self.closed is None and number <= self.visits(undone) and (undone, number) not in self.to_undo
        return self.closed is None and number <= self.visits(step)

    def add(self, entry: Entry) -> None:
        """Fold one entry of the run's thread; one that the planner never writes makes the state not `plain`."""
        if not entry.thread.startswith(_RUN_PREFIX):
            return
        if unreadable(entry) is not None:
            if entry.fact.type == _CHILD_LINK:  # no plan depends on it, and not every host reads it
                self.facts += 1
            else:
                self.readable = self.plain = False
            return
        self.add_fact(entry.fact)  # type: ignore[arg-type]  # readable, and so a fact

    def add_fact(self, fact: Fact) -> None:
        """Fold one fact of the run's thread, as `add` does."""
        self.facts += 1
        if not self._follows(fact):
            self.plain = False

    def _follows(self, fact: Any) -> bool:
        """Follow a fact; return False, leaving the state unusable, if the planner would not write it."""
        if self.run_id is None:
            self.run_id = fact.run_id
        if fact.run_id != self.run_id:
            return False
        if fact.type == "run_signal_received":
            return self._launch(fact)
        if self.terminal:
            return False
        match fact.type:
            case "run_started":
                is_first, self.start = self.start is None, self.start or fact
                self.weight += _weight(fact.input)
                return is_first
            case "runnables_planned":
                return all(self._plan(runnable) for runnable in fact.runnables)
            case "runnable_applied":
                return self._close(fact)
            case "manual_step_paused":
                return self._pause(fact)
            case "manual_step_resolved":
                return self._resolve(fact)
            case "run_terminal":
                self.terminal_status, self.manual_state = fact.status, None
            case "entry_quarantined":
                self.quarantined = True
        return True

    def _launch(self, signal: RunSignalReceived) -> bool:
        key = launched_key(signal)
        if key in self.planned:
            self._set(self.launches, key, next_launch(self.launches.get(key), signal))
            return True
        # Where commits cannot span threads, an attempt may be on its queue before it is planned here.
        return key is None or self.is_closed(key, *visit_of(self.run_id or "", key))

    def _plan(self, runnable: Runnable) -> bool:
        run_id, step, key = self.run_id or "", runnable.step, runnable.idempotency_key
        number = visit_number(key)
        if key != idempotency_key(run_id, step, number) or runnable.runnable_key != runnable_key(
            run_id, step, number, runnable.attempt_number
        ):
            return False
        if runnable.attempt_number > 1:
            if self.open.get(key) != runnable.attempt_number - 1:
                return False
        elif (undone := undone_visit(runnable)) is not None:
            if undone not in self.to_undo:
                return False
            self.weight -= _weight(self.to_undo[undone])
            # A new dictionary: a rollback has to restore the order in which visits are undone, too.
            self.to_undo = {visit: result for visit, result in self.to_undo.items() if visit != undone}
            self._enter(step)
        else:
            if number != self.visits(step) + 1:
                return False
            self._enter(step)
        self.planned_visits += runnable.attempt_number == 1
        self._open(runnable.runnable_key, runnable)
        return True

    def _close(self, fact: RunnableApplied) -> bool:
        runnable = self.planned.get(fact.runnable_key)
        if runnable is None:
            return False
        last: int = self._pop(self.open, runnable.idempotency_key)
        for number in range(1, last + 1):
            for values in (self.planned, self.launches):
                popped = self._pop(values, f"{runnable.idempotency_key}:{number}")
                self.weight -= _weight(popped.input) if isinstance(popped, Runnable) else 0
        self.applied_visits += 1
        self._apply(runnable, fact)
        return True

    def _pause(self, fact: Any) -> bool:
        if self.manual_state is not None:
            return False
        self.manual_state = manual_state(fact)
        self._enter(fact.step)
        return True

    def _resolve(self, fact: Any) -> bool:
        if not resolves(self.manual_state, fact):
            return False
        self.manual_state = None
        self._outcome(fact.step, fact.result, fact.transition)
        return True

    def _enter(self, step: str) -> None:
        known = self.steps.get(step, StepState())
        self._set(self.steps, step, known._replace(visits=known.visits + 1))

    def _open(self, key: str, runnable: Runnable) -> None:
        visit = runnable.idempotency_key
        self.weight += _weight(runnable.input)
        self._set(self.planned, key, runnable)
        self._set(self.open, visit, max(self.open.get(visit, 0), runnable.attempt_number))

    def _apply(self, runnable: Runnable, fact: RunnableApplied) -> None:
        """Fold the outcome of a visit."""
        step = runnable.step
        if step.startswith(COMPENSATE):
            known = self.steps[step]
            self._set(self.steps, step, known._replace(applied=known.applied + 1))
            if not succeeded(fact):
                error = (fact.transition or {}).get("error")
                self.undo_failures = [*self.undo_failures, {"step": step.removeprefix(COMPENSATE), "error": error}]
            return
        if succeeded(fact):
            self._outcome(step, fact.result, fact.transition)
            if runnable.recovery is None or runnable.recovery.get("compensated"):
                self.weight += _weight(fact.result)
                self._set(self.to_undo, (step, visit_number(runnable.idempotency_key)), fact.result)
        else:
            self._count(step)
            self._note_failure(fact.transition)

    def _outcome(self, step: str, output: JsonValue, transition: JsonObject | None) -> None:
        self._count(step)
        known = self.steps[step]
        self.weight += _weight(output) - _weight(known.output)
        self._set(self.steps, step, known._replace(output=output, has_output=True))
        self._note_failure(transition)

    def _count(self, step: str) -> None:
        known = self.steps[step]
        self.done += known.applied == 0
        self._set(self.steps, step, known._replace(applied=known.applied + 1))

    def _note_failure(self, transition: JsonObject | None) -> None:
        if self.failure is None and transition is not None and transition.get("to") == FAIL:
            error = transition.get("error")
            self.failure = error if isinstance(error, dict) else {}


_SCALARS = tuple(
    column.name
    for column in fields(PlanState)
    if column.name not in ("steps", "planned", "open", "launches", "checkpoint", "saved", "changes")
)
# Not part of a checkpoint: fields that are set only during planning, or only in states that are never cached.
_TRANSIENT = {"closed", "assumed", "checkpoint", "saved", "changes"}


@cache
def _adapter() -> TypeAdapter[PlanState]:
    # Built on first use: most processes never touch a checkpoint.
    return TypeAdapter(PlanState)


def _weight(value: JsonValue) -> int:
    """Return about how many characters a value has."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + _weight(item) for key, item in value.items())
    return 1 + sum(map(_weight, value)) if isinstance(value, list) else 8
