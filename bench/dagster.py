"""Driven by Dagster, beside a plain worker: how soon a step runs, how fast a queue is drained, and what a tick costs.

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
from bench.dagster_parts import Desk, bytes_in, dagster_runs, launch_empty
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
        desk = Desk(squid, storage, Path(folder))
        told = f"{2 * deep:,} runs in the journal and {old_runs:,} in Dagster beside none"
        found = [*_warm(desk, warm), *_cold(desk, cold), *_deep(desk, deep)]
        return [*found, *_ticks(desk, Path(folder), old_runs, told)]


def _warm(desk: Desk, count: int) -> list[Measure]:
    with desk.plain_worker():
        plain = desk.trickle(count, "plain worker")
    with desk.stack("warm", linger_seconds=600.0):
        desk.trickle(1, "a drain run is launched")
        lingering = desk.trickle(count, "lingering drain run")
    slow, fast = (f"p50 {median(each) * 1e3:.1f}, p95 {_p95(each) * 1e3:.1f} ms" for each in (lingering, plain))
    ratio = median(lingering) / median(plain)
    detail = f"{slow} beside {fast}; {count} attempts one by one"
    return [Measure("dagster: warm latency, beside a worker's", "times as long", ratio, at_most=5.0, detail=detail)]


def _p95(seconds: list[float]) -> float:
    return quantiles(seconds, n=20, method="inclusive")[-1]


def _cold(desk: Desk, count: int) -> list[Measure]:
    waits: list[float] = []
    launches: list[float] = []
    empties: list[float] = []
    with desk.stack("cold", linger_seconds=0.2) as stack:
        for number in range(count):
            progress("cold", number, count)
            known = {run.run_id for run in dagster_runs(stack, DISPATCH_JOB)}
            began = desk.storage.now().timestamp()
            (latency,) = desk.trickle(1, "cold")
            created = min(run.created_at for run in dagster_runs(stack, DISPATCH_JOB) if run.run_id not in known)
            waits.append(created - began)
            launches.append(latency - waits[-1])
            desk.wait_for_none(RUN_KIND)
            empties.append(launch_empty(stack))
            time.sleep(number * SENSOR_LOOP_SECONDS / count)  # to come at another moment of the sensor's loop
    loop = (
        f"longest of {count}, p50 {median(waits):.1f} s; a loop of Dagster's sensor daemon is {SENSOR_LOOP_SECONDS:g} s"
    )
    launch = f"p50 {median(launches):.1f} s beside {median(empties):.1f} s; cut by: {CUT_BY}"
    ratio = median(launches) / median(empties)
    return [
        Measure("dagster: cold, until the sensor asks", "s", max(waits), at_most=SENSOR_LOOP_SECONDS + 1, detail=loop),
        Measure("dagster: cold launch, beside an empty job's", "times as long", ratio, at_most=1.5, detail=launch),
    ]


def _deep(desk: Desk, count: int) -> list[Measure]:
    before = desk.fill(count)
    desk.work_off()
    plain = desk.speed(before, count)
    with desk.stack("deep", linger_seconds=5.0) as stack:
        size = bytes_in(stack.home)
        before = desk.fill(count)
        desk.wait_for_end()
        desk.wait_for_none(RUN_KIND)
        driven = desk.speed(before, count)
        runs = len(dagster_runs(stack, DISPATCH_JOB))
        stack.stop()
        added = bytes_in(stack.home) - size
    detail = f"{driven:,.0f} a second beside {plain:,.0f}; {count:,} attempts, one process each, events: notable"
    each = f"{added / count:,.0f} for each of {count:,} attempts; runs, events, compute logs and ticks"
    return [
        Measure("dagster: drain, beside a worker's", "times as fast", driven / plain, at_least=0.5, detail=detail),
        Measure("dagster: runs for that", "runs", runs, at_most=5.0, detail=f"{count:,} visible attempts"),
        Measure("dagster: bytes added to its storage", "bytes", added, detail=each),
    ]


def _ticks(desk: Desk, folder: Path, old_runs: int, told: str) -> list[Measure]:
    """Evaluate the sensor beside one that has no history, in turn, when nothing is due and when something is."""
    os.environ.update(desk.environment)
    fresh = PostgresStorage(desk.environment["SQUID_DATABASE_URL"], "fresh")
    fresh.upgrade()
    logging.disable(logging.INFO)  # every tick would say what it launches
    try:
        with (
            closing(fresh),
            Squid(fresh, [location.timed]) as other,
            _sensor_at(folder / "fresh", "fresh", 0) as short,
            _sensor_at(folder / "old", location.SCHEMA, old_runs) as long,
        ):
            found = [_race("idle", short, long, told, launches=False)]
            run_ids = [(squid, squid.start("timed", {"n": 0}).run_id) for squid in (other, desk.squid)]
            found.append(_race("busy", short, long, told, launches=True))
            for squid, run_id in run_ids:
                squid.cancel(run_id)
            return found
    finally:
        logging.disable(logging.NOTSET)
        close_all()


@contextmanager
def _sensor_at(home: Path, schema: str, old_runs: int) -> Iterator[Callable[[], bool]]:
    """Give what evaluates the sensor on a journal, beside so many Dagster runs, and tells whether it launches."""
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


def _race(kind: str, short: Callable[[], bool], long: Callable[[], bool], told: str, *, launches: bool) -> Measure:
    times: dict[str, list[float]] = {"short": [], "long": []}
    for _ in range(TICKS + 1):
        for name, evaluate in (("short", short), ("long", long)):
            begin = time.perf_counter()
            assert evaluate() == launches
            times[name].append(time.perf_counter() - begin)
    few, many = (median(found[1:]) for found in times.values())  # the first one connects
    detail = f"{many * 1e3:.1f} ms beside {few * 1e3:.1f} ms, {told}"
    return Measure(
        f"dagster: {kind} tick, history beside none", "times as long", many / few, at_most=1.5, detail=detail
    )
