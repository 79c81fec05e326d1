"""Child runs: started by a step, linked on the parent, once per step and key, whatever is repeated."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from squid_dagster.protocol.errors import ConflictingCommand, InvalidArgument, NotFound, TerminalRun
from squid_dagster.protocol.facts import ChildRunStarted, Fact, RunSignalReceived
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.facts.run import Origin
from squid_dagster.protocol.run import RunProjection
from squid_dagster.protocol.threads import check_part
from squid_dagster.protocol.unit import RunUnit
from squid_dagster.runtime.core import Runtime
from squid_dagster.runtime.identity import derived_run_id
from squid_dagster.runtime.signals import Receipt, Signal, SignalType, same_json
from squid_dagster.runtime.starting import Payload, Start, WorkflowRef, handed_over, payload_json
from squid_dagster.workflow.definition import Definition


@dataclass(frozen=True, slots=True)
class Parent:
    """The attempt that asks for a child."""

    run_id: str
    runnable_key: str
    step: str
    attempt: int


def start_child_run(
    runtime: Runtime,
    parent: Parent,
    workflow: WorkflowRef,
    payload: Payload,
    *,
    child_key: str,
    trigger: str | None = None,
    queue: str | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Receipt:
    """Start a child run and link it to its parent, in one commit where the storage allows it.

    The same step and key give the same child again: the first link stands. The parent neither waits for the child nor
    gets its result. The child's queue is its parent's, unless another is named.

    Raises:
        NotFound: no such parent run, or no such workflow.
        TerminalRun: the parent has ended.
        ConflictingCommand: the key was used by this step for another workflow or payload.
        InvalidArgument, InvalidThread, InvalidPayload: as for a start.
    """
    check_part(child_key, "child_key")
    definition = runtime.registry.select(workflow)
    name = definition.default_trigger.name if trigger is None else trigger
    if name not in definition.triggers:
        raise InvalidArgument(f"workflow {definition.name!r} has no trigger {name!r}")
    about = payload_json(dict(metadata or {}))
    child_id = derived_run_id(definition.name, name, f"{parent.run_id}|{parent.step}|{child_key}")
    link = ChildRunStarted.model_construct(
        run_id=parent.run_id,
        child_run_id=child_id,
        child_workflow=definition.name,
        child_trigger=name,
        child_key=child_key,
        origin=Origin(runnable_key=parent.runnable_key, step=parent.step, attempt=parent.attempt),
        child_input=payload_json(payload),
        child_queue=None if queue is None else check_part(queue, "queue"),
        metadata=about,
        occurred_at=runtime.now(),
    )
    return _start_linked(runtime, link, definition, handed_over(payload, definition))


def start_linked_child(runtime: Runtime, link: ChildRunStarted) -> Receipt:
    """Start the child of a link that is on record and whose child is missing. Raises as `start_child_run`."""
    return _start_linked(runtime, link, runtime.registry.select(link.child_workflow))


def _start_linked(runtime: Runtime, link: ChildRunStarted, definition: Definition, payload: Payload = None) -> Receipt:
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

    runtime.decide([link.run_id, link.child_run_id], decision)
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
