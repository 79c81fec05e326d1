"""Texts with holes, of which templates of starts and of settlements consist, and the values of their examples.

A template renders one example with placeholders, splits the text at them, and is verified with a second example that
differs in everything that may differ. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from pydantic import JsonValue

EXAMPLE_TIME = datetime(2001, 2, 3, 4, 5, 6, 789012, UTC)
OTHER_TIME = datetime(2002, 3, 4, 5, 6, 7, 890123, UTC)
OTHER_VALUE: JsonValue = ['ä\u2028"\\', {"b": [1, None, True], "a": -1.5e300}, {}]


class TemplateText(NamedTuple):
    """A text with holes: every second part is the name of one."""

    parts: list[str]

    @classmethod
    def split(cls, text: str, placeholders: Iterable[str]) -> "TemplateText":
        """Split a text at placeholders; the holes have their names."""
        return cls(re.split("(" + "|".join(map(re.escape, placeholders)) + ")", text))

    def fill(self, holes: Mapping[str, str]) -> str:
        """Return the text with these in the holes of their names."""
        filled = self.parts.copy()
        filled[1::2] = [holes[name] for name in filled[1::2]]
        return "".join(filled)


def spellings(at: datetime) -> tuple[str, str]:
    """Return both spellings of a time: in rows, and in facts."""
    text = at.isoformat()
    return text, f"{text.removesuffix('+00:00')}Z"
