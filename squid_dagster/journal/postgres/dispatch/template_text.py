"""Texts with holes, of which templates of starts and of settlements consist, and the values of their examples.

A template renders one example with placeholders, splits the text at them, and is verified with a second example that
differs in everything that may differ. Pure.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from pydantic import JsonValue
from pydantic_core import to_json

from squid_dagster.protocol.codec import is_plain
from squid_dagster.protocol.entries import canonical_text, digest_of_text

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


class LinesTemplate(NamedTuple):
    """Lines of text with holes for ids and times, for values, and for digests that cover these."""

    values: dict[str, str]  # placeholders by the names of values
    text: TemplateText
    digests: dict[str, TemplateText]  # the canonical texts that digests cover, by the digests' placeholders
    max_fact_bytes: int

    @classmethod
    def split(
        cls,
        lines: Sequence[str],
        fixed: Sequence[str],
        values: dict[str, str],
        digests: Mapping[str, str],
        max_fact_bytes: int,
    ) -> "LinesTemplate":
        """Split the lines of an example at the placeholders of ids and times, of values, and of digests."""
        holes = [*fixed, *values.values()]
        covered = {hole: TemplateText.split(text, holes) for hole, text in digests.items()}
        return cls(values, TemplateText.split("\n".join(lines), [*holes, *digests]), covered, max_fact_bytes)

    def fill(
        self, fixed: Mapping[str, str], values: Mapping[str, JsonValue]
    ) -> tuple[list[str], dict[str, str]] | None:
        """Return the lines, and canonical texts by placeholder; None if a value has to be planned."""
        holes, exact = dict(fixed), dict(fixed)
        try:
            for name, hole in self.values.items():
                holes[hole], exact[hole] = to_json(values[name]).decode(), canonical_text(values[name])
        except (ValueError, RecursionError):
            return None
        if not is_plain("".join([holes[hole] for hole in self.values.values()]), self.max_fact_bytes):
            return None
        for hole, text in self.digests.items():
            holes[hole] = digest_of_text(text.fill(exact))
        return self.text.fill(holes).split("\n"), exact


def spellings(at: datetime) -> tuple[str, str]:
    """Return both spellings of a time: in rows, and in facts."""
    text = at.isoformat()
    return text, f"{text.removesuffix('+00:00')}Z"
