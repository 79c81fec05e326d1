"""The planner: which facts follow from a start, an outcome, a decision, a retry. Pure: the caller appends them.

A step of kind wait is a runnable that becomes visible when the wait is over. Manual steps are never scheduled: reaching
one pauses the run. An external step is a runnable in a lane that no worker serves. When a run fails, what it has done
is undone one step after another, newest first, before it ends.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import JsonValue

from squid_dagster.protocol.attempts import Attempt, AttemptStatus
from squid_dagster.protocol.entries import Entry
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
from squid_dagster.protocol.run import RunProjection, apply_run
from squid_dagster.protocol.threads import idempotency_key, runnable_key
from squid_dagster.workflow.binding import bind, bind_compensation
from squid_dagster.workflow.dead_letters import goes_on_from_dead_letter
from squid_dagster.workflow.declared import COMPLETE, FAIL, Outcome, StepKind
from squid_dagster.workflow.definition import Definition, Mode, Route, StepDefinition
from squid_dagster.workflow.errors import InvalidInput
from squid_dagster.workflow.room import Room, brief_error
from squid_dagster.workflow.scheduling import deadline_of, plan_end, queue_of, schedule
from squid_dagster.workflow.state import (
    COMPENSATE,
    Visit,
    failure_of,
    is_unreadable,
    open_visits,
    outputs_of,
    payload_of,
    visit_count,
    visits,
)

_ACTIONS: dict[str, Outcome] = {"resumed": "ok", "approved": "ok", "rejected": "error"}


def plan_start(definition: Definition, start: RunStarted) -> list[Fact]:
    """Give the facts that follow a start: the first steps planned and scheduled, or the run paused.

    Raises:
        InvalidInput: the payload does not provide what a first step takes.
    """
    planning = _Planning(definition, RunProjection(run_id=start.run_id, start=start), start.occurred_at)
    planning.facts.append(RunQueued(run_id=start.run_id, queue=planning.queue, occurred_at=start.occurred_at))
    planning.enter(planning.prepare(definition.entry_steps, {}))
    return planning.facts


def plan_settled(
    definition: Definition,
    run: RunProjection,
    settled: Iterable[Attempt],
    attempts: Mapping[str, Attempt],
    now: datetime,
    *,
    given_away: bool = False,
    max_fact_bytes: int | None = None,
) -> list[Fact]:
    """Give the facts that follow from attempts that were completed, have failed or were given up.

    `attempts` are all attempts of the run that are known, among them the retries that failures have created. Nothing
    follows from what is applied already, from a deferral, or for a run that has stopped or cannot be read whole. A run
    that is `given_away` is worked on instead of a copy. With `max_fact_bytes`, every fact is one that can be written: a
    successor whose input is too large fails the run, with the outcome applied as it is.
    """
    if is_unreadable(run):
        return []
    planning = _Planning(definition, run if given_away else run.copy(), now, max_fact_bytes)
    for attempt in settled:
        planning.settle(attempt, attempts)
    return planning.facts


def plan_resolution(
    definition: Definition,
    run: RunProjection,
    action: str,
    result: JsonObject,
    metadata: JsonObject,
    now: datetime,
    *,
    max_fact_bytes: int | None = None,
) -> list[Fact]:
    """Give the facts that follow from a person's decision: "resumed", "approved" or "rejected".

    Raises:
        InvalidTransition: the run does not wait for such a decision.
    """
    state = run.manual_state
    wanted = "pause" if action == "resumed" else "approval"
    if run.stopped or state is None or state.kind != wanted:
        waits = f"waits at {state.kind} {state.step!r}" if state is not None else f"is {run.status}"
        raise InvalidTransition(f"run {run.run_id!r} {waits}: there is nothing that could be {action}")
    return _Planning(definition, run.copy(), now, max_fact_bytes).resolve(state.step, action, result, metadata)


class _Planning:
    """Facts in the making: each one is folded at once, so that the next decision sees it."""

    def __init__(
        self, definition: Definition, run: RunProjection, now: datetime, max_fact_bytes: int | None = None
    ) -> None:
        self.definition = definition
        self.run = run
        self.now = now
        self.run_id = run.run_id or ""
        self.queue = queue_of(run)
        self.facts: list[Fact] = []
        self.room = None if max_fact_bytes is None else Room(max_fact_bytes)  # None: facts are checked by the caller
        self.not_undone: list[JsonValue] = []

    def add(self, fact: Fact) -> None:
        self.facts.append(fact)
        apply_run(self.run, Entry(fact.thread, 0, 0, fact))

    # --- outcomes ---------------------------------------------------------------------------------------------------

    def settle(self, attempt: Attempt, attempts: Mapping[str, Attempt]) -> None:
        key = attempt.runnable_key
        if key not in self.run.planned:
            self._settle_earlier(attempt, attempts)
        if self.run.stopped or key not in self.run.planned or key in self.run.applied:
            return
        if attempt.status is AttemptStatus.COMPLETED:
            self._succeeded(attempt)
        elif attempt.status is AttemptStatus.FAILED:
            retry = attempts.get(f"{attempt.idempotency_key}:{attempt.attempt_number + 1}")
            if retry is None:
                self._failed(attempt)
            elif retry.runnable_key not in self.run.planned:
                self._mirror(attempt, retry)
        elif attempt.status is AttemptStatus.DEAD_LETTERED:
            failing = failure_of(self.run) is not None
            if goes_on_from_dead_letter(self.definition, attempt.step, failing=failing):
                self._failed(attempt)

    def _settle_earlier(self, attempt: Attempt, attempts: Mapping[str, Attempt]) -> None:
        """Plan the retry that an attempt is, if a crash kept the failure before it from being planned for."""
        earlier = attempts.get(f"{attempt.idempotency_key}:{attempt.attempt_number - 1}")
        if earlier is not None and earlier.status is AttemptStatus.FAILED:
            self.settle(earlier, attempts)

    def _mirror(self, failed: Attempt, retry: Attempt) -> None:
        planned = self.run.planned[failed.runnable_key].runnable
        assert planned is not None  # noqa: S101  planning folds whole facts
        again = planned.model_copy(
            update={
                "runnable_key": retry.runnable_key,
                "attempt_number": retry.attempt_number,
                "visible_at": retry.visible_at,
            }
        )
        self.add(RunnablesPlanned(run_id=self.run_id, runnables=[again], occurred_at=self.now))

    def _succeeded(self, attempt: Attempt) -> None:
        if attempt.step.startswith(COMPENSATE) or failure_of(self.run) is not None:
            self._apply(attempt, attempt.result, None)
            self._undo_or_end()
            return
        step = self.definition.steps[attempt.step]
        outputs = outputs_of(self.definition, self.run)
        if step.output is not None:
            outputs[step.output] = attempt.result
        if self.definition.mode is Mode.DEPENDENCIES:
            self._join(step, attempt, outputs)
        else:
            decision, entered = self._follow(step, "ok", outputs, None)
            self._apply(attempt, attempt.result, decision)
            self._go(decision, entered)

    def _failed(self, attempt: Attempt) -> None:
        error = attempt.error or {"code": "dead_letter", "message": f"delivered {attempt.deliveries} times, never done"}
        if attempt.step.startswith(COMPENSATE) or failure_of(self.run) is not None:
            self._apply(attempt, None, {"from": attempt.step, "on": "error", "to": FAIL, "error": error})
            self._undo_or_end()
            return
        step = self.definition.steps[attempt.step]
        decision, entered = self._follow(step, "error", outputs_of(self.definition, self.run), error)
        self._apply(attempt, None, decision)
        self._go(decision, entered)

    def resolve(self, step_name: str, action: str, result: JsonObject, metadata: JsonObject) -> list[Fact]:
        step = self.definition.steps[step_name]
        outputs = outputs_of(self.definition, self.run)
        if step.output is not None:
            outputs[step.output] = result
        error: JsonObject | None = None
        if action == "rejected":
            error = {"code": "rejected", "message": f"{step_name!r} was rejected", "decision": result}
        decision, entered = self._follow(step, _ACTIONS[action], outputs, error)
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

    def _apply(self, attempt: Attempt, result: JsonValue, transition: JsonObject | None) -> None:
        fact = RunnableApplied(
            run_id=self.run_id,
            runnable_key=attempt.runnable_key,
            result=result,
            transition=transition,
            occurred_at=self.now,
        )
        error = (transition or {}).get("error")
        if self.room is not None and isinstance(error, dict) and not self.room.holds(fact):
            fact = fact.model_copy(update={"transition": {**(transition or {}), "error": brief_error(error)}})
        self.add(fact)

    # --- what comes next --------------------------------------------------------------------------------------------

    def _follow(
        self, step: StepDefinition, outcome: Outcome, outputs: dict[str, JsonValue], error: JsonObject | None
    ) -> tuple[JsonObject, list[Runnable | ManualStepPaused]]:
        """Choose the route and prepare where it leads; anything that is wrong with that fails the run, in words."""
        route = self._choose(step, outcome, outputs, error)
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
                entered = self.prepare([route.to], outputs)
            except InvalidInput as problem:
                refused: JsonObject = {"code": "invalid_input", "message": str(problem)}
                decision |= {"to": FAIL, "error": refused if error is None else {**refused, "cause": error}}
        return decision, entered

    def _choose(
        self, step: StepDefinition, outcome: Outcome, outputs: Mapping[str, JsonValue], error: JsonObject | None
    ) -> Route | None:
        state = {**payload_of(self.run), **outputs, **({"error": error} if error is not None else {})}
        routes = self.definition.routes.get((step.name, outcome), ())
        return next((route for route in routes if route.when is None or route.when.holds(state)), None)

    def _go(self, decision: JsonObject, entered: Sequence[Runnable | ManualStepPaused]) -> None:
        if decision["to"] == COMPLETE:
            self._end("completed")
        elif decision["to"] == FAIL:
            self._undo_or_end()
        else:
            self.enter(entered)

    def _join(self, step: StepDefinition, attempt: Attempt, outputs: dict[str, JsonValue]) -> None:
        """Apply a result in a workflow of dependencies, and enter every step that has just become possible."""
        done = {visit.runnable.step for visit in visits(self.run)} | {step.name}
        ready = [
            name
            for name in self.definition.dependents.get(step.name, ())
            if done.issuperset(self.definition.steps[name].after) and not visit_count(self.run, name)
        ]
        try:
            entered = self.prepare(ready, outputs)
        except InvalidInput as problem:
            error: JsonObject = {"code": "invalid_input", "message": str(problem)}
            self._apply(attempt, attempt.result, {"from": step.name, "on": "ok", "to": FAIL, "error": error})
            self._undo_or_end()
            return
        self._apply(attempt, attempt.result, None)
        self.enter(entered)
        if done.issuperset(self.definition.steps):
            self._end("completed")

    def prepare(self, names: Iterable[str], outputs: Mapping[str, JsonValue]) -> list[Runnable | ManualStepPaused]:
        """Give what entering these steps takes. Raises `InvalidInput` when one of them cannot be entered."""
        entered = [self._entry(self.definition.steps[name], outputs) for name in names]
        if self.room is not None:
            self.room.check([each for each in entered if isinstance(each, Runnable)])
        return entered

    def _entry(self, step: StepDefinition, outputs: Mapping[str, JsonValue]) -> Runnable | ManualStepPaused:
        visit = visit_count(self.run, step.name) + 1
        if step.max_visits is not None and visit > step.max_visits:
            raise InvalidInput(f"step {step.name!r} may be visited {step.max_visits} times (max_visits), not once more")
        if step.is_manual:
            metadata: JsonObject = {"visit": visit}
            if step.deadline is not None:
                metadata["deadline"] = deadline_of(step, self.now)
            return ManualStepPaused(
                run_id=self.run_id,
                step=step.name,
                kind=step.kind.value,  # type: ignore[arg-type]  # a manual kind
                metadata=metadata,
                occurred_at=self.now,
            )
        visible_at = self.now + step.duration if step.kind is StepKind.WAIT and step.duration else self.now
        return self._runnable(step, step.name, visit, bind(step, payload_of(self.run), outputs), visible_at)

    def _runnable(
        self, step: StepDefinition, name: str, visit: int, values: JsonObject, visible_at: datetime
    ) -> Runnable:
        run_priority = self.run.start.priority if self.run.start is not None else 0
        more: dict[str, Any] = {}
        if step.deadline is not None and name == step.name:
            more["deadline"] = deadline_of(step, visible_at)
        if step.external is not None and name == step.name:
            more["external"] = step.external.to_json()
        return Runnable(
            run_id=self.run_id,
            runnable_key=runnable_key(self.run_id, name, visit, 1),
            idempotency_key=idempotency_key(self.run_id, name, visit),
            attempt_number=1,
            queue=self.queue,
            step=name,
            input=values,
            visible_at=visible_at,
            priority=run_priority if step.priority is None else step.priority,
            max_deliveries=step.max_deliveries,
            recovery=step.recovery(),
            **more,
        )

    def enter(self, entered: Sequence[Runnable | ManualStepPaused]) -> None:
        for pause in entered:
            if isinstance(pause, ManualStepPaused):
                self.add(pause)
        runnables = [each for each in entered if isinstance(each, Runnable)]
        for part in [runnables] if self.room is None else self.room.parts(runnables):
            if part:
                self.add(RunnablesPlanned(run_id=self.run_id, runnables=part, occurred_at=self.now))
        self.facts += [schedule(each, self.run.start, self.now) for each in runnables]

    # --- the end ----------------------------------------------------------------------------------------------------

    def _undo_or_end(self) -> None:
        """Undo the newest step that was not undone yet; end the run when there is none, and nothing is under way."""
        under_way = open_visits(self.run)
        if any(f":{COMPENSATE}" in key for key in under_way):
            return
        entered = self._next_compensation()
        if entered is not None:
            self.enter([entered])
        elif not under_way or not self._compensates:
            self._end("failed", self._error())

    @property
    def _compensates(self) -> bool:
        """Tell whether a step that is still under way would have to be undone once it is done."""
        return any(step.compensation is not None for step in self.definition.steps.values())

    def _next_compensation(self) -> Runnable | None:
        self.not_undone, outputs = [], outputs_of(self.definition, self.run)
        for visit in reversed(list(visits(self.run))):
            step = self.definition.steps.get(visit.runnable.step)
            if step is None or step.compensation is None or not visit.succeeded:
                continue
            number = int(visit.runnable.idempotency_key.rpartition(":")[2])
            name = COMPENSATE + step.name
            if runnable_key(self.run_id, name, number, 1) in self.run.planned:
                continue
            if step.output is not None:
                outputs = {**outputs, step.output: visit.fact.result}
            try:
                values = bind_compensation(step, payload_of(self.run), outputs)
                found = self._runnable(step, name, number, values, self.now)
                if self.room is not None:
                    self.room.check([found])
            except InvalidInput as problem:  # it cannot be undone, which is told in the end and stops no other one
                error: JsonObject = {"code": "invalid_input", "message": str(problem)}
                self.not_undone.append({"step": step.name, "error": error})
                continue
            return found
        return None

    def _error(self) -> JsonObject:
        error = dict(failure_of(self.run) or {})
        failures: list[JsonValue] = [
            _compensation_failure(visit) for visit in visits(self.run) if _is_failed_compensation(visit)
        ]
        failures += self.not_undone
        return {**error, "compensation_failures": failures} if failures else error

    def _end(self, status: str, error: JsonObject | None = None) -> None:
        # What a sibling settled beside this one has just planned never begins: its schedule could come after the end.
        self.facts = [fact for fact in self.facts if not isinstance(fact, AttemptScheduled)]
        facts = plan_end(self.run, status, self.now, error)
        if self.room is not None and error is not None and not self.room.holds(*facts):
            facts = plan_end(self.run, status, self.now, brief_error(error))
        for fact in facts:
            self.add(fact)


def _is_failed_compensation(visit: Visit) -> bool:
    return visit.runnable.step.startswith(COMPENSATE) and not visit.succeeded


def _compensation_failure(visit: Visit) -> JsonObject:
    step = visit.runnable.step.removeprefix(COMPENSATE)
    return {"step": step, "error": (visit.fact.transition or {}).get("error")}
