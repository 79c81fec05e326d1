"""The code location of the benchmark with Dagster, and the plain worker beside it: `python -m bench.dagster_location`.

One workflow of one step, which returns the time at which it ran. The environment names the journal.
"""

import os
import sys
import time

import dagster as dg
from pydantic import BaseModel

from squid_dagster import Squid, Workflow
from squid_dagster.plugin import DrainConfig, SquidResource, build_dispatch_job, build_dispatch_sensor

LINGER = "SQUID_BENCH_LINGER_SECONDS"
SCHEMA = "bench"
QUEUE = "default"
CONCURRENCY = 10
EMPTY_JOB = "empty"


class Number(BaseModel):
    """The payload."""

    n: int


timed = Workflow("timed", payload=Number)


@timed.step
def tell_time(n: int) -> float:
    """Return the time of this call."""
    return time.time()


@dg.op
def nothing() -> None:
    """Return at once."""


@dg.job(name=EMPTY_JOB, executor_def=dg.in_process_executor)
def empty() -> None:
    """Run an op that does nothing, to measure a launch alone."""
    nothing()


def sensor() -> dg.SensorDefinition:
    """Return the dispatch sensor: one drain run at a time, so that one process is compared with one."""
    drain = DrainConfig(concurrency=CONCURRENCY, linger_seconds=float(os.environ.get(LINGER, "0.5")))
    job = build_dispatch_job(workflows=[timed], drain=drain)
    return build_dispatch_sensor(job=job, workflows=[timed], drain=drain, max_in_flight=1, launch_grace_seconds=15)


defs = dg.Definitions(
    jobs=[empty],
    sensors=[sensor()],
    resources={"squid": SquidResource(url=dg.EnvVar("SQUID_DATABASE_URL"), schema_name=SCHEMA)},
)


def work() -> None:
    """Run a plain worker until SIGTERM, or until nothing is due with `--until-idle`."""
    with Squid.connect(os.environ["SQUID_DATABASE_URL"], [timed], schema=SCHEMA) as squid:
        squid.worker(concurrency=CONCURRENCY, until_idle="--until-idle" in sys.argv)


if __name__ == "__main__":
    work()
