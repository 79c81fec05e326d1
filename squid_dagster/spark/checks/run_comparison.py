"""The comparison of runs in Spark's workers: their folds with the live views, index and catalog, and their anomalies.

A problem that follows from a damaged thread or an unreadable entry is `excused`: another check reports the damage.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.comparison import Difference, differences, instant
from squid_dagster.journal.postgres.views.folded_rows import ViewRows
from squid_dagster.journal.postgres.views.rows import Row
from squid_dagster.protocol.anomalies import Reason
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.spark.checks.damaged_threads import RunThreads, explaining_threads, threads_of
from squid_dagster.spark.checks.sequences import problems_of_threads
from squid_dagster.spark.checks.tallies import Kind, Tally
from squid_dagster.spark.fold.folds import Groups
from squid_dagster.spark.fold.run_rows import fold_run
from squid_dagster.spark.fold.worker_journal import journal_of
from squid_dagster.spark.source.credentials import Location

RUNS_AT_ONCE, _ENTRIES_AT_ONCE = 200, 5_000  # in one snapshot; whichever comes first
_UNREADABLE = frozenset({Reason.MALFORMED_ENTRY.value, Reason.UNKNOWN_FACT_TYPE.value})
_LISTINGS = {"indexed": "index", "cataloged": "catalog"}


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """One run, folded up to the cut."""

    run_id: str
    unit: RunUnit
    first_position: int


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The comparison, as it is sent to tasks. Holds no secret: it is sent with the plan."""

    location: Location
    schema: str
    damaged: Mapping[str, str]  # the first problem of damaged shared threads
    listed_before: datetime  # runs started later may still be missing in index and catalog
    compared: bool = True  # false where the views are missing

    def runs(self, groups: Groups) -> Iterator[Row]:
        """Compare all runs of a task; yield its results. Raises as `PostgresStorage.connection`."""
        tally = Tally()
        with journal_of(self.location, self.schema) as storage:
            for cases in _batches(groups):
                tally.counts[Kind.RUN, False] += len(cases)
                yield from self._compare_cases(storage, cases, tally)
        yield from tally.rows()

    def _compare_cases(self, storage: PostgresStorage, cases: list[CheckedRun], tally: Tally) -> Iterator[Row]:
        expected = ViewRows()
        for case in cases:
            expected.add_unit(case.run_id, case.unit, case.first_position)
        compared = self.compare(storage, expected, [case.run_id for case in cases])
        reported = [case for case in cases if self._has_problem(case, compared)]
        damaged = self.damaged_of(storage, [compared.threads(case.run_id).own for case in reported])
        for case in reported:
            yield from self._report(case, compared, damaged, tally)

    def compare(self, storage: PostgresStorage, expected: ViewRows, run_ids: list[str]) -> "RowComparison":
        """Compare runs with the live views, in one snapshot.

        A run with facts after the cut differs from its fold up to the cut; it is folded again in that snapshot.
        """
        if not self.compared:
            return RowComparison(expected, ViewRows())
        with storage.connection() as connection, instant(connection, self.schema) as snapshot:
            actual = snapshot.actual(run_ids)
            differing = {difference.run_id for difference in differences(expected, actual)}
            again = sorted(run_id for run_id in differing if run_id is not None)
            fresh = snapshot.expected(again) if again else ViewRows()
        compared = RowComparison(
            expected, actual, unreadable={row["run_id"] for row in fresh.anomalies if is_unreadable(row)}
        )
        for difference in differences(fresh, actual.only(differing)):
            compared.differences.setdefault(difference.run_id, []).append(difference)
        return compared

    def _has_problem(self, case: CheckedRun, compared: "RowComparison") -> bool:
        listed = case.unit.indexed is not None and case.unit.cataloged is not None
        healthy = listed and case.unit.run.start is not None
        return not healthy or case.run_id in compared.differences or bool(case.unit.anomalies)

    def damaged_of(self, storage: PostgresStorage, threads: Sequence[str]) -> frozenset[str]:
        """Return the damaged ones of these threads. They may be too many to be sent with the plan."""
        if not threads:
            return frozenset()
        with storage.connection() as connection:
            return frozenset(problem.thread for problem in problems_of_threads(connection, self.schema, threads))

    def _report(
        self, case: CheckedRun, compared: "RowComparison", damaged: frozenset[str], tally: Tally
    ) -> Iterator[Row]:
        run_id, threads = case.run_id, compared.threads(case.run_id)
        anomalies = compared.expected_anomalies(run_id)
        unreadable = run_id in compared.unreadable or any(map(is_unreadable, anomalies))
        if run_id in compared.differences:
            self.report_differences(run_id, compared.differences[run_id], threads, damaged, unreadable, tally)
        self._report_listing(case, threads, damaged, unreadable, tally)
        for row in anomalies:
            # An anomaly that the live view has existed when its fact was written, before any damage.
            known = anomaly_key(row) in compared.live_anomalies
            cause = None if known else self._damaged_cause(threads.every | {row["thread"]}, damaged)
            yield tally.anomaly(row, excused=cause is not None)

    def report_differences(
        self,
        run_id: str,
        differing: list[Difference],
        threads: RunThreads,
        damaged: frozenset[str],
        unreadable: bool,
        tally: Tally,
    ) -> None:
        """Report a run that differs; excused if a damaged thread or an unreadable entry explains all of it."""
        causes = [
            (difference, self._damaged_cause(candidates, damaged))
            for difference in differing
            for candidates in explaining_threads(difference, threads)
        ]
        unexplained = [difference for difference, thread in causes if thread is None]
        rest = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        if unexplained or unreadable:
            tally.add(Kind.DIFFERS, run_id, (unexplained or differing)[0].detail + rest, excused=unreadable)
            return
        thread = threads.own if threads.own in damaged else causes[0][1]
        kind = Kind.DIFFERS if thread == threads.own else Kind.AFFECTED
        tally.add(kind, run_id, differing[0].detail + rest, excused=True, thread=thread)

    def _report_listing(
        self, case: CheckedRun, threads: RunThreads, damaged: frozenset[str], unreadable: bool, tally: Tally
    ) -> None:
        unit, start = case.unit, case.unit.run.start
        places = {"indexed": unit.indexed, "cataloged": unit.cataloged}
        missing = [name for name, summary in places.items() if summary is None]
        if start is None:
            if len(missing) == 2:
                return  # only a queue has facts of it: no fact says that it started
            named = " and ".join(_LISTINGS[name] for name, summary in places.items() if summary is not None)
            excused = unreadable or self._damaged_cause({threads.own}, damaged) is not None
            tally.add(Kind.UNKNOWN_RUN, case.run_id, f"in the {named}, and never started", excused=excused)
            return
        unexplained = [name for name in missing if self._damaged_cause(threads.listing(name), damaged) is None]
        if missing:
            what = f"started, and not in the {' and '.join(_LISTINGS[name] for name in missing)}"
            kind = Kind.WAITING if start.occurred_at > self.listed_before else Kind.UNLISTED
            tally.add(kind, case.run_id, what, excused=unreadable or not unexplained)

    def _damaged_cause(self, threads: Iterable[str], damaged: frozenset[str]) -> str | None:
        return next((thread for thread in sorted(threads) if thread in self.damaged or thread in damaged), None)


@dataclass(slots=True)
class RowComparison:
    """A batch of runs: their rows by the fold, and those in the views."""

    expected: ViewRows
    actual: ViewRows
    differences: dict[str | None, list[Difference]] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    live_anomalies: set[tuple[Any, ...]] = field(init=False)
    _rows: dict[str, list[Row]] = field(init=False)

    def __post_init__(self) -> None:
        self.live_anomalies = {anomaly_key(row) for row in self.actual.anomalies}
        self._rows = {}
        for rows in (self.expected.runs, self.expected.attempts, self.actual.runs, self.actual.attempts):
            for row in rows:
                self._rows.setdefault(row["run_id"], []).append(row)

    def threads(self, run_id: str) -> RunThreads:
        """Return the threads that have facts of a run."""
        return threads_of(run_id, self._rows.get(run_id, ()))

    def expected_anomalies(self, run_id: str) -> list[Row]:
        """Return the anomalies of a run up to the cut."""
        return [row for row in self.expected.anomalies if row["run_id"] == run_id]


def _batches(groups: Groups) -> Iterator[list[CheckedRun]]:
    cases: list[CheckedRun] = []
    read = 0
    for run_id, entries in groups:
        if run_id is None:
            continue  # checked by `orphan_rows`, in its current state
        folded = fold_run(entries)
        cases.append(CheckedRun(run_id, folded.unit, folded.first_position))
        read += folded.entries
        if len(cases) >= RUNS_AT_ONCE or read >= _ENTRIES_AT_ONCE:
            yield cases
            cases, read = [], 0
    if cases:
        yield cases


def is_unreadable(row: Row) -> bool:
    """Return whether an anomaly says that its entry is unreadable."""
    return row["reason"] in _UNREADABLE


def anomaly_key(row: Row) -> tuple[Any, ...]:
    """Return the key that identifies an anomaly."""
    return row["thread"], row["seq"], row["ordinal"], row["reason"]
