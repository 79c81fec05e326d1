"""Text of users on a terminal: control characters and direction marks are shown as escapes.

Ids, keys, comments, errors and payloads come from users: an ESC sequence in them must not move the cursor, change the
title or recolour a line, and a direction mark must not reverse it.
"""

import re

# Control characters of both sets, direction marks, line and paragraph separators, lone surrogates.
_CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile("[\n\t]")


def printable(text: str) -> str:
    """Return the text with control characters as escapes, such as \\x1b; line breaks and tabs stay."""
    return text if text.isprintable() else _CONTROLS.sub(_escaped, text)


def printable_line(text: str) -> str:
    """Return `printable` text with line breaks and tabs as escapes too: for a cell, or a line of a log."""
    return text if text.isprintable() else _BREAKS.sub(_escaped, printable(text))


def _escaped(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode()
