"""The invariants of every journal at any time, after any crash or race, checked from facts.

Only `no_anomaly` uses the fold; every other rule reads the facts itself, so that a defect of the fold is found, too.
"""

from collections.abc import Iterable, Iterator, Sequence

from squid_dagster.api import Squid
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.anomalies import anomaly, unreadable
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.entries import Entry, by_run
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.testing.run_rules import RunRules
from squid_dagster.testing.violation import Rule, Violation, violation

__all__ = ["InvariantViolated", "Rule", "Violation", "assert_invariants", "check_invariants", "violations"]


_PAGE_ENTRIES = 5_000


class InvariantViolated(AssertionError):
    """A journal violates invariants; `violations` has all of them."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        """Build the message, with one violation per line."""
        lines = "".join(f"\n  {violation}" for violation in violations)
        super().__init__(f"the journal breaks {len(violations)} rule{'s' if len(violations) > 1 else ''}:{lines}")
        self.violations = tuple(violations)


@checked
def assert_invariants(source: Squid | Storage) -> None:
    """Raise `InvariantViolated` if a journal violates an invariant. Reads the whole journal: for tests and tools."""
    if broken := check_invariants(source):
        raise InvariantViolated(broken)


@checked
def check_invariants(source: Squid | Storage) -> list[Violation]:
    """Return all violations of a journal, also differences between reading by position, by thread and by run."""
    storage = storage_of(source)
    entries = list(read_all(storage))
    return [*violations(entries), *_differing(storage, entries)]


@checked
def violations(entries: Iterable[Entry]) -> list[Violation]:
    """Return all violations of these entries: a whole journal, or whole threads of it, by position. Pure."""
    journal = list(entries)
    if not all(isinstance(entry, Entry) for entry in journal):
        raise InvalidArgument("entries must be a list of Entry, as storages give them")
    runs = by_run(journal)
    loose = runs.pop(None, [])
    broken = [*_order(journal), *_anomalies(runs.values(), loose)]
    for run_entries in runs.values():
        broken += RunRules().check(run_entries)
    return sorted(broken, key=lambda one: (one.position, one.rule))


def storage_of(source: Squid | Storage) -> Storage:
    """Return the storage of a squid, or the storage itself."""
    return source if isinstance(source, Storage) else source.journal


def read_all(storage: Storage) -> Iterator[Entry]:
    """Yield all entries up to a cut, by position."""
    after, upto = 0, storage.cut()
    while page := storage.read_between(after, upto, _PAGE_ENTRIES):
        yield from page
        after = page[-1].position


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
    for one in [*unread, *(one for entries in runs for one in RunUnit.fold(entries).anomalies)]:
        about = f" ({one.subject!r})" if one.subject is not None else ""
        text = f"{one.entry_type}{about} is refused by the fold: {one.reason.value}"
        yield Violation(Rule.NO_ANOMALY, text, one.run_id, one.thread, one.seq, one.position)


def _differing(storage: Storage, entries: Sequence[Entry]) -> Iterator[Violation]:
    """Yield where reading by thread or by run, or the revision, differs from reading by position."""
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
