"""The storage contract: what an adapter must promise, and the checks that all adapters share. Contains no adapter."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from squid_dagster.protocol.codec import EncodedFact, encode
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import InvalidArgument, InvalidFact
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.threads import parse_thread

MAX_COMMIT_FACTS = 2**20 - 1
"""How many facts a commit may hold: as many as there are positions between its number and the next."""


@dataclass(frozen=True, slots=True)
class Append:
    """Facts for one thread. With `expected_rev`, only if the thread is at that revision (0: if it is empty)."""

    thread: str
    facts: Sequence[Fact]
    expected_rev: int | None = None


class Checkpoint(NamedTuple):
    """A projection of a thread, exactly as of one revision. A cache: it may be dropped at any time."""

    thread: str
    revision: int
    data: str


class Verified(NamedTuple):
    """An append whose facts were checked and encoded."""

    thread: str
    expected_rev: int | None
    facts: Sequence[Fact]
    encoded: list[EncodedFact]


@runtime_checkable
class Storage(Protocol):
    """A store of facts.

    Sequence numbers are 1-based and contiguous per thread; positions grow over the whole journal, with gaps. A commit
    is all or nothing if `atomic_across_threads` is true; else its appends happen one by one, in the order given. The
    facts of one atomic write have consecutive positions: those of other commits never stand between them.
    """

    @property
    def atomic_across_threads(self) -> bool:
        """Whether a commit over several threads is atomic."""

    @property
    def max_fact_bytes(self) -> int:
        """The largest size of a fact's payload."""

    def now(self) -> datetime:
        """Return the time of the storage's own clock, which decides, in UTC."""

    def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
        """Write facts to one or more threads; return each thread's new revision.

        A repeated `commit_id` writes nothing and returns the first answer: after a lost answer, retry with it.

        Raises:
            Conflict: a thread is not at its `expected_rev`; it is named, and nothing was written.
            InvalidFact: a fact has a wrong shape, stands on the wrong thread or is too large; nothing was written.
            InvalidThread: a thread id is malformed.
            InvalidArgument: nothing to write, a thread named twice, a negative `expected_rev`, or more facts than
                `MAX_COMMIT_FACTS`.
        """

    def append(self, thread: str, entries: Sequence[Fact], expected_rev: int | None = None) -> int:
        """Write facts to one thread, as `commit` does; return its new revision."""

    def find_commit(self, commit_id: UUID) -> dict[str, int] | None:
        """Return the answer of an earlier commit, None if there is no such commit."""

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Return a thread's entries after a revision, in order; none for a thread that does not exist."""

    def revision(self, thread: str) -> int:
        """Return a thread's last sequence number; 0 when it is empty or does not exist."""

    def cut(self, after: int = 0) -> int:
        """Return a position at or under which no entry can appear any more, never below `after`, an earlier cut.

        It lies between commits, never within one, and is the newest commit's last position if no write is under way;
        0 before the first commit. Without `after`, a later cut may be lower than an earlier one: both are valid. Pass
        the cut that was read up to, to read nothing twice.
        """

    def read_between(self, after: int, upto: int, limit: int | None = None) -> list[Entry]:
        """Return all entries with `after < position <= upto`, by position. Both bounds should be cuts."""

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        """Return all facts of one run from every thread, by position; with `before`, only those below that position."""

    def put_checkpoint(self, thread: str, revision: int, data: str) -> bool:
        """Store a projection as of `revision`; return False without storing it if there is a newer valid one."""

    def get_checkpoint(self, thread: str) -> Checkpoint | None:
        """Return the thread's checkpoint; one with a higher revision than the thread is ignored."""

    def delete_checkpoint(self, thread: str) -> None:
        """Delete the thread's checkpoint, if there is one."""

    def delete_thread(self, thread: str) -> None:
        """Remove one thread and what derives from it. For tests and tools: a journal in use is never deleted from."""


def check_commit_id(commit_id: UUID | None) -> None:
    """Raise `InvalidArgument` unless `commit_id` is None or a UUID."""
    if commit_id is not None and not isinstance(commit_id, UUID):
        raise InvalidArgument(f"commit_id must be a UUID, not {commit_id!r}")


def check_appends(appends: Sequence[Append], max_fact_bytes: int) -> list[Verified]:
    """Check and encode everything before anything is written.

    Raises:
        InvalidArgument, InvalidThread, InvalidFact: as `Storage.commit` says.
    """
    if not appends:
        raise InvalidArgument("a commit needs at least one append")
    seen: set[str] = set()
    verified = []
    for one in appends:
        if not isinstance(one, Append):
            raise InvalidArgument(f"a commit takes appends, not a {type(one).__name__}")
        parse_thread(one.thread)
        if one.thread in seen:
            raise InvalidArgument(f"thread {one.thread!r} is named twice in one commit: put its facts into one append")
        seen.add(one.thread)
        check_revision(one.expected_rev, "expected_rev")
        if isinstance(one.facts, str | bytes) or not isinstance(one.facts, Sequence):
            raise InvalidArgument(f"the append to {one.thread!r} needs a list of facts")
        if not one.facts and one.expected_rev is None:
            raise InvalidArgument(f"the append to {one.thread!r} needs a fact, or a revision to be checked")
        encoded = [_encode_for(one.thread, fact, max_fact_bytes) for fact in one.facts]
        verified.append(Verified(one.thread, one.expected_rev, one.facts, encoded))
    count = sum(len(one.encoded) for one in verified)
    if not count:
        raise InvalidArgument("a commit needs at least one fact")
    if count > MAX_COMMIT_FACTS:
        raise InvalidArgument(f"a commit holds at most {MAX_COMMIT_FACTS:,} facts, not {count:,}: make several of it")
    return verified


def check_revision(revision: int | None, what: str) -> None:
    """Raise `InvalidArgument` unless `revision` is None or a whole number from 0 on that a database can hold."""
    whole = isinstance(revision, int) and not isinstance(revision, bool)
    if revision is not None and not (whole and 0 <= revision < 2**63):
        raise InvalidArgument(f"{what} must be a whole number from 0 on, not {revision!r:.40}")


def check_checkpoint(revision: int, data: str) -> None:
    """Raise `InvalidArgument` unless a checkpoint has a revision and is JSON."""
    check_revision(revision, "revision")
    try:
        json.loads(data)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"a checkpoint must be JSON: {error}") from None


def _encode_for(thread: str, fact: Fact, max_fact_bytes: int) -> EncodedFact:
    encoded = encode(fact, max_fact_bytes)
    if fact.thread != thread:
        raise InvalidFact(f"{fact.type} belongs on thread {fact.thread!r}, not {thread!r}")
    return encoded
