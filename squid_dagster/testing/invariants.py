"""What holds for every journal at any time, whatever crashed and whoever raced: checked from facts, not from the fold.

Only `no_anomaly` asks the fold; every other rule reads the facts by itself, so that a mistake of the fold shows too.
"""

from collections.abc import Iterable, Iterator, Sequence

from squid_dagster.api import Squid
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.anomalies import anomaly, unreadable
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.entries import Entry, by_run
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.testing.journal_source import read_all, storage_of
from squid_dagster.testing.run_rules import RunRules
from squid_dagster.testing.violation import Rule, Violation, violation

__all__ = ["InvariantViolated", "Rule", "Violation", "assert_invariants", "check_invariants", "violations"]


class InvariantViolated(AssertionError):
    """A journal breaks rules that always hold. `violations` has all of them."""

    def __init__(self, found: Sequence[Violation]) -> None:
        """Tell all of them, one in a line."""
        lines = "".join(f"\n  {each}" for each in found)
        super().__init__(f"the journal breaks {len(found)} rule{'s' if len(found) > 1 else ''}:{lines}")
        self.violations = tuple(found)


@checked
def assert_invariants(source: Squid | Storage) -> None:
    """Raise `InvariantViolated` if anything is wrong with a journal. Reads all of it: for tests and tools."""
    found = check_invariants(source)
    if found:
        raise InvariantViolated(found)


@checked
def check_invariants(source: Squid | Storage) -> list[Violation]:
    """Give everything that is wrong with a journal, also where two ways of reading it tell different stories."""
    storage = storage_of(source)
    entries = list(read_all(storage))
    return [*violations(entries), *_differing(storage, entries)]


@checked
def violations(entries: Iterable[Entry]) -> list[Violation]:
    """Give everything that is wrong with these entries: a whole journal, or whole threads of it, by position. Pure."""
    journal = list(entries)
    if not all(isinstance(entry, Entry) for entry in journal):
        raise InvalidArgument("entries must be a list of Entry, as storages give them")
    runs = by_run(journal)
    loose = runs.pop(None, [])
    found = [*_order(journal), *_anomalies(runs.values(), loose)]
    for run_entries in runs.values():
        found += RunRules().check(run_entries)
    return sorted(found, key=lambda each: (each.position, each.rule))


def _order(journal: Sequence[Entry]) -> Iterator[Violation]:
    revisions: dict[str, int] = {}
    position = 0
    for entry in journal:
        expected = revisions.get(entry.thread, 0) + 1
        if entry.seq != expected:
            yield violation(Rule.CONTIGUOUS_SEQUENCES, entry, f"has sequence number {entry.seq}, not {expected}")
        if entry.position <= position:
            yield violation(Rule.GROWING_POSITIONS, entry, f"is at position {entry.position}, after {position}")
        revisions[entry.thread], position = entry.seq, entry.position


def _anomalies(runs: Iterable[Sequence[Entry]], loose: Iterable[Entry]) -> Iterator[Violation]:
    unread = [anomaly(reason, entry) for entry in loose if (reason := unreadable(entry)) is not None]
    for each in [*unread, *(each for entries in runs for each in RunUnit.fold(entries).anomalies)]:
        about = f" ({each.subject!r})" if each.subject is not None else ""
        text = f"{each.entry_type}{about} is refused by the fold: {each.reason.value}"
        yield Violation(Rule.NO_ANOMALY, text, each.run_id, each.thread, each.seq, each.position)


def _differing(storage: Storage, entries: Sequence[Entry]) -> Iterator[Violation]:
    """Say where reading by thread or by run, or the revision, differs from reading by position."""
    by_thread: dict[str, list[Entry]] = {}
    for entry in entries:
        by_thread.setdefault(entry.thread, []).append(entry)
    for thread, expected in by_thread.items():
        last = expected[-1]
        if storage.read(thread)[: len(expected)] != expected:
            yield violation(Rule.SAME_READING, last, "reading its thread gives other entries than reading by position")
        if storage.revision(thread) < last.seq:
            revision = storage.revision(thread)
            yield violation(Rule.SAME_READING, last, f"stands beyond the revision of its thread, {revision}")
    for run_id, expected in by_run(entries).items():
        if run_id is not None and storage.read_run(run_id)[: len(expected)] != expected:
            text = "reading its run gives other entries than reading by position"
            yield violation(Rule.SAME_READING, expected[-1], text)
