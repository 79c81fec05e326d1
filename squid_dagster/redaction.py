"""The redaction rules of this process: what is hidden wherever data is shown or logged.

Users add rules with `SQUID_REDACT_KEYS` (names, separated by commas) and `SQUID_REDACT_PATTERNS` (regular expressions,
one per line) in the environment, or with `redact_also(...)` in the module that holds the workflows. Facts hold
payloads and results as they are, since steps need them; errors are redacted before they are written.
"""

import os
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.redaction import REDACTED
from squid_dagster.protocol.secret_text import Redaction

KEYS_VARIABLE = "SQUID_REDACT_KEYS"
PATTERNS_VARIABLE = "SQUID_REDACT_PATTERNS"
VALUE_PREFIX = "SQUID_PAYLOAD_"
"""Prefix of variables that hold secrets for payloads, which are named in Dagster's launchpad instead of typed."""
MIN_VALUE_LENGTH = 8
"""Shorter secrets are not searched for: their text also occurs in harmless words."""

_lock = threading.Lock()
_rules: Redaction | None = None


def redaction_rules() -> Redaction:
    """Return the rules of this process; the environment is read once, on the first call.

    Raises:
        InvalidArgument: a variable holds an invalid name or pattern.
    """
    global _rules
    rules = _rules
    if rules is None:
        with _lock:
            rules = _rules = _rules or rules_from(os.environ)
    return rules


def rules_from(environ: Mapping[str, str]) -> Redaction:
    """Return the rules of an environment; values of `SQUID_PAYLOAD_...` are hidden wherever they occur.

    Raises:
        InvalidArgument: as `Redaction`.
    """
    keys = (key.strip() for key in environ.get(KEYS_VARIABLE, "").split(","))
    patterns = (pattern.strip() for pattern in environ.get(PATTERNS_VARIABLE, "").splitlines())
    values = sorted((value for name, value in environ.items() if name.startswith(VALUE_PREFIX)), key=len, reverse=True)
    literals = (re.escape(value) for value in values if len(value) >= MIN_VALUE_LENGTH)
    return Redaction(tuple(filter(None, keys)), (*filter(None, patterns), *literals))


def redact_also(*, keys: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
    """Add rules to this process: hide values under these keys, and what these regular expressions match in a text.

        redact_also(keys=["iban", "card_number"], patterns=[r"CUST-[0-9]{8}"])

    Raises:
        InvalidArgument: a key without letters, or a pattern that cannot be compiled or matches an empty text.
    """
    global _rules
    known = redaction_rules()
    added = Redaction(_checked_texts(keys, "keys"), _checked_texts(patterns, "patterns"))
    with _lock:
        known = _rules or known
        _rules = Redaction(
            tuple(dict.fromkeys((*known.keys, *added.keys))), tuple(dict.fromkeys((*known.patterns, *added.patterns)))
        )


def redacted_text(text: str) -> str:
    """Return a text without the secrets inside it."""
    return redaction_rules().text(text)


def named_error(error: BaseException) -> str:
    """Return the class and the redacted message of an error of another library. Never raises."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  an exception's own code
        message = "(its message cannot be shown)"
    return redacted_text(f"{type(error).__name__}: {message}")


def redacted(value: Any) -> Any:
    """Return a copy of a JSON value without secrets: those under secret keys, and those inside texts."""
    try:
        return redaction_rules().value(value)
    except RecursionError:  # nested too deep: no fact holds such a value
        return REDACTED


def redacted_error(error: Any) -> Any:
    """Redact an error, or the reason of a deferral, before it is written; return other values for facts to refuse."""
    if not isinstance(error, dict | str):
        return error
    try:
        return redaction_rules().value(error)
    except RecursionError:
        return error


def _checked_texts(values: Iterable[str], name: str) -> tuple[str, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidArgument(f"{name} must be a list of texts, not {type(values).__name__}: put it into a list")
    return tuple(values)
