"""The files that `squid quickstart` writes: a workflow to read and change, and what Dagster needs to show it."""

from pathlib import Path

MODULE = "coffee"
WORKFLOW = "coffee"
SLOW_STEP = "brew"

FLOW = '''\
"""A workflow of three steps. The second one is slow enough to kill its worker in the middle of it."""

import os
import time

from pydantic import BaseModel

from squid_dagster import StepContext, Workflow


class Order(BaseModel):
    drink: str = "espresso"
    seconds: float = 20.0  # how long it takes


coffee = Workflow("coffee", payload=Order)


@coffee.step(output="ticket")
def take_order(drink: str) -> str:
    return f"one {drink}"


@coffee.step(output="cup")
def brew(ctx: StepContext, ticket: str, seconds: float) -> str:
    # A step may run more than once. Its key stays the same, so that other systems can tell: ctx.idempotency_key
    print(f"process {os.getpid()} brews {ticket}", flush=True)
    time.sleep(seconds)
    return f"{ticket}, hot"


@coffee.step
def serve(cup: str) -> str:
    return f"here you are: {cup}"
'''

LOCATION = f'''\
"""What Dagster shows of the workflow beside this folder: jobs, sensors and schedules."""

import os

from squid_dagster.plugin import SquidResource, squid_definitions

defs = squid_definitions(
    workflows=["{MODULE}"],
    resource=SquidResource(lease_seconds=float(os.environ["SQUID_QUICKSTART_LEASE_SECONDS"])),
)
'''

INSTANCE = "telemetry: {enabled: false}\nnux: {enabled: false}\n"


class Files:
    """The paths of one quickstart: the workflow in the directory, all else in `.squid` below it."""

    def __init__(self, directory: Path) -> None:
        """Compute the paths; nothing is written."""
        self.directory = directory.absolute()
        self.flow = self.directory / f"{MODULE}.py"
        self.hidden = self.directory / ".squid"
        self.logs = self.hidden / "logs"
        self.lock = self.hidden / "lock"
        self.dagster_home = self.hidden / "dagster"
        self.location = self.hidden / "location.py"

    def write(self) -> bool:
        """Write what is missing; return whether the workflow is new. A workflow that exists is never changed.

        Raises:
            OSError: the directory cannot be written to.
        """
        self.dagster_home.mkdir(parents=True, exist_ok=True)
        self.location.write_text(LOCATION, "utf-8")
        (self.dagster_home / "dagster.yaml").write_text(INSTANCE, "utf-8")
        try:
            with self.flow.open("x", encoding="utf-8") as file:
                file.write(FLOW)
        except FileExistsError:
            return False
        return True
