"""A run's facts up to a moment, what they fold to, and an index of which fact says what.

A moment in the past is a revision of the run's own thread, or a time. Both give a prefix of the run's entries by
position, over its own thread and its queue's: no entry is left out before one that is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any, NamedTuple

from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.anomalies import Anomaly, anomaly, unreadable
from squid_dagster.protocol.entries import Entry, MalformedFact
from squid_dagster.protocol.errors import InvalidArgument, NotFound
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import check_part, run_thread

RETRY = "retry"  # the name under which a failure is found by the attempt that it created

Place = tuple[str, int]


class Evidence(NamedTuple):
    """The place of a fact that an answer follows from."""

    thread: str
    revision: int
    type: str
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class Record:
    """All facts of one run up to a moment. `refused` says why the fold did not follow an entry, by thread and revision.

    `revision` is that of the run's own thread. `as_of` is the moment, if it is in the past; None: now.
    """

    run_id: str
    entries: tuple[Entry, ...]
    unit: RunUnit
    revision: int
    refused: Mapping[Place, str]
    as_of: datetime | None
    _index: Mapping[tuple[str, str | None], list[Entry]]

    def first(self, type_name: str, subject: str | None = None) -> Entry | None:
        """Return the first fact of a type, about one runnable or step if named, that the fold followed."""
        entries = self._index.get((type_name, subject))
        return entries[0] if entries else None

    def last(self, type_name: str, subject: str | None = None) -> Entry | None:
        """Return the last such fact."""
        entries = self._index.get((type_name, subject))
        return entries[-1] if entries else None

    def every(self, type_name: str, subject: str | None = None) -> Sequence[Entry]:
        """Return all such facts, oldest first."""
        return self._index.get((type_name, subject), ())

    @property
    def unreadable(self) -> list[Entry]:
        """The entries of the run that cannot be decoded."""
        return [entry for entry in self.entries if isinstance(entry.fact, MalformedFact)]


def read_record(storage: Storage, run_id: str, at_revision: int | None = None, at: datetime | None = None) -> Record:
    """Read a run, as it is or as it was: at an earlier revision of its own thread, or at a time.

    At revision n, these are its own first n facts, and everything else about it that was written before fact n + 1; the
    moment is that of the latest of them. At a time, these are the facts that were written before the first later one.

    Raises:
        NotFound: no fact names this run, or none did at that time.
        InvalidThread: this is no id that a run could have.
        InvalidArgument: the run has, or had, no such revision; or both a revision and a time are given.
    """
    if at is not None and at_revision is not None:
        raise InvalidArgument("at and at_revision both name a moment: give one of them")
    entries = storage.read_run(check_part(run_id, "run id"))
    if not entries:
        raise NotFound(f"there is no run {run_id!r}: check the id, or find it with `squid run list` or list_runs()")
    if at_revision is not None:
        entries = _upto_revision(run_id, entries, at_revision)
        return make_record(run_id, entries, max(entry.fact.occurred_at for entry in entries))
    return make_record(run_id, entries if at is None else _upto_time(run_id, entries, at), at)


def make_record(run_id: str, entries: Sequence[Entry], as_of: datetime | None = None) -> Record:
    """Fold a run's entries, at least one, and index them by what they are about. Never raises."""
    unit = RunUnit.fold(entries)
    refused: dict[Place, str] = {}
    wrong: dict[Place, list[Anomaly]] = {}
    for wrong_entry in unit.anomalies:
        wrong.setdefault((wrong_entry.thread, wrong_entry.seq), []).append(wrong_entry)
    index: dict[tuple[str, str | None], list[Entry]] = {}
    for entry in entries:
        place = (entry.thread, entry.seq)
        # An anomaly about a part of an entry, such as one of many runnables, does not make the rest of it untrue.
        whole = next(
            (candidate for candidate in wrong.get(place, ()) if anomaly(candidate.reason, entry) == candidate), None
        )
        if whole is not None:
            refused[place] = whole.reason.value
        elif unreadable(entry) is None:
            for name in _names(entry):
                index.setdefault(name, []).append(entry)
    own = [entry.seq for entry in entries if entry.thread == run_thread(run_id)]
    return Record(run_id, tuple(entries), unit, max(own, default=0), refused, as_of, index)


def evidence(*entries: Entry | None) -> tuple[Evidence, ...]:
    """Return the places of facts, each once, in the order of the journal; None is left out."""
    by_place = {(entry.thread, entry.seq): entry for entry in entries if entry is not None}
    return tuple(
        Evidence(entry.thread, entry.seq, entry.fact.type, entry.fact.occurred_at)
        for entry in sorted(by_place.values(), key=lambda entry: entry.position)
    )


def _upto_time(run_id: str, entries: Sequence[Entry], at: datetime) -> list[Entry]:
    upto = [*takewhile(lambda entry: entry.fact.occurred_at <= at, entries)]
    if not upto:
        begin = entries[0].fact.occurred_at.isoformat()
        raise NotFound(f"there was no run {run_id!r} at {at.isoformat()}: its first fact is of {begin}")
    return upto


def _upto_revision(run_id: str, entries: Sequence[Entry], revision: int) -> list[Entry]:
    own = [entry for entry in entries if entry.thread == run_thread(run_id)]
    last = own[-1].seq if own else 0
    whole = isinstance(revision, int) and not isinstance(revision, bool)
    if not whole or not 1 <= revision <= last:
        known = f"use a revision from 1 to {last}" if last else "it has no facts of its own yet"
        raise InvalidArgument(f"run {run_id!r} has no revision {revision!r:.40}: {known}")
    following = next((entry.position for entry in own if entry.seq > revision), None)
    return [entry for entry in entries if following is None or entry.position < following]


def _names(entry: Entry) -> list[tuple[str, str | None]]:
    """Return the keys that a fact is indexed by."""
    fact: Any = entry.fact
    names: list[tuple[str, str | None]] = [(fact.type, None)]
    match fact.type:
        case "runnables_planned":
            names += [(fact.type, runnable.runnable_key) for runnable in fact.runnables]
        case "manual_step_paused" | "manual_step_resolved":
            names.append((fact.type, fact.step))
        case "attempt_failed":
            names.append((fact.type, fact.runnable_key))
            if fact.retry_runnable_key is not None:
                names.append((RETRY, fact.retry_runnable_key))
        case "runnable_applied" | "attempt_scheduled" | "attempt_claimed" | "attempt_heartbeat" | "attempt_released":
            names.append((fact.type, fact.runnable_key))
        case "attempt_completed" | "attempt_dead_lettered" | "live_wakeup_emitted":
            names.append((fact.type, fact.runnable_key))
        case "run_signal_received":
            names.append((fact.type, fact.signal_type))
    return names
