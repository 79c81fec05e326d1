"""The checks of a journal: do the views equal the fold, is every run listed, has no thread a gap, is no anomaly new?

Damage is named by one check: where a thread has a gap, or an entry cannot be read, the runs that suffer from it are
counted by the others as `not_judged`, since what is wrong with them follows from that damage.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import LiteralString
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from squid_dagster.journal.postgres.schema.names import VIEWS
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.threads import run_thread
from squid_dagster.spark.checks.known_anomalies import KEY, KnownAnomalies
from squid_dagster.spark.checks.results import NAMED, Check, Finding, Named, make_finding
from squid_dagster.spark.checks.run_comparison import Judge
from squid_dagster.spark.checks.sequences import Damaged, find_damaged
from squid_dagster.spark.checks.stray_rows import STRAYS, Strays
from squid_dagster.spark.checks.tallies import OUTCOMES, Kind, Outcomes
from squid_dagster.spark.fold.folds import COLUMNS, map_runs
from squid_dagster.spark.fold.worker_journal import explained
from squid_dagster.spark.source.credentials import locate
from squid_dagster.spark.source.data_source import read_journal
from squid_dagster.spark.source.ranges import all_entries, usual_fold_partitions

__all__ = ["DEFAULT_GRACE", "Check", "Checked", "Finding", "Named", "checked"]

DEFAULT_GRACE = timedelta(minutes=10)
"""For how long a started run may be on its way into index and catalog: workers and recovery write these in batches."""

_MISSING_VIEWS: LiteralString = """SELECT name FROM unnest(%s::text[]) name
    WHERE to_regclass(quote_ident(%s) || '.' || name) IS NULL"""


@dataclass(slots=True)
class Checked:
    """The findings as of a cut. `remember` makes the anomalies known that are known by now."""

    cut: int
    findings: dict[Check, Finding]
    _memory: KnownAnomalies | None = None
    _anomalies: DataFrame | None = None  # while the checks are open

    def remember(self) -> None:
        """Know the anomalies of this check from now on: call it when the finding was told.

        Raises:
            WarehouseUnavailable: it cannot be written; the next check tells the same again.
        """
        counts = self.findings[Check.ANOMALIES].counts if Check.ANOMALIES in self.findings else {}
        changed = counts.get("found", 0) or counts.get("anomalies") != counts.get("known")
        if self._memory is not None and self._anomalies is not None and changed:
            generation = f"{self.cut}-{uuid4().hex}"
            rows = counts["anomalies"]
            self._memory.remember(self._anomalies, cut=self.cut, rows=rows, generation=generation)


@contextmanager
def checked(
    spark: SparkSession,
    storage: PostgresStorage,
    location: Mapping[str, str],
    *,
    memory: KnownAnomalies | None = None,
    checks: Collection[Check] = tuple(Check),
    grace: timedelta = DEFAULT_GRACE,
    partitions: int | None = None,
) -> Iterator[Checked]:
    """Check the journal as of now, by a few jobs of Spark's for all checks together. Safe while others write.

    `location` is what `credentials.handed_over` gives, `memory` the anomalies of the last check (without it, all are
    new), `grace` the time that a run may take into index and catalog, `partitions` the number of tasks that fold.

    Raises:
        StorageUnavailable, SchemaOutdated, SchemaTooNew, ForeignSchema: the journal cannot be read.
        InvalidArgument: there is no task to do it, or `location` names no database.
        WarehouseUnavailable: what is remembered cannot be read.
        WorkFailed: a task failed for good.
    """
    if partitions is not None and partitions < 1:
        raise InvalidArgument(f"partitions is {partitions}: a check needs a task to do it, from 1 on")
    storage.check()
    cut = storage.cut()
    tasks = usual_fold_partitions(all_entries(storage)) if partitions is None else partitions
    damaged = find_damaged(spark, location, storage.schema, tasks)
    if not (set(checks) - {Check.SEQUENCES} or damaged.shared):
        yield Checked(cut, {Check.SEQUENCES: _sequences(damaged, Outcomes())})
        return
    missing = [row[0] for row in storage.rows(_MISSING_VIEWS, list(VIEWS), storage.schema)]
    where = locate(location)
    judge = Judge(where, storage.schema, damaged.shared, storage.now() - grace, compared=not missing)
    entries = read_journal(spark, location, schema=storage.schema, upto=cut, only=COLUMNS)
    strays = spark.range(0, STRAYS, 1, min(tasks, STRAYS)).mapInArrow(Strays(judge).run, OUTCOMES)
    told = map_runs(entries, tasks, judge.runs, OUTCOMES).union(strays).persist()
    try:
        with explained("the journal could not be checked"):
            yield _checked(spark, told, cut, checks, damaged, missing, memory)
    finally:
        told.unpersist()


def _checked(
    spark: SparkSession,
    told: DataFrame,
    cut: int,
    checks: Collection[Check],
    damaged: Damaged,
    missing: Sequence[str],
    memory: KnownAnomalies | None,
) -> Checked:
    judged = told.where((f.col("kind") == Kind.ANOMALY.value) & (f.col("count") == 0) & ~f.col("excused"))
    found = Outcomes.read(told.where((f.col("kind") != Kind.ANOMALY.value) | (f.col("count") > 0)).collect())
    findings: dict[Check, Finding] = {}
    for check in Check:
        if check not in checks:
            continue
        match check:
            case Check.VIEWS:
                findings[check] = _views(found, missing)
            case Check.LISTED:
                findings[check] = _listed(found)
            case Check.SEQUENCES:
                findings[check] = _sequences(damaged, found)
            case Check.ANOMALIES:
                findings[check] = _anomalies(spark, found, judged, memory)
    return Checked(cut, findings, memory, judged)


def _views(found: Outcomes, missing: Sequence[str]) -> Finding:
    gone = [Named(None, f"the view {name} is missing") for name in missing]
    counts = {
        "runs": found.count(Kind.RUN),
        "missing_views": len(missing),
        "not_judged": found.count(Kind.DIFFERS, Kind.HURT, excused=True),
    }
    total = len(missing) + found.count(Kind.DIFFERS)
    return make_finding(Check.VIEWS, [*gone, *found.names(Kind.DIFFERS)], total, counts)


def _listed(found: Outcomes) -> Finding:
    counts = {
        "runs": found.count(Kind.RUN),
        "unlisted": found.count(Kind.UNLISTED),
        "never_started": found.count(Kind.UNKNOWN_RUN),
        "waiting": found.count(Kind.WAITING) + found.count(Kind.WAITING, excused=True),
        "not_judged": found.count(Kind.UNLISTED, Kind.UNKNOWN_RUN, excused=True),
    }
    names = found.names(Kind.UNLISTED, Kind.UNKNOWN_RUN)
    return make_finding(Check.LISTED, names, counts["unlisted"] + counts["never_started"], counts)


def _sequences(damaged: Damaged, found: Outcomes) -> Finding:
    """Name the threads, and the runs that suffer from the damage of those that many share."""
    own = [Named(thread.removeprefix(run_thread("")), f"{thread}: {what}") for thread, what in damaged.own.items()]
    shared = [Named(None, f"{thread}: {what}") for thread, what in damaged.shared.items()]
    threads, runs_hurt = len(own) + damaged.unnamed + len(shared), found.count(Kind.HURT, excused=True)
    counts = {"threads": threads, "shared_threads": len(shared), "runs_hurt": runs_hurt}
    return make_finding(Check.SEQUENCES, [*shared, *own, *found.hurt()], threads + runs_hurt, counts)


def _anomalies(spark: SparkSession, found: Outcomes, judged: DataFrame, memory: KnownAnomalies | None) -> Finding:
    remembered = memory.remembered() if memory is not None else None
    counts = {
        "anomalies": found.count(Kind.ANOMALY),
        "known": remembered.rows if remembered is not None else 0,
        "not_judged": found.count(Kind.ANOMALY, excused=True),
    }
    if not counts["anomalies"]:
        return make_finding(Check.ANOMALIES, [], 0, counts)
    new = judged
    if memory is not None and remembered is not None:
        new = judged.join(memory.read(spark, remembered), list(KEY), "left_anti")
    first = new.orderBy("position", *KEY).limit(NAMED).collect()
    total = len(first) if len(first) < NAMED else new.count()
    return make_finding(Check.ANOMALIES, [Named(row.run_id, row.what) for row in first], total, counts)
