"""A storage that can only append to one thread at a time, notes every append, and ends the process after one of them.

It stands on any other storage, so that what was written before the end is there for whoever comes later.
"""

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import squid_dagster
from squid_dagster.journal.storage import Append, Checkpoint, Storage, check_appends
from squid_dagster.protocol import Entry, Fact
from squid_dagster.protocol.errors import Conflict

PACKAGE = Path(squid_dagster.__file__).parent
CRASHED = 86  # the exit code of a process that ended at a boundary, and of no other


class Site(NamedTuple):
    """A line of the library that was on its way when an append happened."""

    file: str  # below the package, such as runtime/controls.py
    line: int
    function: str


class Noted(NamedTuple):
    """One append, and the lines of the library that led to it, the innermost first."""

    thread: str
    facts: tuple[str, ...]
    signals: tuple[str, ...]
    sites: tuple[Site, ...]


class SplitStorage:
    """The storage below it, one thread at a time."""

    atomic_across_threads = False

    def __init__(self, below: Storage, *, end_after: int | None = None) -> None:
        """Write to `below`; after append number `end_after`, counted from 1, the process ends at once."""
        self._below = below
        self._end_after = end_after
        self.max_fact_bytes = below.max_fact_bytes
        self.noted: list[Noted] = []

    def now(self) -> datetime:
        """Tell the time of the storage below."""
        return self._below.now()

    def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
        """Write one append after the other, each as a commit of its own."""
        check_appends(appends, self.max_fact_bytes)
        assert commit_id is None or len(appends) == 1, "nothing here asks for that yet: an id for each append"
        receipt: dict[str, int] = {}
        for one in appends:
            if one.facts:
                receipt |= self._below.commit([one], commit_id)
                self._note(one)
            elif (actual := self._below.revision(one.thread)) != one.expected_rev:
                raise Conflict(one.thread, one.expected_rev or 0, actual)
        return receipt

    def _note(self, one: Append) -> None:
        signals = tuple(fact.signal_type for fact in one.facts if fact.type == "run_signal_received")
        self.noted.append(Noted(one.thread, tuple(fact.type for fact in one.facts), signals, _sites()))
        if len(self.noted) == self._end_after:
            os._exit(CRASHED)

    def append(self, thread: str, entries: Sequence[Fact], expected_rev: int | None = None) -> int:
        """Write to one thread."""
        return self.commit([Append(thread, entries, expected_rev)])[thread]

    def find_commit(self, commit_id: UUID) -> dict[str, int] | None:
        """Give the answer of an earlier commit."""
        return self._below.find_commit(commit_id)

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Give a thread's entries."""
        return self._below.read(thread, after, limit)

    def revision(self, thread: str) -> int:
        """Give a thread's last sequence number."""
        return self._below.revision(thread)

    def cut(self, after: int = 0) -> int:
        """Give a position up to which nothing can appear any more."""
        return self._below.cut(after)

    def read_between(self, after: int, upto: int, limit: int | None = None) -> list[Entry]:
        """Give entries between two cuts."""
        return self._below.read_between(after, upto, limit)

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        """Give all facts of one run."""
        return self._below.read_run(run_id, before)

    def put_checkpoint(self, thread: str, revision: int, data: str) -> bool:
        """Keep a projection."""
        return self._below.put_checkpoint(thread, revision, data)

    def get_checkpoint(self, thread: str) -> Checkpoint | None:
        """Give a projection."""
        return self._below.get_checkpoint(thread)

    def delete_checkpoint(self, thread: str) -> None:
        """Forget a projection."""
        self._below.delete_checkpoint(thread)

    def delete_thread(self, thread: str) -> None:
        """Remove a thread."""
        self._below.delete_thread(thread)


def _sites() -> tuple[Site, ...]:
    found = []
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            found.append(Site(str(path.relative_to(PACKAGE)), frame.f_lineno, frame.f_code.co_name))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return tuple(found)
