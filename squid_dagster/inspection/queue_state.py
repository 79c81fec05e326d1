"""Whether a queue is paused, since when, and the fact that says why."""

from squid_dagster.inspection.explain.case import QueueState
from squid_dagster.journal.contract.queries import JournalQueries
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.threads import dispatch_thread

_WINDOW = 500  # facts that are read at a time, from the end of the thread back
_MOST_WINDOWS = 20  # while a queue is paused little is written to it; a pause that lies further back is told without

_OPEN = ("queue_resumed", "attempt_claimed")  # nothing is claimed from a paused queue


def read_queue_state(storage: Storage, queries: JournalQueries, queue: str) -> QueueState:
    """Tell whether a queue gives claims; of a paused one also since when and why, unless that lies far back.

    Pausing it again changes neither, but for a comment: the latest one is told.
    """
    paused = any(row.paused for row in queries.queues() if row.queue == queue)
    pauses = _pauses(storage, queue) if paused else []
    if not pauses:
        return QueueState(queue, paused)
    first = pauses[-1]
    telling = next((each for each in pauses if getattr(each.fact, "comment", None)), first)
    return QueueState(queue, paused, telling, first.fact.occurred_at)


def _pauses(storage: Storage, queue: str) -> list[Entry]:
    """Give the pauses since the queue was last open, newest first; none if it was resumed in the meantime."""
    thread = dispatch_thread(queue)
    end = storage.revision(thread)
    found: list[Entry] = []
    for _ in range(_MOST_WINDOWS):
        begin = max(end - _WINDOW, 0)
        for entry in reversed(storage.read(thread, after=begin, limit=end - begin)):
            if entry.fact.type in _OPEN:
                return found
            if entry.fact.type == "queue_paused":
                found.append(entry)
        if begin == 0:
            break
        end = begin
    return found
