"""Aliases for values that differ from one test run to the next: ids, times, fingerprints. Pure."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from squid_dagster.inspection.display import shown, without_values
from squid_dagster.protocol.entries import Entry, MalformedFact, UnknownFact
from squid_dagster.protocol.threads import parse_thread, run_thread

_ENVELOPE = frozenset({"type", "run_id", "occurred_at"})
_HARMLESS = frozenset({"fencing_token"})  # a count of claims, not a secret
# Fields of facts with random or machine-dependent values, and the kind of their aliases.
_IDS = {
    "child_run_id": "run",
    "replayed_from_run_id": "run",
    "claim_id": "claim",
    "owner_id": "worker",
    "definition_fingerprint": "definition",
}
_PART = r"[A-Za-z0-9_.-]"


class Aliases:
    """The aliases of one run's history, numbered in order of appearance, so that equal histories have equal aliases."""

    def __init__(self, run_id: str, entries: Sequence[Entry]) -> None:
        """Collect the values of a run's facts that need an alias. There must be at least one fact."""
        self._run_id, self._begin = run_id, entries[0].fact.occurred_at
        self._names: dict[str, str] = {}
        self._times: dict[str, str] = {}
        self._name("run", run_id)
        for entry in entries:
            data = _data(entry)
            for kind, name in _ids(data):
                self._name(kind, name)
            for text in _times(data):
                if isinstance(text, str) and (at := _time(text)) is not None:
                    self._times[text] = offset(at - self._begin)
        known = "|".join(re.escape(name) for name in sorted(self._names, key=len, reverse=True))
        self._known = re.compile(rf"(?<!{_PART})(?:{known})(?!{_PART})")

    def _name(self, kind: str, name: Any) -> None:
        if isinstance(name, str) and name not in self._names:
            number = sum(alias.startswith(f"{kind}-") for alias in self._names.values()) + 1
            self._names[name] = f"{kind}-{number}"

    def line(self, entry: Entry) -> dict[str, Any]:
        """Return an entry as a line of a golden history."""
        fact = entry.fact
        line: dict[str, Any] = {
            "at": offset(fact.occurred_at - self._begin),
            "thread": "run" if entry.thread == run_thread(self._run_id) else self._thread(entry.thread),
            "type": fact.type,
        }
        if isinstance(fact, MalformedFact):
            return {**line, "unreadable": without_values(fact.reason)}
        data = _data(entry)
        harmless = {name: data[name] for name in _HARMLESS if name in data}
        return {**line, "data": self._aliased({**shown(data), **harmless})}

    def _thread(self, thread: str) -> str:
        kind, part = parse_thread(thread)
        return self._text(f"{kind.value}:{part}")

    def _aliased(self, value: Any) -> Any:
        if isinstance(value, dict):
            hidden = {"traceback"} if {"type", "message", "traceback"} <= value.keys() else ()
            return {self._text(key): self._aliased(item) for key, item in sorted(value.items()) if key not in hidden}
        if isinstance(value, list):
            return [self._aliased(item) for item in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        if text in self._times:
            return self._times[text]
        return self._known.sub(lambda match: self._names[match[0]], text)


def offset(since: timedelta) -> str:
    """Format the time since the first fact, exactly: +0s, +3d, +1h30m0.5s."""
    sign, left = ("-", -since) if since < timedelta(0) else ("+", since)
    parts = []
    for unit, name in ((timedelta(days=1), "d"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "m")):
        count, left = divmod(left, unit)
        if count:
            parts.append(f"{count}{name}")
    if left or not parts:
        seconds = f"{left.seconds}.{left.microseconds:06d}".rstrip("0").rstrip(".")
        parts.append(f"{seconds}s")
    return sign + "".join(parts)


def _data(entry: Entry) -> dict[str, Any]:
    """Return the fields of a fact without type, run, time and default values."""
    fact = entry.fact
    if isinstance(fact, MalformedFact):
        return {}
    if isinstance(fact, UnknownFact):
        return dict(fact.data)
    data = fact.model_dump(mode="json", exclude=set(_ENVELOPE), exclude_defaults=True)
    for runnable in data.get("runnables", ()):
        del runnable["run_id"]
    return data


def _ids(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the ids in a fact, from the fields that the runtime sets, in order, each with its kind."""
    for field, kind in _IDS.items():
        yield kind, data.get(field)
    for place in (("payload", "run_id"), ("payload", "cancelled_with"), ("context", "parent", "run_id")):
        yield "run", _at(data, *place)


def _times(data: dict[str, Any]) -> Iterator[Any]:
    """Yield the times in a fact, from the fields that the runtime sets; other times are values of the user."""
    places = [data, _at(data, "context", "schedule", "intended_window"), _at(data, "metadata", "deadline")]
    for runnable in data.get("runnables", ()):
        places += [runnable, runnable.get("deadline")]
    for place in places:
        if isinstance(place, dict):
            yield from (value for field, value in place.items() if field.endswith(("_at", "_until")))
    yield _at(data, "metadata", "at")
    yield _at(data, "result", "decided_at")


def _at(value: Any, *path: str) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
