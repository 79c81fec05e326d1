"""How data is shown: secrets hidden by their keys, values as plain JSON, times and spans in words."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from squid_dagster.protocol.redaction import REDACTED
from squid_dagster.redaction import redacted, redacted_text, redaction_rules

# Not a secret by itself; but with a known token, its claim could be found by it.
_HIDDEN = frozenset({"claim_token_hash"})
_CONDITION = frozenset({"path", "operator", "value"})
_LONGEST_TEXT = 300


def shown(value: Any) -> Any:
    """Return an independent copy of a JSON value that may be shown: no secret, by key or in a text, no token hash."""
    return _without_hidden(redacted(value))


def shown_object(value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a JSON object as `shown` does; None as an empty one."""
    return {} if value is None else dict(shown(dict(value)))


def _without_hidden(value: Any) -> Any:
    if isinstance(value, dict):
        visible = {key: _without_hidden(item) for key, item in value.items() if key not in _HIDDEN}
        if visible.keys() >= _CONDITION and asks_for_secret(visible["path"]):
            visible["value"] = REDACTED
        return visible
    return [_without_hidden(item) for item in value] if isinstance(value, list) else value


def asks_for_secret(path: object) -> bool:
    """Return whether the path of a condition leads to a secret: then what it is compared with is one, too."""
    return isinstance(path, list | tuple) and any(
        isinstance(part, str) and redaction_rules().is_secret_key(part) for part in path
    )


def without_values(reason: str) -> str:
    """Return why an entry cannot be read, up to the first value that it quotes: such values are not shown."""
    return reason.split(" (got ", 1)[0]


def brief(text: str, limit: int = _LONGEST_TEXT) -> str:
    """Return a text on one line, not longer than a person reads, and without secrets."""
    line = " ".join(redacted_text(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def message_of(error: Mapping[str, Any] | None) -> str:
    """Return an error on one line: its type or code, and its message."""
    known = shown_object(error)
    parts = [known.get("type") or known.get("code"), known.get("message")]
    return brief(": ".join(part for part in parts if isinstance(part, str) and part)) or "no message"


def who(actor: object) -> str:
    """Return the name of an actor: a text as it is, of a record its name, e-mail or id."""
    if isinstance(actor, str):
        return brief(actor, 100)
    known = shown_object(actor) if isinstance(actor, Mapping) else {}
    named = next((known[key] for key in ("name", "email", "id") if isinstance(known.get(key), str)), None)
    return brief(named, 100) if named else "somebody"


def when(at: datetime) -> str:
    """Format a time for a sentence."""
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def span(length: timedelta) -> str:
    """Format a length of time in its two largest units, without its sign."""
    left = int(abs(length).total_seconds())
    units: list[tuple[int, str]] = []
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (units and len(units) < 2):
            units.append((count, name))
    return " ".join(f"{count} {name}" for count, name in units[:2] if count) or "0 s"


def plain(value: Any) -> Any:
    """Return a value as JSON: times as ISO texts, a span under its name with `_seconds`, objects by their fields."""
    if is_dataclass(value) and not isinstance(value, type):
        return _object({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _object(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value.value if isinstance(value, Enum) else value


def _object(named: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{name}_seconds" if isinstance(item, timedelta) else name: (
            item.total_seconds() if isinstance(item, timedelta) else plain(item)
        )
        for name, item in named.items()
    }
