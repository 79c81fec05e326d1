"""Where the lanes of queues begin: a hint for claims, kept if they read many dead entries of their index.

While no old snapshot keeps dead entries from being removed, there are no marks, and every claim reads all lanes from
their front. With one, such a claim would read all that was claimed since; by marks, it reads what came after the claim
before it.

A claim without marks finds the attempts that became due before a mark, or in a lane without one. It is the first one
after `SHARE` times the duration of the last such claim, or after `MOST_SECONDS`: so these attempts wait for a bounded
time, also if no claim finds anything else. Claim order holds among the attempts that a claim reads. The rest is in
claim_attempts.sql.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

SHARE = 20  # claims without marks take at most one part in so many of the time
MOST_SECONDS = 30.0
_MOST_QUEUES, _MOST_LANES = 100, 1000


@dataclass(slots=True)
class LaneMarks:
    """The marks of one queue, for one set of definitions."""

    _lanes: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    _until: float = 0.0

    def text(self) -> str | None:
        """Return the marks as `claim_attempts` takes them; None if it has to read all lanes from their front."""
        return json.dumps(list(self._lanes.values())) if self._lanes and monotonic() < self._until else None

    def move(self, marks: Sequence[dict[str, Any]] | None, seconds: float | None) -> None:
        """Store the marks that a claim has returned; `seconds` is the duration of a claim without marks, else None.

        A lane that is empty now keeps its mark: its next attempt comes behind it.
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
        """Start without marks."""
        self._marks: dict[tuple[str, str | None], LaneMarks] = {}

    def of(self, queue: str, definitions: str | None) -> LaneMarks:
        """Return the marks of a queue for claims of these definitions."""
        if len(self._marks) > _MOST_QUEUES:
            self._marks = {}
        return self._marks.setdefault((queue, definitions), LaneMarks())
