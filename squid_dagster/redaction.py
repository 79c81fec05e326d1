"""What this process hides wherever it shows or logs data: secrets by our rules, and by rules of the user's own.

The one place to add to them: `SQUID_REDACT_KEYS` (names, divided by commas) and `SQUID_REDACT_PATTERNS` (regular
expressions, one per line) in the environment, or `redact_also(...)` in the module that holds the workflows. Facts hold
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
"""Of variables that hold secrets for payloads, which are named in Dagster's launchpad instead of typed."""
MIN_VALUE_LENGTH = 8
"""Of such a secret: the text of a shorter one stands in innocent words, too."""

_lock = threading.Lock()
_rules: Redaction | None = None


def redaction_rules() -> Redaction:
    """Return the rules of this process; the environment is read once, when they are first asked for.

    Raises:
        InvalidArgument: a variable holds no name, or a pattern that is none.
    """
    global _rules
    rules = _rules
    if rules is None:
        with _lock:
            rules = _rules = _rules or rules_from(os.environ)
    return rules


def rules_from(environ: Mapping[str, str]) -> Redaction:
    """Return the rules that an environment asks for; values of `SQUID_PAYLOAD_...` are secrets wherever they stand.

    Raises:
        InvalidArgument: as `Redaction`.
    """
    keys = (each.strip() for each in environ.get(KEYS_VARIABLE, "").split(","))
    patterns = (each.strip() for each in environ.get(PATTERNS_VARIABLE, "").splitlines())
    values = sorted((each for name, each in environ.items() if name.startswith(VALUE_PREFIX)), key=len, reverse=True)
    literal = (re.escape(each) for each in values if len(each) >= MIN_VALUE_LENGTH)
    return Redaction(tuple(filter(None, keys)), (*filter(None, patterns), *literal))


def redact_also(*, keys: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
    """Hide more in this process: values under these keys, and whatever these regular expressions match in a text.

        redact_also(keys=["iban", "card_number"], patterns=[r"CUST-[0-9]{8}"])

    Raises:
        InvalidArgument: a key without letters, or a pattern that cannot be compiled or matches an empty text.
    """
    global _rules
    known = redaction_rules()
    added = Redaction(_several(keys, "keys"), _several(patterns, "patterns"))
    with _lock:
        known = _rules or known
        _rules = Redaction(
            tuple(dict.fromkeys((*known.keys, *added.keys))), tuple(dict.fromkeys((*known.patterns, *added.patterns)))
        )


def redacted_text(text: str) -> str:
    """Return a text that may be shown: without secrets inside it."""
    return redaction_rules().text(text)


def named_error(error: BaseException) -> str:
    """Return the class and the message of an error that is none of ours, as it may be shown, whatever its code does."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  an exception's own code
        said = "(its message cannot be shown)"
    return redacted_text(f"{type(error).__name__}: {said}")


def redacted(value: Any) -> Any:
    """Return a copy of a JSON value that may be shown: nothing under a secret key, no secret inside a text."""
    try:
        return redaction_rules().value(value)
    except RecursionError:  # nested too deep to be looked through: no fact holds such a value
        return REDACTED


def redacted_error(error: Any) -> Any:
    """Return an error, or the reason of a deferral, as it is written down; what is neither is for facts to refuse."""
    if not isinstance(error, dict | str):
        return error
    try:
        return redaction_rules().value(error)
    except RecursionError:
        return error


def _several(values: Iterable[str], name: str) -> tuple[str, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidArgument(f"{name} must be a list of texts, not {type(values).__name__}: put it into a list")
    return tuple(values)
