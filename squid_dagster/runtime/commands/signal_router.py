"""`apply_signal`: the one entry for commands that come as data. Rejects unknown fields of a command's payload."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from squid_dagster.protocol.errors import InvalidArgument, shown
from squid_dagster.runtime.commands.cloudevents import from_cloudevent, signal_from_json
from squid_dagster.runtime.commands.cron_starts import start_cron
from squid_dagster.runtime.commands.external_outcomes import complete_external, note_external
from squid_dagster.runtime.commands.run_commands import cancel, replay, resolve, retry_attempt
from squid_dagster.runtime.commands.run_start import prepare_start, start_run
from squid_dagster.runtime.commands.signals import Receipt, Signal, SignalType, check_signal
from squid_dagster.runtime.runtime import Runtime

_RESOLUTIONS = (SignalType.APPROVE_RUN, SignalType.REJECT_RUN, SignalType.RESUME_RUN)


def read_signal(signal: Signal | Mapping[str, Any], event_sources: Collection[str]) -> Signal:
    """Return a checked signal from a `Signal`, its JSON form, or a CloudEvent of one of these sources.

    Raises:
        InvalidArgument: it is none of these, of an unknown source, or a command that is not known.
    """
    if isinstance(signal, Mapping):
        return from_cloudevent(signal, event_sources) if "specversion" in signal else signal_from_json(signal)
    return check_signal(signal)


def apply_signal(runtime: Runtime, signal: Signal) -> Receipt:
    """Execute the command of a signal, and return its receipt. The signal was checked by `check_signal`.

    Raises:
        InvalidArgument: a type that is no command for data, or a payload field that is missing or unknown.
        SquidError: whatever the command raises.
    """
    handler = _HANDLERS.get(signal.type)
    if handler is None:
        raise InvalidArgument(f"signal type {signal.type!r} cannot be applied: use one of {', '.join(_HANDLERS)}")
    options = {
        "actor": signal.actor,
        "comment": signal.comment,
        "metadata": signal.metadata,
        "idempotency_key": signal.idempotency_key,
        "caller_time": signal.caller_time,
    }
    return handler(runtime, signal, options)


def _fields(signal: Signal, required: Mapping[str, type], optional: Mapping[str, type] | None = None) -> dict[str, Any]:
    allowed = {**required, **(optional or {})}
    unknown = sorted(set(signal.payload) - set(allowed))
    if unknown:
        raise InvalidArgument(f"{signal.type} takes no {', '.join(unknown)}: its payload has {', '.join(allowed)}")
    for name, kind in allowed.items():
        value = signal.payload.get(name)
        fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
        if (name in required or value is not None) and not fits:
            raise InvalidArgument(f"{signal.type} needs {name} of type {kind.__name__}, not {shown(value, 80)}")
    return {name: signal.payload.get(name) for name in allowed}


def _start(runtime: Runtime, signal: Signal, options: dict[str, Any]) -> Receipt:
    given = _fields(
        signal, {"workflow": str}, {"trigger": str, "input": dict, "queue": str, "priority": int, "version": str}
    )
    start = prepare_start(
        runtime,
        given["workflow"],
        given["input"],
        trigger=given["trigger"],
        queue=given["queue"],
        priority=given["priority"] or 0,
        version=given["version"],
        options=options,
    )
    return start_run(runtime, start)


def _start_cron(runtime: Runtime, signal: Signal, options: dict[str, Any]) -> Receipt:
    given = _fields(
        signal,
        {"workflow": str, "trigger": str},
        {"signal_id": str, "intended_window": dict, "queue": str, "input": dict},
    )
    identity = given["signal_id"] or signal.idempotency_key
    return start_cron(
        runtime,
        given["workflow"],
        given["trigger"],
        options,
        signal_id=identity,
        intended_window=given["intended_window"],
        queue=given["queue"],
        expected_input=given["input"],
    )


def _resolve(runtime: Runtime, signal: Signal, options: dict[str, Any]) -> Receipt:
    given = _fields(signal, {"run_id": str}, {"step": str, "actor": object, "comment": str})
    for name in ("actor", "comment"):
        options[name] = options[name] if options[name] is not None else given[name]
    return resolve(runtime, given["run_id"], SignalType(signal.type), options, step=given["step"])


def _cancel(runtime: Runtime, signal: Signal, options: dict[str, Any]) -> Receipt:
    given = _fields(signal, {"run_id": str}, {"cascade": bool})
    return cancel(runtime, given["run_id"], options, cascade=bool(given["cascade"]))


def _replay(runtime: Runtime, signal: Signal, options: dict[str, Any]) -> Receipt:
    given = _fields(signal, {"run_id": str}, {"allow_irreversible": bool})
    return replay(runtime, given["run_id"], options, allow_irreversible=given["allow_irreversible"] is True)


def _retry(runtime: Runtime, signal: Signal, options: dict[str, Any]) -> Receipt:
    given = _fields(signal, {"run_id": str}, {"runnable_key": str})
    return retry_attempt(runtime, given["run_id"], given["runnable_key"], options)


def _note_external(runtime: Runtime, signal: Signal, options: dict[str, Any]) -> Receipt:
    given = _fields(
        signal, {"run_id": str, "runnable_key": str, "launcher": str}, {"external_run_id": str, "launch": int}
    )
    return note_external(runtime, SignalType(signal.type), given, options)


def _complete_external(runtime: Runtime, signal: Signal, options: dict[str, Any]) -> Receipt:
    given = _fields(
        signal,
        {"run_id": str, "runnable_key": str, "succeeded": bool},
        {"result": object, "error": dict, "final": bool, "external_run_id": str},
    )
    return complete_external(runtime, given, options)


_HANDLERS: dict[str, Callable[[Runtime, Signal, dict[str, Any]], Receipt]] = {
    SignalType.START_RUN: _start,
    SignalType.START_CRON: _start_cron,
    SignalType.REPLAY_RUN: _replay,
    SignalType.CANCEL_RUN: _cancel,
    SignalType.RETRY_ATTEMPT: _retry,
    SignalType.EXTERNAL_REQUESTED: _note_external,
    SignalType.EXTERNAL_STARTED: _note_external,
    SignalType.EXTERNAL_COMPLETED: _complete_external,
    **dict.fromkeys(_RESOLUTIONS, _resolve),
}
