"""The planner: which facts follow from a start, an outcome, a decision, a retry. Pure: the caller appends them.

A step of kind wait is a runnable that becomes visible when the wait is over. Manual steps are never scheduled: reaching
one pauses the run. An external step is a runnable in a lane that no worker serves. When a run fails, what it has done
is undone one step after another, newest first, before it ends.
"""

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from pydantic import JsonValue

from squid_dagster.protocol.errors import InvalidTransition
from squid_dagster.protocol.facts import (
    AttemptScheduled,
    Fact,
    ManualStepPaused,
    ManualStepResolved,
    Runnable,
    RunnableApplied,
    RunnablesPlanned,
    RunQueued,
    RunStarted,
)
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.attempt import Attempt, AttemptStatus
from squid_dagster.protocol.folds.plan_state import FAIL, PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.unknown_state import StateMissing
from squid_dagster.protocol.folds.visits import COMPENSATE
from squid_dagster.workflow.authoring.draft import COMPLETE, Outcome, StepKind
from squid_dagster.workflow.definition import Definition, Mode, Route, StepDefinition
from squid_dagster.workflow.errors import InvalidInput
from squid_dagster.workflow.planner.binding import bind, bind_compensation
from squid_dagster.workflow.planner.dead_letters import goes_on_from_dead_letter
from squid_dagster.workflow.planner.known_values import known_values, state_of
from squid_dagster.workflow.planner.schedule import pause_of, plan_end, queue_of, runnable_of, schedule
from squid_dagster.workflow.planner.size_limits import SizeLimit, brief_error

_ACTIONS: dict[str, Outcome] = {"resumed": "ok", "approved": "ok", "rejected": "error"}


def plan_start(definition: Definition, start: RunStarted) -> list[Fact]:
    """Return the facts that follow a start: the first steps planned and scheduled, or the run paused.

    Raises:
        InvalidInput: the payload does not provide what a first step takes.
    """
    planning = _Planning(definition, PlanState(run_id=start.run_id, start=start), start.occurred_at)
    planning.facts.append(RunQueued(run_id=start.run_id, queue=planning.queue, occurred_at=start.occurred_at))
    planning.enter(planning.prepare(definition.entry_steps, start.input))
    return planning.facts


def plan_settled(
    definition: Definition,
    run: PlanState | RunProjection,
    settled: Iterable[Attempt],
    attempts: Mapping[str, Attempt],
    now: datetime,
    *,
    max_fact_bytes: int | None = None,
) -> list[Fact]:
    """Return the facts that follow from attempts that were completed, have failed or were given up.

    `attempts` are the attempts of these visits, among them the retries that failures have created. Nothing follows from
    what is applied already, from a deferral, or for a run that has stopped or cannot be read whole. A `PlanState` is
    changed: what is returned is folded into it. With `max_fact_bytes`, every fact is one that can be written: a
    successor whose input is too large fails the run, with the outcome applied as it is.
    """
    state = state_of(run)
    if not state.readable:
        return []
    planning = _Planning(definition, state, now, max_fact_bytes)
    for attempt in settled:
        planning.settle(attempt, attempts)
    return planning.facts


def taken_route(definition: Definition, state: PlanState, step_name: str, result: JsonValue) -> int | None:
    """Return the place of the route that a step's success takes, among those of the step; None if none fits.

    Raises:
        StateMissing: a condition looks at what an assumed state does not know.
    """
    step = definition.steps[step_name]
    values = known_values(definition, state, {} if step.output is None else {step.output: result})
    return _fitting(definition.routes.get((step_name, "ok"), ()), values)


def _fitting(routes: Sequence[Route], values: Mapping[str, JsonValue]) -> int | None:
    return next((place for place, route in enumerate(routes) if route.when is None or route.when.holds(values)), None)


def plan_resolution(
    definition: Definition,
    run: PlanState | RunProjection,
    action: str,
    result: JsonObject,
    metadata: JsonObject,
    now: datetime,
    *,
    max_fact_bytes: int | None = None,
) -> list[Fact]:
    """Return the facts that follow from a person's decision: "resumed", "approved" or "rejected".

    As in `plan_settled`, a `PlanState` is changed.

    Raises:
        InvalidTransition: the run does not wait for such a decision.
    """
    state = state_of(run)
    manual = state.manual_state
    wanted = "pause" if action == "resumed" else "approval"
    if state.stopped or manual is None or manual.kind != wanted:
        waits = f"waits at {manual.kind} {manual.step!r}" if manual is not None else f"is {state.status}"
        raise InvalidTransition(f"run {state.run_id!r} {waits}: there is nothing that could be {action}")
    return _Planning(definition, state, now, max_fact_bytes).resolve(manual.step, action, result, metadata)


class _Planning:
    """A plan: each fact is folded as it is added, so that the next decision sees it."""

    def __init__(
        self, definition: Definition, state: PlanState, now: datetime, max_fact_bytes: int | None = None
    ) -> None:
        self.definition = definition
        self.state = state
        self.now = now
        self.run_id = state.run_id or ""
        self.queue = queue_of(state)
        self.facts: list[Fact] = []
        self.limit = (
            None if max_fact_bytes is None else SizeLimit(max_fact_bytes)
        )  # None: facts are checked by the caller
        self.not_undone: list[JsonValue] = []

    def add(self, fact: Fact) -> None:
        self.facts.append(fact)
        self.state.add_fact(fact)

    # --- outcomes ---------------------------------------------------------------------------------------------------

    def settle(self, attempt: Attempt, attempts: Mapping[str, Attempt]) -> None:
        key, state = attempt.runnable_key, self.state
        if state.is_closed(key, attempt.idempotency_key, attempt.step):
            return
        if key not in state.planned:
            self._settle_earlier(attempt, attempts)
        if state.stopped or key not in state.planned:
            return
        if attempt.status is AttemptStatus.COMPLETED:
            self._succeeded(attempt)
        elif attempt.status is AttemptStatus.FAILED:
            retry = attempts.get(f"{attempt.idempotency_key}:{attempt.attempt_number + 1}")
            if retry is None:
                self._failed(attempt)
            elif retry.runnable_key not in state.planned:
                self._mirror(attempt, retry)
        elif attempt.status is AttemptStatus.DEAD_LETTERED and goes_on_from_dead_letter(
            self.definition, attempt.step, failing=state.failure is not None
        ):
            self._failed(attempt)

    def _settle_earlier(self, attempt: Attempt, attempts: Mapping[str, Attempt]) -> None:
        """Plan the retry that an attempt is, if a crash kept the failure before it from being planned for."""
        earlier = attempts.get(f"{attempt.idempotency_key}:{attempt.attempt_number - 1}")
        if earlier is not None and earlier.status is AttemptStatus.FAILED:
            self.settle(earlier, attempts)

    def _mirror(self, failed: Attempt, retry: Attempt) -> None:
        again = self.state.planned[failed.runnable_key].model_copy(
            update={
                "runnable_key": retry.runnable_key,
                "attempt_number": retry.attempt_number,
                "visible_at": retry.visible_at,
            }
        )
        self.add(RunnablesPlanned(run_id=self.run_id, runnables=[again], occurred_at=self.now))

    def _succeeded(self, attempt: Attempt) -> None:
        if attempt.step.startswith(COMPENSATE) or self.state.failure is not None:
            self._apply(attempt, attempt.result, None)
            self._undo_or_end()
            return
        step = self.definition.steps[attempt.step]
        values = self._values(step, attempt.result)
        if self.definition.mode is Mode.DEPENDENCIES:
            self._join(step, attempt, values)
        else:
            decision, entered = self._follow(step, "ok", values, None)
            self._apply(attempt, attempt.result, decision)
            self._go(decision, entered)

    def _failed(self, attempt: Attempt) -> None:
        error = attempt.error or {"code": "dead_letter", "message": f"delivered {attempt.deliveries} times, never done"}
        if attempt.step.startswith(COMPENSATE) or self.state.failure is not None:
            self._apply(attempt, None, {"from": attempt.step, "on": "error", "to": FAIL, "error": error})
            self._undo_or_end()
            return
        step = self.definition.steps[attempt.step]
        decision, entered = self._follow(step, "error", known_values(self.definition, self.state), error)
        self._apply(attempt, None, decision)
        self._go(decision, entered)

    def resolve(self, step_name: str, action: str, result: JsonObject, metadata: JsonObject) -> list[Fact]:
        step = self.definition.steps[step_name]
        values = self._values(step, result)
        error: JsonObject | None = None
        if action == "rejected":
            error = {"code": "rejected", "message": f"{step_name!r} was rejected", "decision": result}
        decision, entered = self._follow(step, _ACTIONS[action], values, error)
        self.add(
            ManualStepResolved(
                run_id=self.run_id,
                step=step_name,
                action=action,  # type: ignore[arg-type]  # checked by the fact itself
                result=result,
                metadata=metadata,
                transition=decision,
                occurred_at=self.now,
            )
        )
        self._go(decision, entered)
        return self.facts

    def _values(self, step: StepDefinition, result: JsonValue) -> Mapping[str, JsonValue]:
        """Return what the run knows once this is the step's output."""
        return known_values(self.definition, self.state, {} if step.output is None else {step.output: result})

    def _apply(self, attempt: Attempt, result: JsonValue, transition: JsonObject | None) -> None:
        fact = RunnableApplied(
            run_id=self.run_id,
            runnable_key=attempt.runnable_key,
            result=result,
            transition=transition,
            occurred_at=self.now,
        )
        error = (transition or {}).get("error")
        if self.limit is not None and isinstance(error, dict) and not self.limit.holds(fact):
            fact = fact.model_copy(update={"transition": {**(transition or {}), "error": brief_error(error)}})
        self.add(fact)

    # --- what comes next --------------------------------------------------------------------------------------------

    def _follow(
        self, step: StepDefinition, outcome: Outcome, values: Mapping[str, JsonValue], error: JsonObject | None
    ) -> tuple[JsonObject, list[Runnable | ManualStepPaused]]:
        """Choose the route and prepare its target. What is wrong with that fails the run, with a message."""
        route = self._choose(step, outcome, values, error)
        decision: JsonObject = {"from": step.name, "on": outcome, "to": FAIL} if route is None else route.decision()
        if error is not None:
            decision["error"] = error
        entered: list[Runnable | ManualStepPaused] = []
        if route is None and outcome == "ok":
            decision["error"] = {"code": "no_matching_route", "message": f"no route of {step.name!r} fits its result"}
        elif route is not None and route.to == FAIL and error is None:
            decision["error"] = {"code": "routed_to_fail", "message": f"{step.name!r} was routed to fail"}
        elif route is not None and not route.ends_run:
            try:
                entered = self.prepare([route.to], values)
            except InvalidInput as problem:
                refused: JsonObject = {"code": "invalid_input", "message": str(problem)}
                decision |= {"to": FAIL, "error": refused if error is None else {**refused, "cause": error}}
        return decision, entered

    def _choose(
        self, step: StepDefinition, outcome: Outcome, values: Mapping[str, JsonValue], error: JsonObject | None
    ) -> Route | None:
        state = values if error is None else ChainMap({"error": error}, values)  # type: ignore[arg-type]  # read only
        routes = self.definition.routes.get((step.name, outcome), ())
        place = _fitting(routes, state)
        return None if place is None else routes[place]

    def _go(self, decision: JsonObject, entered: Sequence[Runnable | ManualStepPaused]) -> None:
        if decision["to"] == COMPLETE:
            self._end("completed")
        elif decision["to"] == FAIL:
            self._undo_or_end()
        else:
            self.enter(entered)

    def _join(self, step: StepDefinition, attempt: Attempt, values: Mapping[str, JsonValue]) -> None:
        """Apply a result in a workflow of dependencies, and enter every step that has just become possible."""
        done = self.state.done + (not self.state.is_done(step.name))
        dependents = self.definition.dependents.get(step.name, ())
        ready = [name for name in dependents if self._is_ready(name, step.name, done)]
        try:
            entered = self.prepare(ready, values)
        except InvalidInput as problem:
            error: JsonObject = {"code": "invalid_input", "message": str(problem)}
            self._apply(attempt, attempt.result, {"from": step.name, "on": "ok", "to": FAIL, "error": error})
            self._undo_or_end()
            return
        self._apply(attempt, attempt.result, None)
        self.enter(entered)
        if done == len(self.definition.steps):
            self._end("completed")

    def _is_ready(self, name: str, last: str, done: int) -> bool:
        """Return whether a step can be entered now that `last` is done, one of so many steps that are."""
        after = self.definition.steps[name].after
        if done < len(after) or self.state.visits(name):  # counted first: a join of thousands is walked once
            return False
        return all(before == last or self.state.is_done(before) for before in after)

    def prepare(self, names: Iterable[str], values: Mapping[str, JsonValue]) -> list[Runnable | ManualStepPaused]:
        """Return the runnables and pauses for these steps. Raises `InvalidInput` when one of them cannot be entered."""
        entered = [self._entry(self.definition.steps[name], values) for name in names]
        if self.limit is not None:
            self.limit.check([runnable for runnable in entered if isinstance(runnable, Runnable)])
        return entered

    def _entry(self, step: StepDefinition, values: Mapping[str, JsonValue]) -> Runnable | ManualStepPaused:
        visit = self.state.visits(step.name) + 1
        if step.max_visits is not None and visit > step.max_visits:
            raise InvalidInput(f"step {step.name!r} may be visited {step.max_visits} times (max_visits), not once more")
        if step.is_manual:
            return pause_of(self.state, step, visit, self.now)
        visible_at = self.now + step.duration if step.kind is StepKind.WAIT and step.duration else self.now
        return runnable_of(self.state, step, step.name, visit, bind(step, values), visible_at)

    def enter(self, entered: Sequence[Runnable | ManualStepPaused]) -> None:
        for pause in entered:
            if isinstance(pause, ManualStepPaused):
                self.add(pause)
        runnables = [runnable for runnable in entered if isinstance(runnable, Runnable)]
        for part in [runnables] if self.limit is None else self.limit.parts(runnables):
            if part:
                self.add(RunnablesPlanned(run_id=self.run_id, runnables=part, occurred_at=self.now))
        self.facts += [schedule(runnable, self.state.start, self.now) for runnable in runnables]

    # --- the end ----------------------------------------------------------------------------------------------------

    def _undo_or_end(self) -> None:
        """Undo the newest step that was not undone yet. End the run when there is none and no visit is open."""
        if self.state.assumed:
            raise StateMissing(f"what run {self.run_id!r} has done is not known")
        under_way = self.state.open
        if any(f":{COMPENSATE}" in key for key in under_way):
            return
        entered = self._next_compensation()
        if entered is not None:
            self.enter([entered])
        elif not under_way or not self._compensates:
            self._end("failed", self._error())

    @property
    def _compensates(self) -> bool:
        """Whether an open step may have to be undone once it is done."""
        return any(step.compensation is not None for step in self.definition.steps.values())

    def _next_compensation(self) -> Runnable | None:
        self.not_undone, values = [], known_values(self.definition, self.state)
        for (name, visit), result in reversed(self.state.to_undo.items()):
            step = self.definition.steps.get(name)
            if step is None or step.compensation is None:
                continue
            if step.output is not None:
                values = ChainMap({step.output: result}, values)  # type: ignore[arg-type]  # read only
            try:
                taken = bind_compensation(step, values)
                runnable = runnable_of(self.state, step, COMPENSATE + name, visit, taken, self.now)
                if self.limit is not None:
                    self.limit.check([runnable])
            except InvalidInput as problem:  # it cannot be undone: the run's error says so, and the others are undone
                error: JsonObject = {"code": "invalid_input", "message": str(problem)}
                self.not_undone.append({"step": name, "error": error})
                continue
            return runnable
        return None

    def _error(self) -> JsonObject:
        error = dict(self.state.failure or {})
        failures: list[JsonValue] = [*self.state.undo_failures, *self.not_undone]
        return {**error, "compensation_failures": failures} if failures else error

    def _end(self, status: str, error: JsonObject | None = None) -> None:
        # What a sibling settled beside this one has just planned never begins: its schedule could come after the end.
        self.facts = [fact for fact in self.facts if not isinstance(fact, AttemptScheduled)]
        facts = plan_end(self.state, status, self.now, error)
        if self.limit is not None and error is not None and not self.limit.holds(*facts):
            facts = plan_end(self.state, status, self.now, brief_error(error))
        for fact in facts:
            self.add(fact)
