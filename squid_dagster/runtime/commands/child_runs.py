"""Child runs: started by a step and linked on the parent's thread, once per step and key, however often repeated."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict, Unpack

from pydantic import JsonValue

from squid_dagster.agents import ClaimResult
from squid_dagster.journal.contract.dispatch_store import Claim, ClaimRef, Lineage
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import ConflictingCommand, InvalidArgument, NotFound, StaleClaim, TerminalRun
from squid_dagster.protocol.facts import ChildRunStarted, Fact, RunSignalReceived
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.facts.run import Origin
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import check_part
from squid_dagster.runtime.commands.derived_ids import derived_run_id
from squid_dagster.runtime.commands.run_start import Payload, Start, WorkflowRef, payload_json, payload_object
from squid_dagster.runtime.commands.signals import Receipt, Signal, SignalType, same_json
from squid_dagster.runtime.execution.step_calls import StepCalls
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.workflow.authoring.step_context import StepContext
from squid_dagster.workflow.definition import Definition


class ChildOptions(TypedDict, total=False):
    """How a child run is started; its queue is its parent's, unless one is given."""

    trigger: str | None
    queue: str | None
    metadata: Mapping[str, JsonValue] | None


class ChildStarter:
    """Starts children for the step of a held claim, as `StepContext.child_starter`.

    The claim with its token is private to this object: the fields of a context can be made up, so they decide nothing
    about whether children may be started. While the claim stands, it waits for a database that is unavailable.
    """

    __slots__ = ("_calls", "_runtime")

    def __init__(self, runtime: Runtime, calls: StepCalls) -> None:
        """Bind to the claim of the executing step."""
        self._runtime, self._calls = runtime, calls

    def __call__(self, context: StepContext, workflow: WorkflowRef, payload: Payload = None, **options: Any) -> Receipt:
        """Start a child with the runtime that executes the step. Raises as `start_child_run`."""
        return self.start(self._runtime, context, workflow, payload, **options)

    def start(
        self, runtime: Runtime, context: StepContext, workflow: WorkflowRef, payload: Payload, **options: Any
    ) -> Receipt:
        """Start a child with the definitions of any runtime on the same journal. Raises as `start_child_run`."""
        claim = self._calls.claim
        ref = claim.ref
        if (context.run_id, context.runnable_key) != (ref.run_id, ref.runnable_key):
            raise StaleClaim(
                f"the context names {context.runnable_key!r} of run {context.run_id!r}, but its claim is on "
                f"{ref.runnable_key!r}: use the context that the step was given"
            )
        return self._calls.make("starts a child", lambda: start_child_run(runtime, claim, workflow, payload, **options))


def start_child_of(
    runtime: Runtime,
    parent: StepContext | ClaimResult,
    workflow: WorkflowRef,
    payload: Payload,
    child_key: str,
    **options: Unpack[ChildOptions],
) -> Receipt:
    """Start a child of the run that a step belongs to, by its context or its claim. Raises as `start_child_run`."""
    if isinstance(parent, ClaimResult):
        return start_child_run(runtime, parent.claim, workflow, payload, child_key=child_key, **options)
    if not isinstance(parent.child_starter, ChildStarter):
        raise StaleClaim(
            f"the context of {parent.runnable_key!r} holds no claim: use the one that a worker gave to the step"
        )
    return parent.child_starter.start(runtime, parent, workflow, payload, child_key=child_key, **options)


@checked
def start_child_run(
    runtime: Runtime,
    parent: Claim,
    workflow: WorkflowRef,
    payload: Payload,
    *,
    child_key: str,
    trigger: str | None = None,
    queue: str | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Receipt:
    """Start a child run and link it to its parent, in one commit where the storage allows it.

    It is an effect of the step, and fenced by its claim like every other: a stale claim starts nothing. The same step
    and key return the same child again: the first link stands. The parent neither waits for the child nor gets its
    result. The child's queue is its parent's, unless `queue` is given.

    Raises:
        StaleClaim, ExpiredClaim, TerminalRun: the parent's claim may not act any more; nothing was written.
        NotFound: no such workflow.
        ConflictingCommand: the key was used by this step for another workflow or payload.
        InvalidArgument, InvalidThread, InvalidPayload: as for a start.
    """
    check_part(child_key, "child_key")
    definition = runtime.registry.select(workflow)
    name = definition.default_trigger.name if trigger is None else trigger
    if name not in definition.triggers:
        raise InvalidArgument(f"workflow {definition.name!r} has no trigger {name!r}")
    about = payload_json(dict(metadata or {}))
    attempt = parent.attempt
    child_id = derived_run_id(definition.name, name, f"{parent.ref.run_id}|{attempt.step}|{child_key}")
    link = ChildRunStarted.model_construct(
        run_id=parent.ref.run_id,
        child_run_id=child_id,
        child_workflow=definition.name,
        child_trigger=name,
        child_key=child_key,
        origin=Origin(runnable_key=parent.ref.runnable_key, step=attempt.step, attempt=attempt.attempt_number),
        child_input=payload_json(payload),
        child_queue=None if queue is None else check_part(queue, "queue"),
        metadata=about,
        occurred_at=runtime.now(),
    )
    return _start_linked(runtime, link, definition, payload_object(payload, definition), parent.ref)


def start_linked_child(runtime: Runtime, link: ChildRunStarted) -> Receipt:
    """Start the missing child of a recorded link.

    The link was fenced when it was written: this is recovery, not an effect of the step.

    Raises:
        NotFound, TerminalRun, ConflictingCommand: no such parent or workflow, it has ended, or the id is in use.
    """
    return _start_linked(runtime, link, runtime.registry.select(link.child_workflow))


def _start_linked(
    runtime: Runtime,
    link: ChildRunStarted,
    definition: Definition,
    payload: Payload = None,
    fence: ClaimRef | None = None,
) -> Receipt:
    receipts: list[Receipt] = []

    def decision(units: Mapping[str, RunUnit], now: datetime) -> list[Fact]:
        parent, child = units[link.run_id].run, units[link.child_run_id].run
        known = _known_link(parent, link)
        if child.start is not None:
            first = next(iter(child.command_history), None)
            if first is None or not same_json(first.payload.get("input"), link.child_input):
                raise ConflictingCommand(_used(link))
            receipts[:] = [Receipt.of(first, repeated=True)]
            return []
        if parent.start is None:
            raise NotFound(f"there is no run {link.run_id!r} that could have a child")
        if parent.terminal:
            raise TerminalRun(f"run {link.run_id!r} has ended as {parent.terminal_status}: it starts no children")
        facts = _child_start(runtime, known or link, parent, definition, payload).facts(now)
        receipts[:] = [Receipt.of(fact) for fact in facts if isinstance(fact, RunSignalReceived)]
        return facts if known is not None else [link.model_copy(update={"occurred_at": now}), *facts]

    lineage = Lineage(link.run_id, link.child_key)
    runtime.decide([link.run_id, link.child_run_id], decision, fence=fence, lineage=lineage)
    return receipts[0]


def _known_link(parent: RunProjection, link: ChildRunStarted) -> ChildRunStarted | None:
    for child in parent.children.values():
        fact = child.fact
        if fact is None or fact.child_key != link.child_key or fact.origin.step != link.origin.step:
            continue
        if fact.child_run_id != link.child_run_id or not same_json(fact.child_input, link.child_input):
            raise ConflictingCommand(_used(link))
        return fact
    return None


def _used(link: ChildRunStarted) -> str:
    return (
        f"step {link.origin.step!r} of run {link.run_id!r} has used child_key {link.child_key!r} for another workflow "
        "or payload: use a new key for each child"
    )


def _child_start(
    runtime: Runtime, link: ChildRunStarted, parent: RunProjection, definition: Definition, payload: Payload
) -> Start:
    assert parent.start is not None  # noqa: S101  the caller has checked
    given = link.child_input or {}
    context: JsonObject = {
        "parent": {
            "run_id": link.run_id,
            **link.origin.model_dump(mode="json"),
            "child_key": link.child_key,
            "metadata": link.metadata,
        }
    }
    return Start(
        definition=definition,
        run_id=link.child_run_id,
        trigger=link.child_trigger,
        queue=link.child_queue or parent.start.queue or runtime.queue,
        signal=Signal(
            type=SignalType.START_CHILD_RUN,
            payload={"workflow": link.child_workflow, "trigger": link.child_trigger, "input": given},
        ),
        given=given,
        payload=payload,
        context=context,
    )
