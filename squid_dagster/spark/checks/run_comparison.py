"""Judging runs in Spark's workers: their folds beside the live views, index and catalog, and their anomalies.

What is wrong because a thread is damaged, or an entry unreadable, is told as `excused`: another check names the damage.
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
from squid_dagster.spark.checks.damaged_threads import RunThreads, suspects, threads_of
from squid_dagster.spark.checks.sequences import problems_of_threads
from squid_dagster.spark.checks.tallies import Kind, Tally
from squid_dagster.spark.fold.folds import Groups
from squid_dagster.spark.fold.run_rows import fold_run
from squid_dagster.spark.fold.worker_journal import journal_of
from squid_dagster.spark.source.credentials import Location

RUNS_AT_ONCE, _ENTRIES_AT_ONCE = 200, 5_000  # in one instant; whichever comes first
_UNREADABLE = frozenset({Reason.MALFORMED_ENTRY.value, Reason.UNKNOWN_FACT_TYPE.value})
_LISTINGS = {"indexed": "index", "cataloged": "catalog"}


@dataclass(frozen=True, slots=True)
class Case:
    """One run, folded up to the cut."""

    run_id: str
    unit: RunUnit
    first_position: int


@dataclass(frozen=True, slots=True)
class Judge:
    """What tasks are told. Holds no secret: it travels with the plan."""

    location: Location
    schema: str
    damaged: Mapping[str, str]  # of the threads that runs share
    listed_before: datetime  # whoever started later may still be on the way into index and catalog
    compared: bool = True  # false where the views are missing

    def runs(self, groups: Groups) -> Iterator[Row]:
        """Judge all runs of a task. Raises as `PostgresStorage.connection`."""
        tally = Tally()
        with journal_of(self.location, self.schema) as storage:
            for cases in _batches(groups):
                tally.counts[Kind.RUN, False] += len(cases)
                yield from self._judge(storage, cases, tally)
        yield from tally.rows()

    def _judge(self, storage: PostgresStorage, cases: list[Case], tally: Tally) -> Iterator[Row]:
        told = ViewRows()
        for case in cases:
            told.add_unit(case.run_id, case.unit, case.first_position)
        found = self.compare(storage, told, [case.run_id for case in cases])
        bad = [case for case in cases if self._is_odd(case, found)]
        hurt = self.hurt(storage, [found.threads(case.run_id).own for case in bad])
        for case in bad:
            yield from self._tell(case, found, hurt, tally)

    def compare(self, storage: PostgresStorage, told: ViewRows, run_ids: list[str]) -> "Compared":
        """Compare runs with the live views, as of one instant.

        Whoever has facts behind the cut differs from what was folded up to it, and is folded again in that instant.
        """
        if not self.compared:
            return Compared(told, ViewRows())
        with storage.connection() as connection, instant(connection, self.schema) as look:
            kept = look.actual(run_ids)
            differing = {difference.run_id for difference in differences(told, kept)}
            again = sorted(run_id for run_id in differing if run_id is not None)
            fresh = look.expected(again) if again else ViewRows()
        compared = Compared(told, kept, unreadable={row["run_id"] for row in fresh.anomalies if is_unreadable(row)})
        for difference in differences(fresh, kept.only(differing)):
            compared.differences.setdefault(difference.run_id, []).append(difference)
        return compared

    def _is_odd(self, case: Case, found: "Compared") -> bool:
        listed = case.unit.indexed is not None and case.unit.cataloged is not None
        healthy = listed and case.unit.run.start is not None
        return not healthy or case.run_id in found.differences or bool(case.unit.anomalies)

    def hurt(self, storage: PostgresStorage, threads: Sequence[str]) -> frozenset[str]:
        """Give those of the runs' own threads that are damaged: all of them would be too many to be told."""
        if not threads:
            return frozenset()
        with storage.connection() as connection:
            return frozenset(one.thread for one in problems_of_threads(connection, self.schema, threads))

    def _tell(self, case: Case, found: "Compared", hurt: frozenset[str], tally: Tally) -> Iterator[Row]:
        run_id, threads = case.run_id, found.threads(case.run_id)
        anomalies = found.told_anomalies(run_id)
        unreadable = run_id in found.unreadable or any(map(is_unreadable, anomalies))
        if run_id in found.differences:
            self.tell_differences(run_id, found.differences[run_id], threads, hurt, unreadable, tally)
        self._tell_listing(case, threads, hurt, unreadable, tally)
        for row in anomalies:
            # One that the live view knows was there when its fact was written, and is nobody's consequence.
            known = anomaly_key(row) in found.live_anomalies
            blamed = None if known else self._blamed(threads.every | {row["thread"]}, hurt)
            yield tally.anomaly(row, excused=blamed is not None)

    def tell_differences(
        self,
        run_id: str,
        found: list[Difference],
        threads: RunThreads,
        hurt: frozenset[str],
        unreadable: bool,
        tally: Tally,
    ) -> None:
        """Tell of a run that differs, unless a damaged thread or an unreadable entry explains all of it."""
        blamed = [(one, self._blamed(each, hurt)) for one in found for each in suspects(one, threads)]
        own = [one for one, thread in blamed if thread is None]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        if own or unreadable:
            tally.add(Kind.DIFFERS, run_id, (own or found)[0].detail + more, excused=unreadable)
            return
        thread = threads.own if threads.own in hurt else blamed[0][1]
        kind = Kind.DIFFERS if thread == threads.own else Kind.HURT
        tally.add(kind, run_id, found[0].detail + more, excused=True, thread=thread)

    def _tell_listing(
        self, case: Case, threads: RunThreads, hurt: frozenset[str], unreadable: bool, tally: Tally
    ) -> None:
        unit, start = case.unit, case.unit.run.start
        places = {"indexed": unit.indexed, "cataloged": unit.cataloged}
        missing = [name for name, summary in places.items() if summary is None]
        if start is None:
            if len(missing) == 2:
                return  # known to a queue alone: nothing says that it ever started
            named = " and ".join(_LISTINGS[name] for name, summary in places.items() if summary is not None)
            excused = unreadable or self._blamed({threads.own}, hurt) is not None
            tally.add(Kind.UNKNOWN_RUN, case.run_id, f"in the {named}, and never started", excused=excused)
            return
        blamed = [name for name in missing if self._blamed(threads.listing(name), hurt) is None]
        if missing:
            what = f"started, and not in the {' and '.join(_LISTINGS[name] for name in missing)}"
            kind = Kind.WAITING if start.occurred_at > self.listed_before else Kind.UNLISTED
            tally.add(kind, case.run_id, what, excused=unreadable or not blamed)

    def _blamed(self, threads: Iterable[str], hurt: frozenset[str]) -> str | None:
        return next((thread for thread in sorted(threads) if thread in self.damaged or thread in hurt), None)


@dataclass(slots=True)
class Compared:
    """A batch of runs beside their rows in the views."""

    told: ViewRows
    kept: ViewRows
    differences: dict[str | None, list[Difference]] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    live_anomalies: set[tuple[Any, ...]] = field(init=False)
    _rows: dict[str, list[Row]] = field(init=False)

    def __post_init__(self) -> None:
        self.live_anomalies = {anomaly_key(row) for row in self.kept.anomalies}
        self._rows = {}
        for found in (self.told.runs, self.told.attempts, self.kept.runs, self.kept.attempts):
            for row in found:
                self._rows.setdefault(row["run_id"], []).append(row)

    def threads(self, run_id: str) -> RunThreads:
        """Give the threads that tell of a run."""
        return threads_of(run_id, self._rows.get(run_id, ()))

    def told_anomalies(self, run_id: str) -> list[Row]:
        """Give the anomalies of a run up to the cut."""
        return [row for row in self.told.anomalies if row["run_id"] == run_id]


def _batches(groups: Groups) -> Iterator[list[Case]]:
    cases: list[Case] = []
    read = 0
    for run_id, entries in groups:
        if run_id is None:
            continue  # judged by itself, as it stands now
        folded = fold_run(entries)
        cases.append(Case(run_id, folded.unit, folded.first_position))
        read += folded.entries
        if len(cases) >= RUNS_AT_ONCE or read >= _ENTRIES_AT_ONCE:
            yield cases
            cases, read = [], 0
    if cases:
        yield cases


def is_unreadable(row: Row) -> bool:
    """Tell whether an anomaly says that its entry cannot be read."""
    return row["reason"] in _UNREADABLE


def anomaly_key(row: Row) -> tuple[Any, ...]:
    """Give what tells an anomaly from all others."""
    return row["thread"], row["seq"], row["ordinal"], row["reason"]
