"""What the attention sensor has told already: its cursor. A hint, kept by Dagster; whoever loses it tells once more.

Things that are open are gone through in passes, which may take several ticks. What a whole pass does not meet any more
is forgotten, so the memory is as large as what is open, and no larger than its limit.
"""

import json
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from squid_dagster.inspection.attention_items import KINDS, ItemCursor
from squid_dagster.plugin.attention.items import Anchor

VERSION = 1
MAX_OPEN = 2000  # of each kind: beyond that a pass ends, and what it did not reach is not told one by one


@dataclass(slots=True)
class Pass:
    """How far one kind has been gone through: what was told, what this pass has met, where it goes on."""

    told: set[str] = field(default_factory=set)
    met: set[str] = field(default_factory=set)
    place: ItemCursor = None

    def knows(self, key: str) -> bool:
        """Tell whether this was told."""
        return _mark(key) in self.told

    def meet(self, key: str, *, told: bool) -> None:
        """Remember that it is still open and, if so, that it was told."""
        self.met.add(_mark(key))
        if told:
            self.told.add(_mark(key))

    def turn(self, place: ItemCursor) -> None:
        """Go on from there next time. At the end, forget what is not open any more, and begin again."""
        self.place = place
        if place is None or len(self.met) >= MAX_OPEN:
            self.told, self.met, self.place = self.told & self.met, set(), None


@dataclass(slots=True)
class Memory:
    """Everything that the sensor knows of its earlier ticks. `history` is the position at its first one."""

    passes: dict[str, Pass] = field(default_factory=lambda: {kind: Pass() for kind in KINDS})
    anchor: Anchor | None = None
    history: int | None = None

    @classmethod
    def read(cls, cursor: str | None) -> "Memory":
        """Read a cursor. One that is missing, damaged or of another version is no memory at all."""
        try:
            found: Any = json.loads(cursor or "")
            if found["version"] != VERSION:
                return cls()
            passes = {
                kind: Pass(set(map(str, each["told"])), set(map(str, each["met"])), _place(each["place"]))
                for kind, each in found["passes"].items()
                if kind in KINDS
            }
            anchor = None if found["anchor"] is None else Anchor(*_anchored(*found["anchor"]))
            history = None if found["history"] is None else int(found["history"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()
        return cls({kind: passes.get(kind, Pass()) for kind in KINDS}, anchor, history)

    def write(self) -> str:
        """Give the cursor. The same memory always gives the same text."""
        passes = {
            kind: {"told": sorted(each.told), "met": sorted(each.met), "place": each.place}
            for kind, each in self.passes.items()
        }
        whole = {"version": VERSION, "passes": passes, "anchor": self.anchor, "history": self.history}
        return json.dumps(whole, separators=(",", ":"))


def _place(value: object) -> ItemCursor:
    return value if isinstance(value, str) or (isinstance(value, int) and value > 0) else None


def _anchored(position: Any, thread: Any, seq: Any) -> tuple[int, str, int]:
    if int(position) < 1:
        raise ValueError(f"{position!r} is no position")
    return int(position), str(thread), int(seq)


def _mark(key: str) -> str:
    return urlsafe_b64encode(blake2b(key.encode(), digest_size=9, person=b"squid attention").digest()).decode()
