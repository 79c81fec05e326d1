"""Redaction of values under keys that name a secret, wherever facts or views show data to people."""

import re
from itertools import pairwise

from pydantic import JsonValue

REDACTED = "[REDACTED]"

_SECRET_PARTS = frozenset(
    [
        "apikey",
        "auth",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "jwt",
        "passphrase",
        "passwd",
        "password",
        "pwd",
        "secret",
        "secrets",
        "token",
    ]
)
_KEY_PREFIXES = frozenset(["access", "api", "encryption", "master", "private", "signing", "ssh"])
# A number of tokens is not a token.
_HARMLESS_ENDINGS = frozenset(["budget", "count", "hash", "limit", "ttl", "type", "usage"])
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def is_secret_key(key: str) -> bool:
    """Tell whether a key names a secret, by its parts: `x-api-key`, `clientSecret` and `session_token` all do."""
    parts = [part.lower() for part in _WORD.findall(key)]
    if not parts or parts[-1] in _HARMLESS_ENDINGS:
        return False
    if _SECRET_PARTS.intersection(parts):
        return True
    return any(left in _KEY_PREFIXES and right == "key" for left, right in pairwise(parts))


def redact(value: JsonValue) -> JsonValue:
    """Return a copy of `value` in which every value under a secret key, at any depth, reads `[REDACTED]`."""
    if isinstance(value, dict):
        return {key: REDACTED if is_secret_key(key) else redact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [redact(item) for item in value]
    return value


def redact_object(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Redact a JSON object, as `redact` does; an empty one costs nothing."""
    return {key: REDACTED if is_secret_key(key) else redact(item) for key, item in value.items()} if value else value
