"""Redaction of values under keys that name a secret, in facts and wherever data is shown.

Facts are built and read with these rules, and their digests cover the redacted values: the rules never change. What is
shown is redacted further, by `secret_text`.
"""

import re
from itertools import pairwise

from pydantic import JsonValue

REDACTED = "[REDACTED]"

_SECRETS = frozenset(
    """apikey apikeys auth authorization bearer cookie cookies credential credentials jwt passphrase passwd password
    passwords pwd secret secrets token""".split()  # noqa: SIM905
)
# Words that make a secret of a following "key" or "tokens": many harmless things are called that, too.
_BEFORE_KEY = frozenset("access api encryption master private signing ssh".split())  # noqa: SIM905
_BEFORE_TOKENS = frozenset("access api auth bearer id refresh session".split())  # noqa: SIM905
# A number of tokens is not a token.
_HARMLESS_ENDINGS = frozenset("budget count limit ttl type usage".split())  # noqa: SIM905
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def key_words(key: str) -> list[str]:
    """Return the words of a key such as `x-api-key`, `clientSecret` or `db.password`, in lower case."""
    return [part.lower() for part in _WORD.findall(key)]


def is_secret_key(key: str) -> bool:
    """Return whether a key names a secret, by its words: `x-api-key`, `clientSecret` and `session_token` do."""
    parts = key_words(key)
    if not parts or parts[-1] in _HARMLESS_ENDINGS or parts[-2:] in (["token", "hash"], ["fencing", "token"]):
        return False
    if _SECRETS.intersection(parts):
        return True
    return any(
        (left in _BEFORE_KEY and right in ("key", "keys")) or (left in _BEFORE_TOKENS and right == "tokens")
        for left, right in pairwise(parts)
    )


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
