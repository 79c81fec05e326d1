"""Whether a queue is paused, and the fact that says so."""

from squid_dagster.inspection.case import QueueState
from squid_dagster.journal.queries import JournalQueries
from squid_dagster.journal.storage import Storage
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.threads import dispatch_thread

_WINDOW = 500  # facts that are read at a time, from the end of the thread back
_MOST_WINDOWS = 20  # while a queue is paused little is written to it; a pause that lies further back is told without


def read_queue_state(storage: Storage, queries: JournalQueries, queue: str) -> QueueState:
    """Tell whether a queue gives claims; of a paused one, with the fact that paused it, unless that lies far back."""
    paused = any(row.paused for row in queries.queues() if row.queue == queue)
    return QueueState(queue, paused, _latest_pause(storage, queue) if paused else None)


def _latest_pause(storage: Storage, queue: str) -> Entry | None:
    thread = dispatch_thread(queue)
    end = storage.revision(thread)
    for _ in range(_MOST_WINDOWS):
        begin = max(end - _WINDOW, 0)
        for entry in reversed(storage.read(thread, after=begin, limit=end - begin)):
            if entry.fact.type in ("queue_paused", "queue_resumed"):
                # Resumed in the meantime: then there is no fact to show.
                return entry if entry.fact.type == "queue_paused" else None
        if begin == 0:
            break
        end = begin
    return None
