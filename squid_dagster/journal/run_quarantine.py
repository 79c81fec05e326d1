"""Quarantine of runs with an unreadable entry. Other runs continue."""

from collections.abc import Iterable

from squid_dagster.journal.contract.storage import Append, Storage
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.entries import Entry, MalformedFact
from squid_dagster.protocol.errors import Conflict, InvalidArgument
from squid_dagster.protocol.facts import EntryQuarantined
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.threads import run_thread


@checked
def quarantine(storage: Storage, entries: Iterable[Entry]) -> list[str]:
    """Quarantine the run of every malformed entry among these; return the runs that this call has stopped.

    Skips runs that have ended or are quarantined already, and entries that belong to no run.
    """
    stopped = []
    for entry in entries:
        if not isinstance(entry, Entry):
            raise InvalidArgument(f"entries must be a list of Entry, not of {type(entry).__name__}")
        run_id = entry.fact.run_id if isinstance(entry.fact, MalformedFact) else None
        if run_id is not None and run_id not in stopped and _stop(storage, run_id, entry):
            stopped.append(run_id)
    return stopped


def _stop(storage: Storage, run_id: str, entry: Entry) -> bool:
    assert isinstance(entry.fact, MalformedFact)  # noqa: S101  the caller has checked it
    thread = run_thread(run_id)
    while True:
        entries = storage.read(thread)
        run = RunProjection.fold(entries)
        if run.terminal or run.quarantine is not None:
            return False
        fact = EntryQuarantined(
            run_id=run_id,
            entry_thread=entry.thread,
            entry_seq=entry.seq,
            reason=entry.fact.reason[:1000],
            occurred_at=storage.now(),
        )
        try:
            storage.commit([Append(thread, [fact], len(entries))])
        except Conflict:
            continue
        return True
