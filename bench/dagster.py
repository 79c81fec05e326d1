"""Dagster beside a plain worker: the latency of a step, the rate at which a queue is drained, the cost of a tick.

Times of steps are their own, those of attempts the database's; both are this machine's clock. Nothing is switched off:
every event that the policy `notable` lets through goes to Dagster's storage, and compute logs are kept.
"""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median, quantiles

import dagster as dg

from bench import dagster_location as location
from bench.dagster_parts import JournalRuns, bytes_in, dagster_runs, launch_empty
from bench.journals import new_journal
from bench.report import Measure, progress
from squid_dagster import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.dispatch.job import RUN_KIND
from squid_dagster.plugin.engines import close_all
from squid_dagster.plugin.names import DISPATCH_JOB

WARM, COLD, DEEP, TICKS, OLD_RUNS = 200, 5, 10_000, 30, 1_000
SENSOR_LOOP_SECONDS = 5.0  # Dagster's daemon looks at sensors no more often
CUT_BY = (
    "one code server for all, the op in the run worker, Dagster's queue looked at every second, sensor at every loop"
)


def measure(warm: int = WARM, cold: int = COLD, deep: int = DEEP, old_runs: int = OLD_RUNS) -> list[Measure]:
    """Measure all of it on one journal, by Dagster and by a plain worker in turn."""
    with (
        tempfile.TemporaryDirectory(prefix="squid-bench-", dir="/tmp") as folder,
        new_journal() as storage,
        Squid(storage, [location.timed]) as squid,
    ):
        journal = JournalRuns(squid, storage, Path(folder))
        history = f"{2 * deep:,} runs in the journal and {old_runs:,} in Dagster beside none"
        measures = [*_warm(journal, warm), *_cold(journal, cold), *_deep(journal, deep)]
        return [*measures, *_ticks(journal, Path(folder), old_runs, history)]


def _warm(journal: JournalRuns, count: int) -> list[Measure]:
    with journal.plain_worker():
        plain = journal.trickle(count, "plain worker")
    with journal.stack("warm", linger_seconds=600.0):
        journal.trickle(1, "a drain run is launched")
        lingering = journal.trickle(count, "lingering drain run")
    slow, fast = (f"p50 {median(times) * 1e3:.1f}, p95 {_p95(times) * 1e3:.1f} ms" for times in (lingering, plain))
    ratio = median(lingering) / median(plain)
    detail = f"{slow} beside {fast}; {count} attempts one by one"
    return [Measure("dagster: warm latency, beside a worker's", "times as long", ratio, at_most=5.0, detail=detail)]


def _p95(seconds: list[float]) -> float:
    return quantiles(seconds, n=20, method="inclusive")[-1]


def _cold(journal: JournalRuns, count: int) -> list[Measure]:
    waits: list[float] = []
    launches: list[float] = []
    empties: list[float] = []
    with journal.stack("cold", linger_seconds=0.2) as stack:
        for number in range(count):
            progress("cold", number, count)
            known = {run.run_id for run in dagster_runs(stack, DISPATCH_JOB)}
            began = journal.storage.now().timestamp()
            (latency,) = journal.trickle(1, "cold")
            created = min(run.created_at for run in dagster_runs(stack, DISPATCH_JOB) if run.run_id not in known)
            waits.append(created - began)
            launches.append(latency - waits[-1])
            journal.wait_for_none(RUN_KIND)
            empties.append(launch_empty(stack))
            time.sleep(
                number * SENSOR_LOOP_SECONDS / count
            )  # so that the next start is at another moment of the sensor's loop
    loop = (
        f"longest of {count}, p50 {median(waits):.1f} s; a loop of Dagster's sensor daemon is {SENSOR_LOOP_SECONDS:g} s"
    )
    launch = f"p50 {median(launches):.1f} s beside {median(empties):.1f} s; cut by: {CUT_BY}"
    ratio = median(launches) / median(empties)
    return [
        Measure("dagster: cold, until the sensor asks", "s", max(waits), at_most=SENSOR_LOOP_SECONDS + 1, detail=loop),
        Measure("dagster: cold launch, beside an empty job's", "times as long", ratio, at_most=1.5, detail=launch),
    ]


def _deep(journal: JournalRuns, count: int) -> list[Measure]:
    before = journal.fill(count)
    journal.work_off()
    plain = journal.speed(before, count)
    with journal.stack("deep", linger_seconds=5.0) as stack:
        size = bytes_in(stack.home)
        before = journal.fill(count)
        journal.wait_for_end()
        journal.wait_for_none(RUN_KIND)
        driven = journal.speed(before, count)
        runs = len(dagster_runs(stack, DISPATCH_JOB))
        stack.stop()
        added = bytes_in(stack.home) - size
    detail = f"{driven:,.0f} a second beside {plain:,.0f}; {count:,} attempts, one process each, events: notable"
    size_detail = f"{added / count:,.0f} for each of {count:,} attempts; runs, events, compute logs and ticks"
    return [
        Measure("dagster: drain, beside a worker's", "times as fast", driven / plain, at_least=0.5, detail=detail),
        Measure("dagster: runs for that", "runs", runs, at_most=5.0, detail=f"{count:,} visible attempts"),
        Measure("dagster: bytes added to its storage", "bytes", added, detail=size_detail),
    ]


def _ticks(journal: JournalRuns, folder: Path, old_runs: int, history: str) -> list[Measure]:
    """Evaluate the sensor beside one that has no history, in turn, when nothing is due and when something is."""
    os.environ.update(journal.environment)
    fresh = PostgresStorage(journal.environment["SQUID_DATABASE_URL"], "fresh")
    fresh.upgrade()
    logging.disable(logging.INFO)  # every tick would log what it launches
    try:
        with (
            closing(fresh),
            Squid(fresh, [location.timed]) as other,
            _sensor_at(folder / "fresh", "fresh", 0) as short,
            _sensor_at(folder / "old", location.SCHEMA, old_runs) as long,
        ):
            measures = [_race("idle", short, long, history, launches=False)]
            run_ids = [(squid, squid.start("timed", {"n": 0}).run_id) for squid in (other, journal.squid)]
            measures.append(_race("busy", short, long, history, launches=True))
            for squid, run_id in run_ids:
                squid.cancel(run_id)
            return measures
    finally:
        logging.disable(logging.NOTSET)
        close_all()


@contextmanager
def _sensor_at(home: Path, schema: str, old_runs: int) -> Iterator[Callable[[], bool]]:
    """Yield a function that evaluates the sensor beside so many Dagster runs and returns whether it launches."""
    home.mkdir()
    sensor = location.sensor()
    resource = SquidResource(url=dg.EnvVar("SQUID_DATABASE_URL"), schema_name=schema)
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        for number in range(old_runs):
            progress("old Dagster runs", number, old_runs)
            instance.create_run_for_job(location.empty, status=dg.DagsterRunStatus.SUCCESS)

        def evaluate() -> bool:
            context = dg.build_sensor_context(instance=instance, resources={"squid": resource})
            return bool(sensor.evaluate_tick(context).run_requests)

        yield evaluate


def _race(kind: str, short: Callable[[], bool], long: Callable[[], bool], history: str, *, launches: bool) -> Measure:
    times: dict[str, list[float]] = {"short": [], "long": []}
    for _ in range(TICKS + 1):
        for name, evaluate in (("short", short), ("long", long)):
            begin = time.perf_counter()
            assert evaluate() == launches
            times[name].append(time.perf_counter() - begin)
    few, many = (median(seconds[1:]) for seconds in times.values())  # the first one connects
    detail = f"{many * 1e3:.1f} ms beside {few * 1e3:.1f} ms, {history}"
    return Measure(
        f"dagster: {kind} tick, history beside none", "times as long", many / few, at_most=1.5, detail=detail
    )
