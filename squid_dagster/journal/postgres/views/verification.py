"""Verification of the whole journal: entries that were changed or are missing, wrong revisions, views that differ."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import LiteralString

from squid_dagster.journal.postgres.entry_reader import ENTRY, SchemaReader
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.comparison import Difference, differences, instant
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.entries import Entry, MalformedFact, run_of
from squid_dagster.protocol.threads import run_thread

_PAGE = 5_000
_RUN_PREFIX = run_thread("")
_RUNS_AT_ONCE = 200

# journal_entries_thread
_PAGE_OF_THREADS: LiteralString = (
    ENTRY + "WHERE (thread, seq, position) > (%s, %s, %s) AND position <= %s ORDER BY thread, seq, position LIMIT %s"
)
# journal_threads_pkey, journal_entries_thread
_REVISIONS: LiteralString = """SELECT t.id, t.rev, coalesce((SELECT max(e.seq) FROM {schema}.journal_entries e
    WHERE e.thread = t.id), 0) FROM {schema}.journal_threads t WHERE t.id > %s ORDER BY t.id LIMIT %s"""
# All of journal_commits; journal_threads_pkey, journal_entries_thread
LOST_TAILS: LiteralString = """SELECT t.id, r.rev, coalesce(e.seq, 0)
    FROM (SELECT r.key, max(r.value::bigint) AS rev
            FROM {schema}.journal_commits c CROSS JOIN LATERAL json_each_text(c.receipt) r
           WHERE NOT starts_with(r.key, 'squid:run:') GROUP BY r.key) r
    JOIN {schema}.journal_threads t ON t.id = r.key
    LEFT JOIN LATERAL (SELECT seq FROM {schema}.journal_entries WHERE thread = t.id ORDER BY seq DESC LIMIT 1) e ON true
   WHERE r.rev > coalesce(e.seq, 0) AND t.rev <= coalesce(e.seq, 0) ORDER BY t.id"""
"""Shared threads whose entries end before the revision in a commit's receipt, which their own rows do not show."""
_HAS_THREAD: LiteralString = "SELECT id FROM {schema}.journal_threads WHERE id = ANY (%s)"
# runs_pkey and journal_entries_run, skipping from one run to the next
_NEXT_RUNS: LiteralString = """WITH RECURSIVE known (run_id, n) AS (
        SELECT %s::text COLLATE "C", 0
        UNION ALL
        SELECT (SELECT least(
            (SELECT min(r.run_id) FROM {schema}.runs r WHERE r.run_id > k.run_id),
            (SELECT min(a.run_id) FROM {schema}.attempts a WHERE a.run_id > k.run_id),
            (SELECT e.run_id FROM {schema}.journal_entries e WHERE e.run_id > k.run_id AND e.run_id IS NOT NULL
              ORDER BY e.run_id LIMIT 1))), k.n + 1
          FROM known k WHERE k.run_id IS NOT NULL AND k.n < %s
    ) SELECT run_id FROM known WHERE n > 0 AND run_id IS NOT NULL"""


class DiscrepancyKind(StrEnum):
    """What can be wrong with a journal."""

    CORRUPT_ENTRY = "corrupt_entry"
    GAP = "gap"
    DUPLICATE = "duplicate"
    OUT_OF_ORDER = "out_of_order"
    WRONG_REVISION = "wrong_revision"
    VIEW_DIFFERS = "view_differs"


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """One thing that is wrong, and where."""

    kind: DiscrepancyKind
    detail: str
    thread: str | None = None
    seq: int | None = None
    run_id: str | None = None


Progress = Callable[[int], None]


@checked
def verify(storage: PostgresStorage, progress: Progress | None = None) -> list[Discrepancy]:
    """Check every entry, every thread and every row of the live views; an empty list means a healthy journal.

    Safe while others write: it reads in short transactions. `progress` gets the number of entries read so far.
    """
    with storage.connection() as connection:
        verification = _Verification(connection, storage.schema)
        discrepancies = [*verification.entries(storage.cut(), progress or (lambda _: None)), *verification.revisions()]
        # A run with an unreadable entry cannot be folded as it was, so its rows are not compared.
        unreadable = {one.run_id for one in discrepancies if one.kind is DiscrepancyKind.CORRUPT_ENTRY}
        return [*discrepancies, *verification.views(unreadable)]


def check_views(storage: PostgresStorage, progress: Progress | None = None) -> list[Discrepancy]:
    """Compare every row of the live views with the fold of the facts; an empty list means that they agree.

    Safe while others write: it reads in short transactions. `progress` gets the number of runs compared so far.

    Raises:
        ViewsMissing: a view does not exist; `rebuild_views` restores it.
    """
    with storage.connection() as connection:
        return list(_Verification(connection, storage.schema).views(set(), progress or (lambda _: None)))


class _Verification(SchemaReader):
    def entries(self, cut: int, progress: Progress) -> Iterator[Discrepancy]:
        """Compare each entry with the one before it on the thread."""
        before: Entry | None = None
        last, count = ("", 0, 0), 0
        while page := self._entries(_PAGE_OF_THREADS, *last, cut, _PAGE):
            for entry in page:
                if before is None or before.thread != entry.thread:
                    before = Entry(entry.thread, 0, 0, entry.fact)
                yield from _entry_discrepancies(before, entry)
                before = entry if entry.seq != before.seq else before
            threads = {entry.thread for entry in page}
            for thread in sorted(threads - {row[0] for row in self._rows(_HAS_THREAD, list(threads))}):
                yield Discrepancy(DiscrepancyKind.WRONG_REVISION, "the thread has entries, but no revision", thread)
            count += len(page)
            progress(count)
            last = (page[-1].thread, page[-1].seq, page[-1].position)

    def revisions(self) -> Iterator[Discrepancy]:
        """Compare each thread's revision with its last entry, as of one instant.

        The row of a shared thread may be behind its last entry (revision_of.sql): receipts of commits have the rest.
        """
        last = ""
        while page := self._rows(_REVISIONS, last, _PAGE):
            for thread, revision, seq in page:
                if revision > seq or (revision < seq and thread.startswith(_RUN_PREFIX)):
                    detail = f"the thread says revision {revision}, its last entry is {seq}"
                    yield Discrepancy(DiscrepancyKind.WRONG_REVISION, detail, thread, seq)
            last = page[-1][0]
        for thread, revision, seq in self._rows(LOST_TAILS):
            detail = f"a commit says revision {revision}, the thread's last entry is {seq}"
            yield Discrepancy(DiscrepancyKind.WRONG_REVISION, detail, thread, seq)

    def views(self, unreadable: set[str | None], progress: Progress = lambda _: None) -> Iterator[Discrepancy]:
        """Compare the rows of each run with the fold of its facts, as of one instant."""
        last, count = "", 0
        while run_ids := [row[0] for row in self._rows(_NEXT_RUNS, last, _RUNS_AT_ONCE)]:
            last = run_ids[-1]
            with instant(self._connection, self._schema) as moment:
                expected, actual = moment.expected(run_ids), moment.actual(run_ids)
            yield from (_differs(one) for one in differences(expected, actual) if one.run_id not in unreadable)
            count += len(run_ids)
            progress(count)
        with instant(self._connection, self._schema) as moment:
            expected, actual = moment.expected_loose(), moment.actual_loose()
        yield from map(_differs, differences(expected, actual))


def _entry_discrepancies(before: Entry, entry: Entry) -> Iterator[Discrepancy]:
    fact = entry.fact
    place = (entry.thread, entry.seq, run_of(fact))
    if isinstance(fact, MalformedFact):
        yield Discrepancy(DiscrepancyKind.CORRUPT_ENTRY, f"{fact.type}: {fact.reason}", *place)
    if entry.seq == before.seq:
        yield Discrepancy(DiscrepancyKind.DUPLICATE, "the sequence number is there twice", *place)
    elif entry.seq != before.seq + 1:
        missing = f"{before.seq + 1}" if entry.seq == before.seq + 2 else f"{before.seq + 1} to {entry.seq - 1}"
        yield Discrepancy(DiscrepancyKind.GAP, f"sequence {missing} missing before this entry", *place)
    elif entry.position <= before.position:
        detail = f"position {entry.position} comes after {before.position} on its thread"
        yield Discrepancy(DiscrepancyKind.OUT_OF_ORDER, detail, *place)


def _differs(one: Difference) -> Discrepancy:
    return Discrepancy(DiscrepancyKind.VIEW_DIFFERS, one.detail, run_id=one.run_id)
