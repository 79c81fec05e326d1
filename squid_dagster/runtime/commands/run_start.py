"""Starts of runs: one or many, new or replayed, by command or by cron. Facts of run and queue are one commit."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Unpack

from pydantic import BaseModel, JsonValue
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from squid_dagster.journal import Storage
from squid_dagster.limits import MAX_ROUND_BYTES
from squid_dagster.protocol.errors import Conflict, ConflictingCommand, InvalidArgument, InvalidPayload, SquidError
from squid_dagster.protocol.facts import Fact, RunStarted
from squid_dagster.protocol.facts.base import MAX_TEXT, JsonObject
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.threads import check_part, run_thread
from squid_dagster.runtime.commands.derived_ids import derived_run_id
from squid_dagster.runtime.commands.signals import (
    CommandOptions,
    Receipt,
    Signal,
    SignalOptions,
    SignalType,
    check_key,
    same_json,
    signal_options,
)
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.workflow.authoring.workflow import Workflow
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.planner.planner import plan_start

Payload = Mapping[str, object] | BaseModel | None
WorkflowRef = str | Workflow | Definition


class RunOptions(SignalOptions, total=False):
    """How a run is started: by which trigger, on which queue, which version; a higher priority is claimed sooner."""

    trigger: str | None
    queue: str | None
    priority: int
    version: str | None


class StartOptions(RunOptions, CommandOptions, total=False):
    """How one run is started. `run_id` is an id of the caller's own: either that or an `idempotency_key`."""

    run_id: str | None


_BEGINNING = 4  # entries, of which a start writes the first two
_BATCH = 500  # runs in one commit of `start_many`


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A run that is to be started.

    `given` is the caller's payload as JSON, before defaults; `payload` is the same as an object, if there is one;
    `accepted` is the payload that the workflow's contract has made of it, once it was checked.
    """

    definition: Definition
    run_id: str
    trigger: str
    queue: str
    signal: Signal
    given: JsonObject
    payload: Payload = None
    accepted: JsonObject | None = None
    priority: int = 0
    context: JsonObject = field(default_factory=dict)
    replayed_from: str | None = None

    def input(self) -> JsonObject:
        """Return the payload that the workflow's contract makes of the caller's. Raises `InvalidPayload`."""
        if self.accepted is not None:
            return self.accepted
        return self.definition.accept_payload(self.given if self.payload is None else self.payload)

    def facts(self, now: datetime) -> list[Fact]:
        """Return all facts of the start.

        Raises:
            InvalidPayload, InvalidInput: the payload does not fit the workflow.
            InvalidFact: an option that cannot be written down.
        """
        payload = self.input()  # first: its errors are more precise than those of the fact that holds it
        return [self.signal.fact(self.run_id, now), *self._effect(self.run_id, payload, now)]

    def _effect(self, run_id: str, payload: JsonObject, now: datetime) -> list[Fact]:
        """Return the facts that follow from the command, for any run id and payload."""
        definition = self.definition
        started = RunStarted.model_construct(
            run_id=run_id,
            workflow=definition.name,
            trigger=self.trigger,
            input=payload,
            context=self.context,
            queue=self.queue,
            priority=self.priority,
            replayed_from_run_id=self.replayed_from,
            definition_version=definition.version,
            definition_fingerprint=definition.fingerprint,
            occurred_at=now,
        )
        return [started, *plan_start(definition, started)]

    def kind(self) -> Hashable | None:
        """Return the key of all starts that differ in `values` only; None if this one differs in more."""
        signal, key = self.signal, self.signal.idempotency_key
        plain = signal.actor is signal.comment is None and signal.caller_time is None and not signal.metadata
        if not plain or self.context or self.replayed_from is not None or len(key or "") > MAX_TEXT:
            return None
        # By the definition's id: another one of the same fingerprint may retry or recover differently.
        return id(self.definition), self.trigger, self.queue, self.priority, signal.type

    def values(self) -> JsonObject:
        """Return idempotency key and payload, by the names of their parts. Raises `InvalidPayload`."""
        values: JsonObject = {f"input.{name}": value for name, value in self.input().items()}
        values["given"] = self.given
        if self.signal.idempotency_key is not None:
            values["key"] = self.signal.idempotency_key
        return values

    def facts_of(self, run_id: str, values: JsonObject, now: datetime) -> list[Fact]:
        """Return the facts of a start of this kind with that id and these values."""
        given: JsonObject = {**self.signal.payload, "input": values["given"]}
        signal = replace(self.signal, payload=given, idempotency_key=values.get("key"))  # type: ignore[arg-type]  # a text
        payload = {name.removeprefix("input."): value for name, value in values.items() if name.startswith("input.")}
        return [signal.fact(run_id, now), *self._effect(run_id, payload, now)]


def start_options(**options: Unpack[StartOptions]) -> dict[str, Any]:
    """Return the options of a start as arguments of `prepare_start`. Raises as `signal_options`."""
    recorded: Any = {name: value for name, value in options.items() if name in CommandOptions.__annotations__}
    return {**{name: options[name] for name in options.keys() - recorded}, "options": signal_options(**recorded)}  # type: ignore[literal-required]


def prepare_start(
    runtime: Runtime,
    workflow: WorkflowRef,
    payload: Payload,
    *,
    trigger: str | None = None,
    queue: str | None = None,
    run_id: str | None = None,
    priority: int = 0,
    version: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Start:
    """Check the arguments of a start and return it as a value; nothing is written.

    Raises:
        NotFound: the workflow, or that version of it, is not registered.
        InvalidArgument, InvalidThread: a trigger that the workflow does not have, a bad queue, run id or option, or
            both a run id and an idempotency key.
        InvalidPayload: a payload that is no JSON object.
    """
    definition = runtime.registry.select(workflow, version)
    name = definition.default_trigger.name if trigger is None else trigger
    if name not in definition.triggers:
        known = ", ".join(definition.triggers)
        raise InvalidArgument(f"workflow {definition.name!r} has no trigger {name!r}: it has {known}")
    given = payload_json(payload)
    signal = Signal(
        type=SignalType.START_RUN,
        payload={"workflow": definition.name, "trigger": name, "input": given},
        **(options or {}),  # type: ignore[arg-type]  # made by signal_options
    )
    key = signal.idempotency_key
    if run_id is not None and key is not None:
        raise InvalidArgument(
            f"a start takes run_id={run_id!r} or idempotency_key={key!r}, not both: either one starts the run once"
        )
    if run_id is None:
        run_id = runtime.new_run_id() if key is None else derived_run_id(definition.name, name, key)
    return Start(
        definition=definition,
        run_id=check_part(run_id, "run id"),
        trigger=name,
        queue=check_part(runtime.queue if queue is None else queue, "queue"),
        signal=signal,
        given=given,
        payload=payload_object(payload, definition),
        priority=priority,
    )


def payload_object(payload: Payload, definition: Definition) -> Payload:
    """Return the payload as an object if that holds more than its JSON: aliases, strict and computed fields."""
    if isinstance(payload, BaseModel) and (definition.payload is None or not isinstance(payload, definition.payload)):
        return None
    return payload


def start_run(runtime: Runtime, start: Start) -> Receipt:
    """Start a run; or return the first receipt of its key or id.

    Raises:
        ConflictingCommand: a run of that id exists, and was started with something else.
        InvalidPayload, InvalidInput, InvalidFact: as `Start.facts`.
    """
    try:
        return write_starts(runtime, [start])[0]
    except Conflict:
        return started_before(runtime, start.run_id, start.signal)
    except SquidError:
        if has_begun(runtime, start.run_id, start.signal):
            return started_before(runtime, start.run_id, start.signal)
        raise


def write_starts(runtime: Runtime, starts: Sequence[Start]) -> list[Receipt]:
    """Write new runs, in one commit if the storage allows it, and return their receipts.

    Raises:
        Conflict: one of them exists; if the storage allows it, nothing was written.
        InvalidPayload, InvalidInput, InvalidFact: as `Start.facts`.
    """
    at = runtime.start_runs(starts, {start.queue for start in starts})
    return [Receipt(start.run_id, str(start.signal.type), at, start.signal.idempotency_key) for start in starts]


def has_begun(runtime: Runtime, run_id: str, signal: Signal) -> bool:
    """Return whether the run of a start with an idempotency key exists, so that its repeat gets the first receipt.

    The definition, or something else, may have changed since, so that the start would be refused now.
    """
    return signal.idempotency_key is not None and runtime.storage.revision(run_thread(run_id)) > 0


def started_before(runtime: Runtime, run_id: str, signal: Signal) -> Receipt:
    """Return the receipt of a run that exists. Raises `ConflictingCommand` if it was started with something else."""
    run = beginning_of(runtime.storage, run_id)
    first = next(iter(run.command_history), None)
    same = first is not None and first.signal_type == signal.type and same_json(first.payload, signal.payload)
    if first is None or run.start is None or not same:
        key = signal.idempotency_key
        used = f"idempotency key {key!r} (run {run_id!r})" if key is not None else f"run id {run_id!r}"
        raise ConflictingCommand(f"{used} was used for another start: use a new one, or the same payload")
    # If a commit cannot span threads, the first start may have crashed before its work was scheduled.
    if not runtime.storage.atomic_across_threads:
        from squid_dagster.runtime.recovery.run_repair import repair_run

        repair_run(runtime, run_id)
    return Receipt.of(first, repeated=True)


def beginning_of(storage: Storage, run_id: str) -> RunProjection:
    """Return a run folded from its first facts, among them its start and the command for it, if there are any."""
    thread = run_thread(run_id)
    run = RunProjection.fold(storage.read(thread, limit=_BEGINNING))
    begun = run.start is not None and run.command_history
    return run if begun else RunProjection.fold(storage.read(thread))


def start_runs(runtime: Runtime, starts: Sequence[Start]) -> list[Receipt]:
    """Start many runs, some hundred in one commit; each as `start_run` does.

    Raises:
        InvalidPayload: one of the payloads does not fit; nothing was started.
        As `start_run`. Runs of earlier commits have been started then: repeat with the same keys.
    """
    receipts: list[Receipt] = []
    for batch in _batches([_checked(runtime, start) for start in starts]):
        receipts += _start_batch(runtime, batch)
    return receipts


def _batches(starts: Sequence[Start]) -> Iterator[list[Start]]:
    """Yield starts in batches that are bounded in number and in the bytes of their payloads."""
    batch: list[Start] = []
    taken = 0
    for start in starts:
        size = len(to_json(start.given)) if start.given else 0
        if batch and (len(batch) == _BATCH or taken + size > MAX_ROUND_BYTES // 4):  # a payload stands in four facts
            yield batch
            batch, taken = [], 0
        batch.append(start)
        taken += size
    if batch:
        yield batch


def _checked(runtime: Runtime, start: Start) -> Start:
    try:
        return replace(start, accepted=start.input())
    except SquidError:
        if has_begun(runtime, start.run_id, start.signal):
            return start
        raise


def _start_batch(runtime: Runtime, batch: list[Start]) -> list[Receipt]:
    unique = {start.run_id: start for start in batch}
    alike = len(unique) == len(batch) and all(start.accepted is not None for start in batch)
    if alike and runtime.storage.atomic_across_threads:
        try:
            return write_starts(runtime, batch)
        except Conflict:
            pass  # one of them exists already: start one by one
    return [start_run(runtime, start) for start in batch]


def with_keys(starts: Sequence[Start], keys: Sequence[str] | None) -> Iterator[Start]:
    """Yield starts with their idempotency keys. Raises `InvalidArgument` unless there is a non-empty one for each."""
    if keys is None:
        yield from starts
        return
    if len(keys) != len(starts):
        raise InvalidArgument(f"{len(keys)} idempotency keys for {len(starts)} runs: give one for each")
    for start, key in zip(starts, keys, strict=True):
        signal = replace(start.signal, idempotency_key=check_key(key))
        yield replace(start, signal=signal, run_id=derived_run_id(start.definition.name, start.trigger, key))


def payload_json(payload: Payload) -> JsonObject:
    """Return the caller's payload as JSON. Raises `InvalidPayload` unless it is a JSON object."""
    if payload is None:
        return {}
    try:
        data: JsonValue = to_jsonable_python(payload)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"the payload is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise InvalidPayload(f"the payload must be a mapping or a model, not a {type(payload).__name__}")
    return data
