"""A storage in memory, for tests, simulation and time travel; it behaves as the one on Postgres. Thread-safe."""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from threading import RLock
from typing import NamedTuple
from uuid import UUID

from squid_dagster.journal.contract.clock import Clock, SystemClock
from squid_dagster.journal.contract.storage import (
    Append,
    Checkpoint,
    Verified,
    check_appends,
    check_checkpoint,
    check_commit_id,
    check_revision,
)
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.codec import DEFAULT_MAX_FACT_BYTES, EncodedFact, decode
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import Conflict
from squid_dagster.protocol.facts import Fact


class _Stored(NamedTuple):
    """An entry as text: callers that change an object that they wrote or read change no fact."""

    thread: str
    seq: int
    position: int
    encoded: EncodedFact

    def entry(self) -> Entry:
        return Entry(self.thread, self.seq, self.position, decode(self.thread, *self.encoded))


_position = attrgetter("position")


@checks_arguments
class MemoryStorage:
    """Facts in lists. With `atomic_across_threads=False`, a commit appends to one thread at a time."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        atomic_across_threads: bool = True,
        max_fact_bytes: int = DEFAULT_MAX_FACT_BYTES,
    ) -> None:
        """Start with an empty journal."""
        self.atomic_across_threads = atomic_across_threads
        self._clock = clock or SystemClock()
        self.max_fact_bytes = max_fact_bytes
        self._lock = RLock()
        self._threads: dict[str, list[_Stored]] = {}
        self._runs: dict[str, list[_Stored]] = {}
        self._journal: list[_Stored] = []
        self._position = 0
        self._commits: dict[UUID, dict[str, int]] = {}
        self._checkpoints: dict[str, Checkpoint] = {}

    def now(self) -> datetime:
        """Return the time of this storage's clock."""
        return self._clock.now()

    def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
        """Write facts to one or more threads, as the contract says."""
        check_commit_id(commit_id)
        verified = check_appends(appends, self.max_fact_bytes)
        groups = [verified] if self.atomic_across_threads else [[one] for one in verified]
        with self._lock:
            if commit_id is not None and commit_id in self._commits:
                return dict(self._commits[commit_id])
            receipt: dict[str, int] = {}
            for group in groups:
                receipt |= self._write(group)
            if commit_id is not None:
                self._commits[commit_id] = dict(receipt)
            return receipt

    def append(self, thread: str, entries: Sequence[Fact], expected_rev: int | None = None) -> int:
        """Write facts to one thread, as the contract says."""
        return self.commit([Append(thread, entries, expected_rev)])[thread]

    def _write(self, group: list[Verified]) -> dict[str, int]:
        for one in group:
            actual = self.revision(one.thread)
            if one.expected_rev is not None and one.expected_rev != actual:
                raise Conflict(one.thread, one.expected_rev, actual)
        for one in group:
            rows = self._threads.setdefault(one.thread, [])
            for stored in one.encoded:
                self._position += 1
                entry = _Stored(one.thread, len(rows) + 1, self._position, stored)
                rows.append(entry)
                self._journal.append(entry)
                if stored.run_id is not None:
                    self._runs.setdefault(stored.run_id, []).append(entry)
        return {one.thread: self.revision(one.thread) for one in group}

    def find_commit(self, commit_id: UUID) -> dict[str, int] | None:
        """Return the answer of an earlier commit, if there was one."""
        with self._lock:
            return dict(self._commits[commit_id]) if commit_id in self._commits else None

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Return a thread's entries after a revision."""
        check_revision(after, "after")
        check_revision(limit, "limit")
        with self._lock:
            rows = self._threads.get(thread, [])[after : None if limit is None else after + limit]
        return [stored.entry() for stored in rows]

    def revision(self, thread: str) -> int:
        """Return a thread's last sequence number."""
        with self._lock:
            return len(self._threads.get(thread, ()))

    def cut(self, after: int = 0) -> int:
        """Return the last position: in memory, commits are instantaneous."""
        return max(after, self._position)

    def read_between(self, after: int, upto: int, limit: int | None = None) -> list[Entry]:
        """Return entries between two cuts."""
        check_revision(limit, "limit")
        with self._lock:
            begin, end = (bisect_right(self._journal, position, key=_position) for position in (after, upto))
            rows = self._journal[begin:end][:limit]
        return [stored.entry() for stored in rows]

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        """Return all facts of one run, by position."""
        with self._lock:
            rows = [stored for stored in self._runs.get(run_id, ()) if before is None or stored.position < before]
        return [stored.entry() for stored in rows]

    def put_checkpoint(self, thread: str, revision: int, data: str) -> bool:
        """Store a projection, unless there is a newer valid one."""
        check_checkpoint(revision, data)
        with self._lock:
            known = self.get_checkpoint(thread)
            if known is not None and known.revision > revision:
                return False
            self._checkpoints[thread] = Checkpoint(thread, revision, data)
            return True

    def get_checkpoint(self, thread: str) -> Checkpoint | None:
        """Return the checkpoint, unless it claims more than the thread holds."""
        with self._lock:
            known = self._checkpoints.get(thread)
            return known if known is not None and known.revision <= self.revision(thread) else None

    def delete_checkpoint(self, thread: str) -> None:
        """Delete the checkpoint."""
        with self._lock:
            self._checkpoints.pop(thread, None)

    def delete_thread(self, thread: str) -> None:
        """Remove one thread, its entries and its checkpoint."""
        with self._lock:
            self._threads.pop(thread, None)
            self._checkpoints.pop(thread, None)
            self._journal = [entry for entry in self._journal if entry.thread != thread]
            remaining = {run: [e for e in entries if e.thread != thread] for run, entries in self._runs.items()}
            self._runs = {run: entries for run, entries in remaining.items() if entries}
