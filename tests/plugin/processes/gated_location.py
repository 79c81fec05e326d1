"""A code location whose steps wait for a gate, for tests that end Dagster's processes while 200 runs are in flight.

Steps act on the ledger, a table outside the journal; where that and the gate are stands in the environment.
"""

import os
from datetime import timedelta
from pathlib import Path

import dagster as dg
from pydantic import BaseModel

from examples import ledger
from squid_dagster import Defer, StepContext, Workflow
from squid_dagster.plugin import (
    DrainConfig,
    SquidResource,
    build_dispatch_job,
    build_dispatch_sensor,
    build_recovery_job,
    build_recovery_schedule,
)

GATE = "SQUID_TEST_GATE"  # the environment variable that names the file for which steps wait
LEASE_SECONDS = 3.0


class Number(BaseModel):
    number: int


deferring = Workflow("deferring", payload=Number, version="1")
holding = Workflow("holding", payload=Number, version="1")


def is_open() -> bool:
    """Return whether steps may go on."""
    return Path(os.environ[GATE]).exists()


@deferring.step(output="noted")
def note(ctx: StepContext, number: int) -> int:
    """Append to the ledger at once."""
    ledger.call(ctx)
    ledger.act(ctx)
    return number


@deferring.step(output="opened")
def wait_deferred(ctx: StepContext, noted: int) -> int:
    """Append to the ledger when the gate is open; defer until then, so that the attempt is not visible meanwhile."""
    if not is_open():
        raise Defer("the gate is closed", after=timedelta(seconds=4 + noted % 5))
    ledger.call(ctx)
    ledger.act(ctx)
    return noted


@deferring.step
def finish_deferring(ctx: StepContext, opened: int) -> int:
    """Append to the ledger."""
    ledger.call(ctx)
    ledger.act(ctx)
    return opened


@holding.step(output="held")
def hold(ctx: StepContext, number: int) -> int:
    """Wait with the claim until the gate is open; then append to the ledger."""
    ledger.call(ctx)
    while not is_open() and not ctx.cancelled.wait(0.1):
        pass
    ledger.act(ctx)
    return number


@holding.step
def finish_holding(ctx: StepContext, held: int) -> int:
    """Append to the ledger."""
    ledger.call(ctx)
    ledger.act(ctx)
    return held


WORKFLOWS = (deferring, holding)
STEPS = {"deferring": ("note", "wait_deferred", "finish_deferring"), "holding": ("hold", "finish_holding")}


def location() -> dg.Definitions:
    """Build the location, for the journal that the environment names: two drain runs with room for 80 steps each."""
    drain = DrainConfig(concurrency=80, linger_seconds=60, grace_seconds=0.2)
    dispatch = build_dispatch_job(workflows=WORKFLOWS, drain=drain)
    recovery = build_recovery_job(workflows=WORKFLOWS)
    sensor = build_dispatch_sensor(
        job=dispatch,
        workflows=WORKFLOWS,
        drain=drain,
        attempts_per_run=100,
        max_in_flight=2,
        launch_grace_seconds=10,
        minimum_interval_seconds=1,
    )
    return dg.Definitions(
        jobs=[dispatch, recovery],
        sensors=[sensor],
        schedules=[build_recovery_schedule(job=recovery)],
        resources={"squid": SquidResource(url=dg.EnvVar("SQUID_DATABASE_URL"), lease_seconds=LEASE_SECONDS)},
    )


defs = location()
