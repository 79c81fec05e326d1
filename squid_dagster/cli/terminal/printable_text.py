"""Text of users on its way to a terminal: what would steer it, or hide what is there, is shown as an escape.

Ids, keys, comments, errors and payloads are other people's: an ESC sequence among them must not move the cursor, change
the title or recolour a line, and a direction mark must not turn it around.
"""

import logging
import re

# Control characters of both sets, direction marks, line and paragraph separators, halves of pairs.
_STEERING = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile("[\n\t]")


def printable(text: str) -> str:
    """Return the text with everything but line breaks and tabs that steers a terminal as an escape, such as \\x1b."""
    return text if text.isprintable() else _STEERING.sub(_escaped, text)


def printable_line(text: str) -> str:
    """Return the text as `printable` does, with line breaks and tabs as escapes too: for a cell, or a line of a log."""
    return text if text.isprintable() else _BREAKS.sub(_escaped, printable(text))


def _escaped(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode()


class LineFormatter(logging.Formatter):
    """Writes each message of a log on one line; a traceback follows it as it is, but for what steers a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  as the base class has it
        """Return the line."""
        return printable_line(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802  as the base class has it
        """Return the traceback."""
        return printable(super().formatException(ei))  # type: ignore[arg-type]  # as the base class takes it
