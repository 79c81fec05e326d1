"""Where the lanes of queues begin by now: a hint for claims, kept where claims read many dead entries of their index.

Without an old snapshot in the way there are no marks, and every claim looks at everything. With one, a claim that began
at the front of each lane would read whatever was claimed since. By marks it reads what came after the claim before it.

An attempt that becomes due behind a mark, or in a lane without one, is found by the next claim that looks at
everything: the first one that comes `SHARE` times as long as the last such claim took behind it, or `MOST_SECONDS`. So
it waits for a bounded time, also where a claim finds nothing else. Claim order holds among what a claim looks at. The
rest is in claim_attempts.sql.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

SHARE = 20  # claims that look at everything take no more than one part in so many of the time
MOST_SECONDS = 30.0
_MOST_QUEUES, _MOST_LANES = 100, 1000


@dataclass(slots=True)
class LaneMarks:
    """The marks of one queue, for one set of definitions."""

    _lanes: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    _until: float = 0.0

    def text(self) -> str | None:
        """Return the marks as `claim_attempts` takes them; None if it has to look at everything."""
        return json.dumps(list(self._lanes.values())) if self._lanes and monotonic() < self._until else None

    def move(self, marks: Sequence[dict[str, Any]] | None, seconds: float | None) -> None:
        """Take over the marks that a claim has answered with; `seconds` is how long one took that began without any.

        A lane that is empty for now keeps its mark: it is known where its next attempt cannot be.
        """
        if not marks:
            if seconds is not None:
                self._lanes = {}
            return
        lanes = {**self._lanes, **{(mark["definition"], mark["rank"]): mark for mark in marks}}
        self._lanes = lanes if len(lanes) <= _MOST_LANES else {}
        if seconds is not None:
            self._until = monotonic() + min(SHARE * seconds, MOST_SECONDS)


class QueueMarks:
    """Marks by queue and definitions. They are private to one store, and lost with it."""

    def __init__(self) -> None:
        """Begin without any."""
        self._marks: dict[tuple[str, str | None], LaneMarks] = {}

    def of(self, queue: str, definitions: str | None) -> LaneMarks:
        """Return the marks of a queue for claims of these definitions."""
        if len(self._marks) > _MOST_QUEUES:
            self._marks = {}
        return self._marks.setdefault((queue, definitions), LaneMarks())
