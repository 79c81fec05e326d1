"""Fault injection on any storage: conflicts, crashes and races at exactly the append that a test names.

`boundaries` lists every append that was made. Run a scenario once to get all places for a crash; then run it once per
place, with a crash there.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from threading import RLock
from typing import Any, NamedTuple, NoReturn
from uuid import UUID, uuid5

from squid_dagster.journal.contract.storage import Append, Checkpoint, Storage, check_appends, check_commit_id
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import Conflict, InvalidArgument
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.threads import ThreadKind, parse_thread

CRASH_EXIT_CODE = 86


class Part(NamedTuple):
    """The facts that one append wrote to one thread."""

    kind: ThreadKind
    thread: str
    types: tuple[str, ...]


class Boundary(NamedTuple):
    """An append, by its number from 1 on, with its facts: a crash may be right before it or right after it."""

    number: int
    parts: tuple[Part, ...]

    @property
    def label(self) -> str:
        """The thread kinds and fact types, without ids: the same for every run of a scenario."""
        return " + ".join(f"{part.kind.value}[{', '.join(part.types)}]" for part in self.parts)


class Crashed(BaseException):
    """A simulated end of the process. A `BaseException`, so that no code under test catches it."""

    def __init__(self, boundary: Boundary) -> None:
        """Build the message, with the append beside which it crashed."""
        super().__init__(f"crashed at append {boundary.number}: {boundary.label}")
        self.boundary = boundary


def raise_crashed(boundary: Boundary) -> NoReturn:
    """Raise `Crashed`, so that the test itself goes on."""
    raise Crashed(boundary)


def exit_process(_: Boundary) -> NoReturn:
    """End the process at once with `CRASH_EXIT_CODE`: no `finally`, no `atexit`, no flush."""
    os._exit(CRASH_EXIT_CODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The faults to inject. Appends are counted from 1; only those that were made count.

    `conflicts`: how many of the next commits are refused; `conflict_at`: the numbers of those to refuse. Both count
    commits that expect a revision above 0, since only these can meet a conflict that a retry resolves. `crash_before`
    and `crash_after` name an append, `crash` is how to end. `meanwhile`: calls to make right before an append.

    Raises `InvalidArgument` for a number that no append can have.
    """

    conflicts: int = 0
    conflict_at: Collection[int] = ()
    crash_before: int | None = None
    crash_after: int | None = None
    crash: Callable[[Boundary], NoReturn] = raise_crashed
    meanwhile: Mapping[int, Callable[[], object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise for a fault that can never happen: a test would pass without it."""
        if not _is_count(self.conflicts, 0):
            raise InvalidArgument(f"conflicts must be a whole number from 0 on, not {self.conflicts!r}")
        numbers = [*self.conflict_at, *self.meanwhile, *filter(_is_given, (self.crash_before, self.crash_after))]
        for number in numbers:
            if not _is_count(number, 1):
                raise InvalidArgument(f"appends and commits are counted from 1 on: there is no number {number!r}")


class InjectedStorage:
    """Any storage with planned faults. Keeps the storage contract otherwise; makes one append at a time.

    With `atomic_across_threads=False` a commit is split, and every append is a boundary. Once crashed, it writes
    nothing more, as a dead process; the next process uses `inner`, or calls `arm`.
    """

    def __init__(
        self, storage: Storage, plan: Plan | None = None, *, atomic_across_threads: bool | None = None
    ) -> None:
        """Wrap a storage. The caller closes it.

        Raises:
            InvalidArgument: `atomic_across_threads` is true, and the storage cannot do that.
        """
        if atomic_across_threads and not storage.atomic_across_threads:
            raise InvalidArgument(f"commits of this {type(storage).__name__} do not span threads: leave it out")
        self.inner = storage
        self.boundaries: list[Boundary] = []
        self._atomic = storage.atomic_across_threads if atomic_across_threads is None else atomic_across_threads
        self._lock = RLock()
        self.arm(plan or Plan())

    def arm(self, plan: Plan) -> None:
        """Reset: nothing has crashed, `boundaries` is empty, and all numbers of the plan count from here."""
        with self._lock:
            self._plan = plan
            self._meanwhile = dict(plan.meanwhile)
            self._refusable = 0
            self._crashed: Boundary | None = None
            self.boundaries = []

    @property
    def atomic_across_threads(self) -> bool:
        """Whether a commit over several threads is one."""
        return self._atomic

    @property
    def max_fact_bytes(self) -> int:
        """How large a fact's payload may be."""
        return self.inner.max_fact_bytes

    @property
    def clock(self) -> Any:
        """The clock of the storage, if it has one."""
        return getattr(self.inner, "clock", None)

    def now(self) -> datetime:
        """Return the storage's time."""
        return self.inner.now()

    # --- writing ----------------------------------------------------------------------------------------------------

    def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
        """Write facts to one or more threads, as the contract says, unless a fault is planned here.

        Raises:
            Conflict: a real one, or an injected one; nothing was written.
            Crashed: as planned, or because it has crashed before.
        """
        check_commit_id(commit_id)
        check_appends(appends, self.max_fact_bytes)
        with self._lock:
            known = self.find_commit(commit_id) if commit_id is not None else None
            if known is not None:
                return known
            self._inject_conflict(appends)
            receipt: dict[str, int] = {}
            for group, group_id in self._groups(appends, commit_id):
                receipt |= self._write(group, group_id)
            return receipt

    def append(self, thread: str, entries: Sequence[Fact], expected_rev: int | None = None) -> int:
        """Write facts to one thread, as `commit` does."""
        return self.commit([Append(thread, entries, expected_rev)])[thread]

    def _inject_conflict(self, appends: Sequence[Append]) -> None:
        """Raise the conflict that is planned for this commit, if any."""
        self._check_alive()
        expecting = next((one for one in appends if one.expected_rev), None)
        if expecting is None or expecting.expected_rev is None:
            return
        self._refusable += 1
        if self._refusable <= self._plan.conflicts or self._refusable in self._plan.conflict_at:
            raise Conflict(expecting.thread, expecting.expected_rev, expecting.expected_rev + 1)

    def _groups(
        self, appends: Sequence[Append], commit_id: UUID | None
    ) -> Iterator[tuple[Sequence[Append], UUID | None]]:
        """Yield the groups of appends that are written at once, each with a commit id of its own.

        The last group has the id of the commit, which is complete exactly when that id is on record. An append that
        only checks a revision is in the group of the append after it.
        """
        groups: list[list[Append]] = [[]]
        for one in appends:
            if not self._atomic and one.facts and any(other.facts for other in groups[-1]):
                groups.append([])
            groups[-1].append(one)
        for i, group in enumerate(groups):
            last = i == len(groups) - 1
            yield group, commit_id if commit_id is None or last else _part_id(commit_id, i)

    def _write(self, group: Sequence[Append], group_id: UUID | None) -> dict[str, int]:
        known = self.inner.find_commit(group_id) if group_id is not None else None
        if known is not None:  # written before a crash that split the commit
            return known
        number = len(self.boundaries) + 1
        boundary = Boundary(number, tuple(_part(one) for one in group if one.facts))
        other = self._meanwhile.pop(number, None)
        if other is not None:
            other()
            return self._write(group, group_id)  # the numbers have changed if that call appended here, too
        if self._plan.crash_before == number:
            self._crash(boundary)
        receipt = self.inner.commit(group, group_id)
        self.boundaries.append(boundary)
        if self._plan.crash_after == number:
            self._crash(boundary)
        return receipt

    def _crash(self, boundary: Boundary) -> None:
        self._crashed = boundary
        self._plan.crash(boundary)

    def _check_alive(self) -> None:
        if self._crashed is not None:
            raise Crashed(self._crashed)

    # --- reading ----------------------------------------------------------------------------------------------------

    def find_commit(self, commit_id: UUID) -> dict[str, int] | None:
        """Return the answer of an earlier commit; None also for one that a crash has split."""
        receipt = self.inner.find_commit(commit_id)
        if receipt is None or self._atomic:
            return receipt
        whole: dict[str, int] = {}
        for i in count():
            part = self.inner.find_commit(_part_id(commit_id, i))
            if part is None:
                return whole | receipt
            whole |= part
        raise AssertionError  # counting has no end

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Return a thread's entries after a revision."""
        return self.inner.read(thread, after, limit)

    def revision(self, thread: str) -> int:
        """Return a thread's last sequence number."""
        return self.inner.revision(thread)

    def cut(self, after: int = 0) -> int:
        """Return a position up to which no entry can appear any more."""
        return self.inner.cut(after)

    def read_between(self, after: int, upto: int, limit: int | None = None) -> list[Entry]:
        """Return entries between two cuts."""
        return self.inner.read_between(after, upto, limit)

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        """Return all facts of one run, by position."""
        return self.inner.read_run(run_id, before)

    # --- checkpoints and deletion -----------------------------------------------------------------------------------

    def put_checkpoint(self, thread: str, revision: int, data: str) -> bool:
        """Store a checkpoint, unless a newer valid one is there. Raises `Crashed` after a crash."""
        self._check_alive()
        return self.inner.put_checkpoint(thread, revision, data)

    def get_checkpoint(self, thread: str) -> Checkpoint | None:
        """Return the thread's checkpoint."""
        return self.inner.get_checkpoint(thread)

    def delete_checkpoint(self, thread: str) -> None:
        """Delete the checkpoint."""
        self._check_alive()
        self.inner.delete_checkpoint(thread)

    def delete_thread(self, thread: str) -> None:
        """Delete one thread."""
        self._check_alive()
        self.inner.delete_thread(thread)


def _part(one: Append) -> Part:
    return Part(parse_thread(one.thread).kind, one.thread, tuple(fact.type for fact in one.facts))


def _part_id(commit_id: UUID, number: int) -> UUID:
    return uuid5(commit_id, str(number))


def _is_given(number: int | None) -> bool:
    return number is not None


def _is_count(number: object, at_least: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= at_least
