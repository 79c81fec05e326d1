"""Reads whether a queue is paused, since when, and the fact with the latest comment on it."""

from squid_dagster.inspection.explain.case import QueueState
from squid_dagster.journal.contract.queries import JournalQueries
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.threads import dispatch_thread

_WINDOW = 500  # facts that are read at a time, from the end of the thread back
_MOST_WINDOWS = 20  # while a queue is paused little is written to it; of a pause further back the fact is not read

_OPEN = ("queue_resumed", "attempt_claimed")  # nothing is claimed from a paused queue


def read_queue_state(storage: Storage, queries: JournalQueries, queue: str) -> QueueState:
    """Return whether a queue gives claims; of a paused one also since when and why, unless that lies far back.

    Pausing it again changes neither, but for a comment: the latest one counts. `JournalQueries.backlog` is asked first:
    it gives nothing of a paused queue, and costs little where much is due.
    """
    if queries.backlog([queue], None, 1):
        return QueueState(queue, False)
    paused = any(row.paused for row in queries.queues() if row.queue == queue)
    pauses = _pauses(storage, queue) if paused else []
    if not pauses:
        return QueueState(queue, paused)
    first = pauses[-1]
    commented = next((entry for entry in pauses if getattr(entry.fact, "comment", None)), first)
    return QueueState(queue, paused, commented, first.fact.occurred_at)


def _pauses(storage: Storage, queue: str) -> list[Entry]:
    """Return the pauses since the queue was last open, newest first; none if it was resumed in the meantime."""
    thread = dispatch_thread(queue)
    end = storage.revision(thread)
    pauses: list[Entry] = []
    for _ in range(_MOST_WINDOWS):
        begin = max(end - _WINDOW, 0)
        for entry in reversed(storage.read(thread, after=begin, limit=end - begin)):
            if entry.fact.type in _OPEN:
                return pauses
            if entry.fact.type == "queue_paused":
                pauses.append(entry)
        if begin == 0:
            break
        end = begin
    return pauses
