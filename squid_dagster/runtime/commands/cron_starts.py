"""Starts by cron: one run for each window, however late, and however many processes start it."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from squid_dagster.journal.contract.queries import ScheduleCursor
from squid_dagster.journal.settlement.rounds import may_concern_one
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import (
    Conflict,
    ConflictingCommand,
    InvalidArgument,
    SquidError,
    StorageUnavailable,
)
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.threads import check_part
from squid_dagster.runtime.commands.derived_ids import derived_run_id, window_identity
from squid_dagster.runtime.commands.run_start import Start, WorkflowRef, beginning_of, has_begun, write_starts
from squid_dagster.runtime.commands.signals import Receipt, Signal, SignalType, same_json, zoned_time
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.workflow.cron.triggers import Cron
from squid_dagster.workflow.cron.windows import Window, due_windows
from squid_dagster.workflow.definition import Definition

logger = redacting_logger(__name__)

# A trigger without any run starts with a window that is at most this old when it is first checked: a nightly job that
# is deployed by day has missed no night.
FIRST_WINDOW_WITHIN = timedelta(minutes=10)
_MOST = 1000  # windows that one call starts, for each trigger


def start_cron(
    runtime: Runtime,
    workflow: WorkflowRef,
    trigger: str,
    options: Mapping[str, Any],
    *,
    signal_id: str | None = None,
    intended_window: Mapping[str, str] | None = None,
    queue: str | None = None,
    expected_input: JsonObject | None = None,
) -> Receipt:
    """Start the run of one window, or of one signal of another scheduler: once, however often repeated.

    The window is `{"start_at": ..., "end_at": ...}`, as ISO 8601 texts with a timezone. A repeat returns the first
    receipt, also if the definition has changed since; for a trigger with `idempotency="skip_duplicate"` as `skipped`.
    The input is the trigger's own; `expected_input` may only confirm it.

    Raises:
        NotFound: the workflow is not registered.
        InvalidArgument, InvalidThread: no such cron trigger, neither signal nor window, a malformed one, a bad queue.
    """
    definition, cron = _cron(runtime, workflow, trigger)
    window = _window(intended_window)
    identity = signal_id or (window and window_identity(definition.name, trigger, window["start_at"], window["end_at"]))
    if not identity or not isinstance(identity, str):
        raise InvalidArgument(
            f"a cron start of {definition.name!r} needs an identity: give signal_id, or intended_window with start_at "
            "and end_at, so that a repeated tick starts nothing twice"
        )
    start = _start(runtime, definition, cron, identity, signal_id, window, options, queue)
    if has_begun(runtime, start.run_id, start.signal):
        return _started_before(runtime, start, cron)
    if expected_input and not same_json(expected_input, start.given):
        raise InvalidArgument(f"cron trigger {trigger!r} starts runs with a payload of its own: leave the input out")
    try:
        return write_starts(runtime, [start])[0]
    except Conflict:
        return _started_before(runtime, start, cron)


def start_due_crons(
    runtime: Runtime, now: datetime | None = None, *, only: tuple[WorkflowRef, str] | None = None
) -> list[Receipt]:
    """Start every due window of every registered cron trigger that was not started, as its `catch_up` says.

    Windows follow from the journal: any number of callers, late or repeated, start each window exactly once. A trigger
    that cannot be started is logged, and the others are started. With `only`, a workflow and the name of its trigger,
    only that one is started, and its error is raised.

    Raises:
        InvalidArgument: `now` has no timezone.
        StorageUnavailable: the database cannot be reached. What was started until then stays started.
        SquidError: with `only`, whatever `start_cron` raises.
    """
    at = runtime.now() if now is None else now
    if at.tzinfo is None:
        raise InvalidArgument(f"now must be a time with a timezone, not {at!r}")
    if only is not None:
        return _start_due(runtime, *_cron(runtime, *only), at)
    receipts: list[Receipt] = []
    for definition in runtime.registry:
        if runtime.registry.current(definition.name) is not definition:
            continue
        for cron in definition.triggers.values():
            if isinstance(cron, Cron):
                try:
                    receipts += _start_due(runtime, definition, cron, at)
                except SquidError as error:
                    if isinstance(error, StorageUnavailable) and not may_concern_one(error):
                        raise
                    logger.error("cron %r of workflow %r could not be started: %s", cron.name, definition.name, error)
    return receipts


def _cron(runtime: Runtime, workflow: WorkflowRef, trigger: str) -> tuple[Definition, Cron]:
    definition = runtime.registry.select(workflow)
    cron = definition.triggers.get(trigger)
    if not isinstance(cron, Cron):
        known = (
            ", ".join(name for name, declared in definition.triggers.items() if isinstance(declared, Cron)) or "none"
        )
        raise InvalidArgument(f"workflow {definition.name!r} has no cron trigger {trigger!r}: it has {known}")
    return definition, cron


def _start_due(runtime: Runtime, definition: Definition, cron: Cron, at: datetime) -> list[Receipt]:
    cursor = runtime.queries.schedule_cursor(definition.name, cron.name)
    return [_start_window(runtime, definition, cron, window) for window in windows_due(cron, cursor, at, _MOST)]


def windows_due(cron: Cron, cursor: ScheduleCursor, at: datetime, limit: int) -> list[Window]:
    """Return the windows of a trigger that are due and were not started, oldest first. Raises as `due_windows`."""
    since = at - FIRST_WINDOW_WITHIN if cursor.reached is None else cursor.reached
    return due_windows(cron, cursor.reached, at, since, limit, cursor.ahead)


def _start_window(runtime: Runtime, definition: Definition, cron: Cron, window: Window) -> Receipt:
    texts = {"start_at": window.start_at.isoformat(), "end_at": window.end_at.isoformat()}
    return start_cron(runtime, definition, cron.name, {}, intended_window=texts)


def _window(given: Mapping[str, str] | None) -> dict[str, str] | None:
    if not given:
        return None
    start_at, end_at = (_moment(name, given.get(name)) for name in ("start_at", "end_at"))
    if end_at <= start_at:
        raise InvalidArgument(f"intended_window must end after its start {given.get('start_at')!r:.80}")
    # One spelling for one time: the same window in another timezone means the same run.
    return {"start_at": _spelled(start_at), "end_at": _spelled(end_at)}


def _moment(name: str, text: object) -> datetime:
    moment = zoned_time(text)
    if moment is None:
        raise InvalidArgument(f"intended_window needs {name} as an ISO 8601 text with a timezone, not {text!r:.80}")
    return moment


def _spelled(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _start(
    runtime: Runtime,
    definition: Definition,
    cron: Cron,
    identity: str,
    signal_id: str | None,
    window: dict[str, str] | None,
    options: Mapping[str, Any],
    queue: str | None,
) -> Start:
    given: JsonObject = dict(cron.payload)
    schedule: JsonObject = {
        "workflow": definition.name,
        "trigger_name": cron.name,
        "cron_expression": cron.expression,
        "timezone": cron.timezone,
        "idempotency": cron.idempotency,
        "idempotency_key": identity,
    }
    if signal_id is not None:
        schedule["signal_id"] = signal_id
    if window is not None:
        schedule["intended_window"] = dict(window)
    signal = Signal(
        type=SignalType.START_CRON,
        payload={"workflow": definition.name, "trigger": cron.name, "input": given},
        **{**options, "idempotency_key": identity},
    )
    return Start(
        definition=definition,
        run_id=derived_run_id(definition.name, cron.name, identity),
        trigger=cron.name,
        queue=check_part(runtime.queue if queue is None else queue, "queue"),
        signal=signal,
        given=given,
        context={"schedule": schedule},
    )


def _started_before(runtime: Runtime, start: Start, cron: Cron) -> Receipt:
    run = beginning_of(runtime.storage, start.run_id)
    first = next(iter(run.command_history), None)
    if first is None or first.signal_type != SignalType.START_CRON:
        raise ConflictingCommand(f"run id {start.run_id!r} of this window was used for something else")
    return replace(Receipt.of(first, repeated=True), skipped=cron.idempotency == "skip_duplicate")
