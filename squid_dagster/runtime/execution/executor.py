"""From a claim to an outcome: find the definition, bind the input, and run the step in its way of execution."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from squid_dagster.journal.contract.dispatch_store import Answer, Claim, Failed, Outcome
from squid_dagster.journal.plan_state.checkpoints import load_state
from squid_dagster.protocol.errors import IncompatibleDefinition
from squid_dagster.runtime.commands.child_runs import ChildStarter
from squid_dagster.runtime.execution.isolation import run_isolated
from squid_dagster.runtime.execution.step_calls import Pause, StepCalls
from squid_dagster.runtime.execution.step_execution import (
    AsyncRunner,
    LazyState,
    error_map,
    make_call,
    make_context,
    outcome_of,
)
from squid_dagster.runtime.execution.transactional_steps import run_transactional
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.workflow.authoring.step_context import Cancellation
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.errors import InvalidInput, MissingResource
from squid_dagster.workflow.planner.known_values import Outputs, payload_of


@dataclass(frozen=True, slots=True)
class Executor:
    """Runs steps of one runtime. `run_async` runs a coroutine to its end and returns its result.

    Our own calls inside a step wait for the database as long as `lease` (the runtime's if None), by `pause`.
    """

    runtime: Runtime
    run_async: AsyncRunner
    lease: timedelta | None = None
    pause: Pause = Cancellation.wait

    def perform(self, claim: Claim, cancelled: Cancellation) -> Outcome | Answer:
        """Run the claimed attempt. A transactional step that succeeded is settled already: then return its answer.

        Raises:
            IncompatibleDefinition: the attempt's definition is not registered here: release the claim.
            StorageUnavailable: a transactional step lost its connection, or the state could not be read.
        """
        attempt = claim.attempt
        definition = self.runtime.registry.find(
            attempt.workflow, attempt.definition_fingerprint, attempt.definition_version
        )
        if definition is None:
            raise IncompatibleDefinition(f"the definition of {attempt.runnable_key!r} is not registered here")
        calls = StepCalls(claim, cancelled, self.lease or self.runtime.lease, self.pause)
        state = LazyState(lambda: calls.make("reads its state", lambda: self._state(definition, attempt.run_id)))
        starter = ChildStarter(self.runtime, calls)
        context = make_context(claim, definition, state, cancelled, child_starter=starter)
        try:
            call = make_call(definition, attempt, context, self.runtime.resources)
        except InvalidInput as error:
            return Failed(error_map("invalid_input", str(error)))
        except MissingResource as error:
            return Failed(error_map("missing_resource", str(error)))
        if call.step.transactional and call.task is call.step.task and call.task is not None:
            return run_transactional(self.runtime, calls, call, self.run_async)
        if call.step.isolate and call.task is not None:
            return run_isolated(call, cancelled, self.runtime.random_unit)
        return outcome_of(call, self.run_async, self.runtime.random_unit)

    def _state(self, definition: Definition, run_id: str) -> dict[str, Any]:
        state = load_state(self.runtime.storage, run_id).state
        return {**payload_of(state), **Outputs(definition, state)}
