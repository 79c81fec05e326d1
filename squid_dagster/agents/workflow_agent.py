"""`WorkflowAgent`: one run. Applies results with everything that follows from them, and schedules what was planned."""

from collections.abc import Callable, Mapping
from datetime import datetime

from squid_dagster.journal import DispatchStore, Storage
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import ConflictingCompletion, InvalidTransition, NotFound, TerminalRun
from squid_dagster.protocol.facts import Fact, Runnable
from squid_dagster.protocol.folds.attempt import Attempt, AttemptStatus
from squid_dagster.protocol.folds.run import RunProjection, application_digest
from squid_dagster.protocol.folds.run_unit import RunUnit, planned_but_unscheduled, results_ready_to_apply
from squid_dagster.protocol.threads import check_part
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.planner.planner import plan_settled
from squid_dagster.workflow.planner.schedule import schedule

DefinitionOf = Callable[[str, RunProjection], Definition]


@checks_arguments
class WorkflowAgent:
    """One run, read anew by each method, so that a result is never older than the call."""

    def __init__(self, storage: Storage, dispatch: DispatchStore, run_id: str, definition_of: DefinitionOf) -> None:
        """Bind to a run; `definition_of` returns the definition that it was started with."""
        self.run_id = check_part(run_id, "run id")
        self._storage, self._dispatch, self._definition_of = storage, dispatch, definition_of

    def __repr__(self) -> str:
        """Return the agent with its run id."""
        return f"WorkflowAgent({self.run_id!r})"

    @property
    def unit(self) -> RunUnit:
        """The run, folded from all of its facts. Raises `NotFound` if it was never started."""
        unit = RunUnit.fold(self._storage.read_run(self.run_id))
        if unit.run.start is None:
            raise NotFound(f"there is no run {self.run_id!r}: list runs to find its id")
        return unit

    @property
    def projection(self) -> RunProjection:
        """The fold of the run's own thread. Raises `NotFound`."""
        return self.unit.run

    def pending_results(self) -> list[Attempt]:
        """Return completed attempts that are not applied yet; none once the run has stopped.

        >>> squid.workflow_agent(run_id).pending_results()
        []
        """
        unit = self.unit
        return results_ready_to_apply(unit.run, unit.dispatch)

    def pending_dispatches(self) -> list[Runnable]:
        """Return planned runnables that are not scheduled; none once the run has stopped.

        >>> squid.workflow_agent(run_id).pending_dispatches()
        []
        """
        unit = self.unit
        return planned_but_unscheduled(unit.run, unit.dispatch)

    def schedule_pending_dispatches(self) -> list[Runnable]:
        """Schedule the pending runnables on their queues and return them. Repeating does nothing.

        >>> squid.workflow_agent(run_id).schedule_pending_dispatches()
        []
        """
        pending: list[Runnable] = []

        def decision(units: Mapping[str, RunUnit], now: datetime) -> list[Fact]:
            unit = units[self.run_id]
            pending[:] = planned_but_unscheduled(unit.run, unit.dispatch)
            return [schedule(runnable, unit.run.start, now) for runnable in pending]

        self._dispatch.decide([self.run_id], decision)
        return pending

    def apply_result(self, runnable_key: str) -> Attempt:
        """Apply a completed attempt's result to the run, and plan what follows. Repeating does nothing.

        >>> squid.workflow_agent(run_id).apply_result(f"{run_id}:check:1:1").result
        'tea'

        Raises:
            NotFound: the run has no such attempt, or has not planned it.
            InvalidTransition: the attempt is not completed.
            TerminalRun: the run has ended without it.
            ConflictingCompletion: another result was applied.
            IncompatibleDefinition: the run's definition is not registered.
        """
        applied: list[Attempt] = []

        def decision(units: Mapping[str, RunUnit], now: datetime) -> list[Fact]:
            unit = units[self.run_id]
            attempt = self._completed(unit, runnable_key)
            applied[:] = [attempt]
            known = unit.run.applied.get(runnable_key)
            if known is not None:
                transition = known.fact.transition if known.fact is not None else None
                if known.digest != application_digest(attempt.result, transition):
                    raise ConflictingCompletion(f"another result of {runnable_key!r} was applied: the first one stands")
                return []
            if unit.run.terminal:
                raise TerminalRun(f"run {self.run_id!r} has ended as {unit.run.terminal_status}: drop the result")
            definition = self._definition_of(self.run_id, unit.run)
            room = self._storage.max_fact_bytes
            return plan_settled(definition, unit.run, [attempt], unit.dispatch.attempts, now, max_fact_bytes=room)

        self._dispatch.decide([self.run_id], decision)
        return applied[0]

    def _completed(self, unit: RunUnit, runnable_key: str) -> Attempt:
        attempt = unit.dispatch.attempts.get(runnable_key)
        if attempt is None or runnable_key not in unit.run.planned:
            raise NotFound(f"run {self.run_id!r} has not planned an attempt {runnable_key!r}")
        if attempt.status is not AttemptStatus.COMPLETED:
            raise InvalidTransition(f"{runnable_key!r} is {attempt.status}: only a completed attempt can be applied")
        return attempt

    def apply_pending_results(self) -> list[Attempt]:
        """Apply all completed results in the order of completion; return the attempts. Raises as `apply_result`.

        >>> squid.workflow_agent(run_id).apply_pending_results()
        []
        """
        return [self.apply_result(attempt.runnable_key) for attempt in self.pending_results()]
