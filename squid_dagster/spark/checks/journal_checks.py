"""The checks of a journal: views equal the fold, every run is listed, no thread has a gap, no anomaly is new.

One check reports each damage: if a thread has a gap, or an entry is unreadable, the other checks count the affected
runs as `not_judged`, since their problems follow from that damage.
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
from squid_dagster.spark.checks.orphan_rows import ORPHAN_TASKS, OrphanRowCheck
from squid_dagster.spark.checks.results import NAMED, Check, CheckResult, RunProblem, make_check_result
from squid_dagster.spark.checks.run_comparison import RunComparison
from squid_dagster.spark.checks.sequences import Damaged, find_damaged
from squid_dagster.spark.checks.tallies import OUTCOMES, Kind, Outcomes
from squid_dagster.spark.fold.folds import COLUMNS, map_runs
from squid_dagster.spark.fold.worker_journal import explained
from squid_dagster.spark.source.credentials import locate
from squid_dagster.spark.source.data_source import read_journal
from squid_dagster.spark.source.ranges import all_entries, usual_fold_partitions

__all__ = ["DEFAULT_GRACE", "Check", "CheckResult", "Checked", "RunProblem", "checked"]

DEFAULT_GRACE = timedelta(minutes=10)
"""How long after its start a run may be missing in index and catalog, which workers and recovery write in batches."""

_MISSING_VIEWS: LiteralString = """SELECT name FROM unnest(%s::text[]) name
    WHERE to_regclass(quote_ident(%s) || '.' || name) IS NULL"""


@dataclass(slots=True)
class Checked:
    """The results as of a cut. `remember` stores the anomalies as known."""

    cut: int
    results: dict[Check, CheckResult]
    _memory: KnownAnomalies | None = None
    _anomalies: DataFrame | None = None  # while the checks are open

    def remember(self) -> None:
        """Store the anomalies of this check as known. Call it once the result was reported.

        Raises:
            WarehouseUnavailable: it cannot be written; the next check reports the same anomalies.
        """
        counts = self.results[Check.ANOMALIES].counts if Check.ANOMALIES in self.results else {}
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
    """Check the journal as of now, by a few Spark jobs for all checks together. Safe while other processes write.

    `location` is what `handed_over` yields, `memory` the anomalies of the last check (without it, all are new), `grace`
    how long a run may be missing in index and catalog, `partitions` the number of tasks that fold.

    Raises:
        StorageUnavailable, SchemaOutdated, SchemaTooNew, ForeignSchema: the journal cannot be read.
        InvalidArgument: the number of tasks is out of range, or `location` names no database.
        WarehouseUnavailable: the known anomalies cannot be read.
        WorkFailed: a task failed after all retries.
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
    comparison = RunComparison(where, storage.schema, damaged.shared, storage.now() - grace, compared=not missing)
    entries = read_journal(spark, location, schema=storage.schema, upto=cut, only=COLUMNS)
    strays = spark.range(0, ORPHAN_TASKS, 1, min(tasks, ORPHAN_TASKS)).mapInArrow(
        OrphanRowCheck(comparison).run, OUTCOMES
    )
    outcomes = map_runs(entries, tasks, comparison.runs, OUTCOMES).union(strays).persist()
    try:
        with explained("the journal could not be checked"):
            yield _checked(spark, outcomes, cut, checks, damaged, missing, memory)
    finally:
        outcomes.unpersist()


def _checked(
    spark: SparkSession,
    rows: DataFrame,
    cut: int,
    checks: Collection[Check],
    damaged: Damaged,
    missing: Sequence[str],
    memory: KnownAnomalies | None,
) -> Checked:
    anomalies = rows.where((f.col("kind") == Kind.ANOMALY.value) & (f.col("count") == 0) & ~f.col("excused"))
    outcomes = Outcomes.read(rows.where((f.col("kind") != Kind.ANOMALY.value) | (f.col("count") > 0)).collect())
    results: dict[Check, CheckResult] = {}
    for check in Check:
        if check not in checks:
            continue
        match check:
            case Check.VIEWS:
                results[check] = _views(outcomes, missing)
            case Check.LISTED:
                results[check] = _listed(outcomes)
            case Check.SEQUENCES:
                results[check] = _sequences(damaged, outcomes)
            case Check.ANOMALIES:
                results[check] = _anomalies(spark, outcomes, anomalies, memory)
    return Checked(cut, results, memory, anomalies)


def _views(outcomes: Outcomes, missing: Sequence[str]) -> CheckResult:
    gone = [RunProblem(None, f"the view {name} is missing") for name in missing]
    counts = {
        "runs": outcomes.count(Kind.RUN),
        "missing_views": len(missing),
        "not_judged": outcomes.count(Kind.DIFFERS, Kind.AFFECTED, excused=True),
    }
    total = len(missing) + outcomes.count(Kind.DIFFERS)
    return make_check_result(Check.VIEWS, [*gone, *outcomes.names(Kind.DIFFERS)], total, counts)


def _listed(outcomes: Outcomes) -> CheckResult:
    counts = {
        "runs": outcomes.count(Kind.RUN),
        "unlisted": outcomes.count(Kind.UNLISTED),
        "never_started": outcomes.count(Kind.UNKNOWN_RUN),
        "waiting": outcomes.count(Kind.WAITING) + outcomes.count(Kind.WAITING, excused=True),
        "not_judged": outcomes.count(Kind.UNLISTED, Kind.UNKNOWN_RUN, excused=True),
    }
    names = outcomes.names(Kind.UNLISTED, Kind.UNKNOWN_RUN)
    return make_check_result(Check.LISTED, names, counts["unlisted"] + counts["never_started"], counts)


def _sequences(damaged: Damaged, outcomes: Outcomes) -> CheckResult:
    """Return the result about damaged threads and the runs affected by damaged shared ones."""
    own = [RunProblem(thread.removeprefix(run_thread("")), f"{thread}: {what}") for thread, what in damaged.own.items()]
    shared = [RunProblem(None, f"{thread}: {what}") for thread, what in damaged.shared.items()]
    threads, runs_hurt = len(own) + damaged.unnamed + len(shared), outcomes.count(Kind.AFFECTED, excused=True)
    counts = {"threads": threads, "shared_threads": len(shared), "runs_hurt": runs_hurt}
    return make_check_result(Check.SEQUENCES, [*shared, *own, *outcomes.affected()], threads + runs_hurt, counts)


def _anomalies(
    spark: SparkSession, outcomes: Outcomes, anomalies: DataFrame, memory: KnownAnomalies | None
) -> CheckResult:
    remembered = memory.remembered() if memory is not None else None
    counts = {
        "anomalies": outcomes.count(Kind.ANOMALY),
        "known": remembered.rows if remembered is not None else 0,
        "not_judged": outcomes.count(Kind.ANOMALY, excused=True),
    }
    if not counts["anomalies"]:
        return make_check_result(Check.ANOMALIES, [], 0, counts)
    new = anomalies
    if memory is not None and remembered is not None:
        new = anomalies.join(memory.read(spark, remembered), list(KEY), "left_anti")
    first = new.orderBy("position", *KEY).limit(NAMED).collect()
    total = len(first) if len(first) < NAMED else new.count()
    return make_check_result(Check.ANOMALIES, [RunProblem(row.run_id, row.what) for row in first], total, counts)
