"""Secrets inside free text: an exception's message, a traceback, a URL, a comment. Pure.

`redaction` finds secrets by their key; this finds them by their shape and by the name before them, and nothing else.
Every rule reads a text once, from left to right: a megabyte costs some milliseconds, whatever it holds.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.redaction import REDACTED, is_secret_key, key_words

HIDDEN: Final = "***"
_PASSES = 5

# Every text that a rule changes holds one of these; most texts hold none and are only searched for them.
_MARKS = tuple(
    """://|passw|passphrase|pwd|secret|token|credential|cookie|auth|bearer|jwt|apikey|key|sig|akia|asia|agpa|aida|aroa
    |ghp_|gho_|ghu_|ghs_|ghr_|github_pat_|glpat-|xox|eyj|private key|sk_|rk_|sk-|aiza|npm_|pypi-|sg.|hf_|dop_v1_|dapi
    |basic |hooks.slack""".replace("\n    ", "").split("|")
)

# Each sequence of characters is read once: possessive, and starting only after a character that is not part of it.
_SHAPES = re.compile(
    r"""
    (?<![A-Za-z0-9])(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{16}(?![A-Za-z0-9])
    | (?<![A-Za-z0-9_])gh[pousr]_[A-Za-z0-9]{20,}+
    | (?<![A-Za-z0-9_])github_pat_[A-Za-z0-9_]{20,}+
    | (?<![\w-])glpat-[\w-]{16,}+
    | (?<![A-Za-z0-9-])xox[a-z]-[A-Za-z0-9-]{10,}+
    | (?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+)?
    | (?<![A-Za-z0-9_])[sr]k_(?:live|test)_[A-Za-z0-9]{10,}+
    | (?<![\w-])sk-(?=[A-Za-z_-]{0,64}[0-9])[\w-]{16,}+
    | (?<![\w-])AIza[\w-]{35,}+
    | (?<![A-Za-z0-9_])npm_[A-Za-z0-9]{30,}+
    | (?<![\w-])pypi-[\w-]{32,}+
    | (?<![\w.-])SG\.[\w-]{16,}+\.[\w-]{16,}+
    | (?<![A-Za-z0-9_])hf_[A-Za-z0-9]{20,}+
    | (?<![A-Za-z0-9_])dop_v1_[a-f0-9]{32,}+
    | (?<![A-Za-z0-9])dapi[a-f0-9]{32,}+
    """,
    re.VERBOSE | re.ASCII,
)
_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----).*?(-----END [A-Z0-9 ]{0,60}-----|\Z)", re.S
)
_SLACK_HOOK = re.compile(r"(hooks\.slack\.com/(?:services|workflows)/)[A-Za-z0-9/_-]++")
# Everything up to the last @ before the host's end; then, in invalid URLs, a password that holds a slash.
_USER = re.compile(r"""://([^\s/?#"'<>]*)@""")
_ODD_USER = re.compile(r"""://([^\s:/?#@"'<>]{0,100}:(?![0-9]{1,5}[/?#])[^\s@"'<>]{1,100})@""")
_PLAIN_USER = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,19}\Z")
_SCHEME = re.compile(
    r"""(?<![\w-])((?:bearer|basic|digest|negotiate|apikey)[ \t]{1,4})(?=[^\s"',;]{16}|[^\s"',;0-9=]{0,16}[0-9=])"""
    r"""[^\s"',;]{6,}+""",
    re.IGNORECASE,
)

_NAME = re.compile(
    r"""(?<![\w.-])(?:
        (?P<option>--[\w-]++)(?:[ =]|\\?["'],[ ]?\\?["'])
        | (?P<name>[\w.-]++)(?P<end>\\*["'])?[ \t]{0,4}(?:=>|=|:(?!//))[ \t]{0,4}
    )""",
    re.VERBOSE,
)
_VALUE = re.compile(
    r"""(?P<open>\\{1,8}["'])(?P<escaped>(?:(?!(?P=open))[^\n])*+)      # in quotes that are themselves quoted
    | (?P<quote>["'])(?P<quoted>(?:(?!(?P=quote))(?:\\.|[^\\\n]))*+)     # up to the quote, or the end of the text
    | (?P<bare>[^\s&"'<>]++)""",
    re.VERBOSE,
)
_LINE = re.compile(r"""["']?[^\r\n"']++""")  # the value of a header, with schemes, pairs and blanks
_HARMLESS = frozenset({"none", "null", "true", "false", "undefined", "***", REDACTED.lower()})
_HEADERS = frozenset({"authorization", "cookie", "cookies"})
_PASSWORDS = ("password", "passwd", "passphrase", "pwd")
_SIGNATURES = frozenset({"sig", "signature"})
_BEFORE_KEY = frozenset({"account", "shared", "storage", "subscription", "webhook", "client"})


@dataclass(frozen=True)
class Redaction:
    """What counts as a secret: the built-in rules, and a user's own keys and patterns.

    An entry of `keys` is one or more words, such as `iban` or `card_number`: a key names a secret if it contains these
    words in this order, in any spelling (`cardNumber`, `CARD-NUMBER`). All that a pattern matches is hidden.
    """

    keys: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for a key without a word, and for a pattern that matches an empty text."""
        for key in self.keys:
            if not isinstance(key, str) or not key_words(key):
                raise InvalidArgument(f"a key to redact is a text with letters, such as 'iban', not {key!r:.80}")
        for pattern in self.patterns:
            try:
                empty_match = re.compile(pattern).search("")
            except (re.error, TypeError, RecursionError) as error:
                raise InvalidArgument(f"{pattern!r:.80} is no pattern to redact by: {error}") from None
            if empty_match is not None or not isinstance(pattern, str):
                raise InvalidArgument(f"pattern {pattern!r:.80} matches an empty text: it would hide everything")

    @cached_property
    def _own(self) -> tuple[list[list[str]], list[re.Pattern[str]]]:
        return [key_words(key) for key in self.keys], [re.compile(pattern) for pattern in self.patterns]

    def is_secret_key(self, key: str) -> bool:
        """Return whether a key names a secret, by the built-in rules or one of `keys`."""
        if is_secret_key(key):
            return True
        words = key_words(key)
        if words and words[-1].endswith(_PASSWORDS):  # PGPASSWORD, dbpassword
            return True
        return any(words[i : i + len(own)] == own for own in self._own[0] for i in range(len(words) - len(own) + 1))

    def value(self, value: Any) -> Any:
        """Return a copy of a JSON value without secrets: those under secret keys, and those inside its texts."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(key) if isinstance(key, str) else key: REDACTED
                if isinstance(key, str) and self.is_secret_key(key)
                else self.value(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def text(self, text: str) -> str:
        """Replace every secret that is known by its shape, or by a name before it, by `***`."""
        lowered = text.lower()
        if not (
            self.patterns or any(mark in lowered for mark in _MARKS) or any(own[0] in lowered for own in self._own[0])
        ):
            return text
        # Until nothing changes: a secret that is now hidden may have hidden its neighbour from a rule.
        for _ in range(_PASSES):
            before, text = text, self._pass(text)
            if text == before:
                break
        return text

    def _pass(self, text: str) -> str:
        for pattern in self._own[1]:
            text = pattern.sub(HIDDEN, text)
        text = _PRIVATE_KEY.sub(rf"\1{HIDDEN}\2", text)
        text = _SLACK_HOOK.sub(rf"\1{HIDDEN}", text)
        text = _SHAPES.sub(HIDDEN, text)
        if "://" in text:
            text = _ODD_USER.sub(_without_password, _USER.sub(_without_password, text))
        text = _SCHEME.sub(rf"\1{HIDDEN}", text)
        return self._without_pairs(text)

    def _without_pairs(self, text: str) -> str:
        """Hide what follows a secret name: `password=x`, `"token": "x"`, `--api-key x`, `Authorization: Basic x`."""
        parts: list[str] = []
        done = 0
        for match in _NAME.finditer(text):
            start = match.end()
            name = match["option"] or match["name"]
            if start < done or not self._names_secret(name) or _is_path(text, match):
                continue
            value = _header(text, match) or _VALUE.match(text, start)
            if value is None:
                continue
            opened = value.groupdict().get("open") or value.groupdict().get("quote") or ""
            hidden = value[0][len(opened) :]
            if hidden and hidden.rstrip(",;.)]}").lower() not in _HARMLESS:
                parts += (text[done:start], opened, HIDDEN)
                done = value.end()
        return "".join([*parts, text[done:]]) if parts else text

    def _names_secret(self, name: str) -> bool:
        if self.is_secret_key(name):
            return True
        words = key_words(name)
        return not _SIGNATURES.isdisjoint(words[-1:]) or any(
            left in _BEFORE_KEY and right == "key" for left, right in pairwise(words)
        )


def _without_password(match: re.Match[str]) -> str:
    """Return the address with its user, unless that may be a token: some APIs take one in place of a name."""
    user, colon, _ = match[1].partition(":")
    before = match.string[max(0, match.start() - 5) : match.start()].lower()
    if before.endswith(("http", "https")) or not _PLAIN_USER.match(user):
        return f"://{HIDDEN}@"
    return f"://{user}:{HIDDEN}@" if colon else match[0]


def _is_path(text: str, match: re.Match[str]) -> bool:
    """Return whether this is part of a longer name, as in `run-1:token:2:1`, where no blank follows the colon.

    Before a password the blank may be missing: `password:hunter2`.
    """
    if (
        match["option"]
        or match["end"]
        or text[match.end() - 1] != ":"
        or text[match.end() : match.end() + 1] in "\"'\\"
    ):
        return False
    return text[match.start() - 1 : match.start()] == ":" or not key_words(match["name"])[-1].endswith(_PASSWORDS)


def _header(text: str, match: re.Match[str]) -> re.Match[str] | None:
    """Return the rest of the line if the name is that of a header and its value is not in quotes of its own."""
    if match["name"] is None or match["end"] or not _HEADERS.intersection(key_words(match["name"])):
        return None
    line = _LINE.match(text, match.end())
    return None if line is None or line[0][0] in "\"'" else line
