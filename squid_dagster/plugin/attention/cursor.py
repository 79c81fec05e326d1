"""`Memory`: what the attention sensor has reported, as its cursor. A hint: once it is lost, open items come once more.

Things that are open are gone through in passes, which may take several ticks. What a whole pass does not meet any more
is forgotten, so the memory is as large as what is open, and no larger than its limit.
"""

import json
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from squid_dagster.inspection.attention_items import KINDS, ItemCursor
from squid_dagster.plugin.attention.items import AnomalyPosition

VERSION = 1
MAX_OPEN = 2000  # of each kind: beyond that a pass ends, and what it did not reach is not told one by one


@dataclass(slots=True)
class KindProgress:
    """How far one kind has been gone through: what was told, what this pass has met, where it goes on."""

    reported: set[str] = field(default_factory=set)
    met: set[str] = field(default_factory=set)
    place: ItemCursor = None

    def knows(self, key: str) -> bool:
        """Return whether this was reported."""
        return _mark(key) in self.reported

    def meet(self, key: str, *, reported: bool) -> None:
        """Remember that it is still open and, if so, that it was told."""
        self.met.add(_mark(key))
        if reported:
            self.reported.add(_mark(key))

    def turn(self, place: ItemCursor) -> None:
        """Set where the next tick goes on. At the end, forget what is not open any more, and begin again."""
        self.place = place
        if place is None or len(self.met) >= MAX_OPEN:
            self.reported, self.met, self.place = self.reported & self.met, set(), None


@dataclass(slots=True)
class Memory:
    """Everything that the sensor knows of its earlier ticks. `history` is the position at its first one."""

    passes: dict[str, KindProgress] = field(default_factory=lambda: {kind: KindProgress() for kind in KINDS})
    anchor: AnomalyPosition | None = None
    history: int | None = None

    @classmethod
    def read(cls, cursor: str | None) -> "Memory":
        """Read a cursor. One that is missing, damaged or of another version is no memory at all."""
        try:
            memory: Any = json.loads(cursor or "")
            if memory["version"] != VERSION:
                return cls()
            passes = {
                kind: KindProgress(
                    set(map(str, progress["told"])), set(map(str, progress["met"])), _place(progress["place"])
                )
                for kind, progress in memory["passes"].items()
                if kind in KINDS
            }
            anchor = None if memory["anchor"] is None else AnomalyPosition(*_anchored(*memory["anchor"]))
            history = None if memory["history"] is None else int(memory["history"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()
        return cls({kind: passes.get(kind, KindProgress()) for kind in KINDS}, anchor, history)

    def write(self) -> str:
        """Return the cursor. The same memory always gives the same text."""
        passes = {
            kind: {"told": sorted(progress.reported), "met": sorted(progress.met), "place": progress.place}
            for kind, progress in self.passes.items()
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
