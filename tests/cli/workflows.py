"""Workflows that the tests of the `squid` command load with `-m tests.cli.workflows`."""

import time
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from squid_dagster import Cron, Fail, Retry, StepContext, Workflow


class Order(BaseModel):
    """What an order is started with."""

    item: str
    amount: int = 1
    password: str | None = None


orders = Workflow("orders", payload=Order, version="1")


@orders.step(output="checked")
def check(item: str, amount: int) -> dict[str, int]:
    """Refuse what cannot be sold."""
    if amount < 0:
        raise Fail(f"{amount} of {item} cannot be sold")
    return {"amount": amount}


orders.approval("review", output="review")


@orders.step
def ship(item: str) -> str:
    """End well."""
    return f"shipped {item}"


orders.route("check", to="review")
orders.route("review", to="ship")
orders.route("review", on="error", to="fail")
orders.route("ship", to="complete")


class Greeting(BaseModel):
    """Whom to greet."""

    name: str = "world"


hello = Workflow("hello", payload=Greeting)


@hello.step
def greet(name: str) -> str:
    """Return at once."""
    return f"hello {name}"


charge = Workflow("charge")


@charge.step(irreversible=True)
def take_money(amount: int = 1) -> int:
    """Return the amount; the step is irreversible."""
    return amount


class Gate(BaseModel):
    """Files by which a test and a step wait for each other."""

    begun: str
    gate: str


gated = Workflow("gated", payload=Gate)


@gated.step(retry=Retry(max_attempts=1), max_deliveries=1)
def hold(ctx: StepContext, begun: str, gate: str) -> str:
    """Create the file `begun`, and return when the file `gate` exists."""
    ctx.log.info("holding")
    Path(begun).touch()
    while not Path(gate).exists() and not ctx.cancelled:
        time.sleep(0.01)
    return "through"


nap = Workflow("nap")
nap.wait("rest", timedelta(hours=1))
nap.route("rest", to="complete")


nightly = Workflow(
    "nightly",
    triggers=[
        Cron("30 2 * * *", timezone="Europe/Berlin", name="night"),
        Cron("0 * * * *", name="hourly", catch_up="all"),
    ],
)


@nightly.step
def sweep() -> str:
    """Return at once."""
    return "swept"
