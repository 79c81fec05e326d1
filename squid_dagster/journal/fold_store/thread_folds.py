"""Views of threads that this process has read, each brought up to date by what its thread has gained since.

Threads only grow, so that a view is read once and then costs what is new. It is a cache: a writer shows the revision
that it looked at, and the storage refuses the commit when the thread has moved on.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.entries import Entry


class View(Protocol):
    """What entries of one thread say."""

    def add(self, entry: Entry) -> None:
        """Fold one entry, in place. Never raises."""


V = TypeVar("V", bound=View)


class ThreadFolds(Generic[V]):
    """Views by thread; beyond `most` of them, the least recently used ones go first. Not safe between threads."""

    def __init__(self, storage: Storage, make: Callable[[], V], most: int) -> None:
        """Begin without any; `make` returns the view of an empty thread."""
        self._storage, self._make, self._most = storage, make, most
        self._known: OrderedDict[str, tuple[int, V]] = OrderedDict()

    def read(self, thread: str) -> tuple[int, V]:
        """Bring the view of a thread up to date; return the thread's revision and the view."""
        revision, view = self._known.get(thread) or (0, self._make())
        entries = self._storage.read(thread, after=revision)
        self._known.pop(thread, None)  # what is interrupted halfway is not kept
        for entry in entries:
            view.add(entry)
            revision = entry.seq
        self._known[thread] = revision, view
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return revision, view

    def forget(self, thread: str) -> None:
        """Read a thread anew the next time."""
        self._known.pop(thread, None)
