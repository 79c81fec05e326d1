"""Signals as CloudEvents, in both directions: an envelope that other systems route.

Only known commands from known sources are accepted. An event without an idempotency key has one of its source and id.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from squid_dagster.protocol.argument_checks import checked, text_problem
from squid_dagster.protocol.errors import InvalidArgument, shown
from squid_dagster.protocol.facts.base import MAX_TEXT, JsonObject
from squid_dagster.runtime.commands.signals import Signal, SignalType, check_signal, zoned_time
from squid_dagster.runtime.commands.signals import bad_field as _bad

SPEC_VERSION = "1.0"
SOURCE = "/squid/runtime/commands"
CONTENT_TYPE = "application/vnd.squid.runtime-signal+json"
_PREFIX = "squid.runtime.command."
# A child is started by a step with its claim, which is never sent as data.
_APPLICABLE = tuple(kind for kind in SignalType if kind is not SignalType.START_CHILD_RUN)
_TYPES = {_PREFIX + kind: kind for kind in _APPLICABLE}
_FIELDS = frozenset({"type", "payload", "metadata", "idempotency_key", "actor", "comment", "occurred_at"})


@checked
def to_cloudevent(signal: Signal, event_id: str, occurred_at: datetime) -> JsonObject:
    """Return a signal as a CloudEvent. Its subject is the signal's run, or the workflow that it starts."""
    data: JsonObject = {
        "type": str(signal.type),
        "payload": signal.payload,
        "metadata": signal.metadata,
        "occurred_at": occurred_at.astimezone(UTC).isoformat(),
    }
    for name in ("idempotency_key", "actor", "comment"):
        value = getattr(signal, name)
        if value is not None:
            data[name] = value
    return {
        "specversion": SPEC_VERSION,
        "id": event_id,
        "source": SOURCE,
        "type": _PREFIX + signal.type,
        "subject": _subject(signal.payload),
        "time": occurred_at.astimezone(UTC).isoformat(),
        "datacontenttype": CONTENT_TYPE,
        "data": data,
    }


def check_sources(sources: Collection[str]) -> tuple[str, ...]:
    """Return the accepted sources; raise `InvalidArgument` unless these are a list of URI references."""
    if isinstance(sources, str) or not isinstance(sources, Collection):
        raise InvalidArgument(f"event_sources must be a list of texts, not a {type(sources).__name__}")
    for source in sources:
        if not isinstance(source, str) or not source or not source.isprintable() or " " in source:
            raise InvalidArgument(f"event_sources holds {source!r:.80}: a source is a URI reference, such as '/shop'")
    return tuple(sources)


@checked
def from_cloudevent(event: Mapping[str, Any], sources: Collection[str] = (SOURCE,)) -> Signal:
    """Parse a signal from a CloudEvent of one of these sources. Only known commands are accepted.

    Its `time` is kept as the caller's. Without an `idempotency_key` of its own, source and id are the key.

    Raises:
        InvalidArgument: names the field that is missing, unknown or does not fit the others.
    """
    if not isinstance(event, Mapping):
        raise InvalidArgument(f"a CloudEvent is a JSON object, not a {type(event).__name__}")
    if not _is_one_of(event.get("specversion"), SPEC_VERSION):
        raise _bad("specversion", event.get("specversion"), f"use {SPEC_VERSION!r}")
    if not isinstance(event.get("type"), str) or event["type"] not in _TYPES:
        raise _bad("type", event.get("type"), f"use one of {', '.join(sorted(_TYPES))}")
    for name in ("id", "source"):
        if text_problem(event.get(name)) is not None or not event[name]:
            raise _bad(name, event.get(name), "use a non-empty text in UTF-8")
    if event["source"] not in sources:
        known = ", ".join(map(repr, sources)) or "none"
        raise _bad("source", event["source"], f"the known ones are {known}: add it to event_sources=[...]")
    if not _is_one_of(event.get("datacontenttype", CONTENT_TYPE), CONTENT_TYPE, "application/json"):
        raise _bad("datacontenttype", event.get("datacontenttype"), f"use {CONTENT_TYPE!r}")
    data = event.get("data")
    if not isinstance(data, Mapping):
        raise _bad("data", data, "use a JSON object with type, payload and metadata")
    signal = signal_from_json(data)
    if signal.type != _TYPES[event["type"]]:
        raise _bad("data.type", signal.type, f"it must be {_TYPES[event['type']]!r}, as the event's type says")
    subject = _subject(signal.payload)
    if event.get("subject") is not None and not _is_one_of(event["subject"], subject):
        raise _bad("subject", event["subject"], f"it must be {subject!r}, as the payload says")
    time = _caller_time("time", event.get("time")) or signal.caller_time
    return replace(signal, caller_time=time, idempotency_key=_event_key(event, signal))


def _is_one_of(value: object, *expected: str | None) -> bool:
    return isinstance(value, str) and value in expected


def _event_key(event: Mapping[str, Any], signal: Signal) -> str | None:
    """Return the idempotency key of an event: its own; None for a cron window; else its source and id."""
    if signal.idempotency_key is not None:
        return signal.idempotency_key
    if signal.type == SignalType.START_CRON and signal.payload.get("intended_window"):
        return None  # the window identifies the start, for any event
    key = f"{event['source']} {event['id']}"
    if len(key) > MAX_TEXT:
        raise _bad("id", event["id"], f"source and id may have {MAX_TEXT} characters together: send an idempotency_key")
    return key


def _caller_time(name: str, value: object) -> datetime | None:
    time = zoned_time(value)
    if value is not None and time is None:
        raise _bad(name, value, "use a time with a timezone, such as '2026-01-31T12:00:00Z'")
    return time


@checked
def signal_from_json(data: Mapping[str, Any]) -> Signal:
    """Parse a signal from plain JSON. Raises `InvalidArgument` naming the field that is wrong or unknown."""
    unknown = sorted(name if isinstance(name, str) else shown(name) for name in data if name not in _FIELDS)
    if unknown:
        raise _bad("data", ", ".join(unknown), f"a signal may hold {', '.join(sorted(_FIELDS))}")
    kind = data.get("type")
    if not isinstance(kind, str) or kind not in _APPLICABLE:
        raise _bad("type", kind, f"use one of {', '.join(_APPLICABLE)}")
    for name in ("payload", "metadata"):
        if not isinstance(data.get(name, {}), dict):
            raise _bad(name, data[name], "use a JSON object")
    for name in ("idempotency_key", "comment"):
        if data.get(name) is not None and (not isinstance(data[name], str) or not data[name]):
            raise _bad(name, data[name], "use a non-empty text")
    if data.get("actor") is not None and not isinstance(data["actor"], str | dict):
        raise _bad("actor", data["actor"], "use a name or a JSON object")
    return check_signal(
        Signal(
            type=kind,
            payload=dict(data.get("payload", {})),
            metadata=dict(data.get("metadata", {})),
            idempotency_key=data.get("idempotency_key"),
            actor=data.get("actor"),
            comment=data.get("comment"),
            caller_time=_caller_time("occurred_at", data.get("occurred_at")),
        )
    )


def _subject(payload: Mapping[str, Any]) -> str | None:
    subject = payload.get("run_id", payload.get("workflow"))
    return subject if isinstance(subject, str) else None
