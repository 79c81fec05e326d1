"""A cron trigger: one run for each night, however often the window is started."""

from pydantic import BaseModel

from examples import ledger
from squid_dagster import Cron, StepContext, Workflow


class Night(BaseModel):
    region: str = "eu"


nightly_report = Workflow(
    "nightly_report",
    payload=Night,
    triggers=[Cron("0 2 * * *", timezone="Europe/Berlin", name="nightly", payload={"region": "eu"})],
)


@nightly_report.step
def report(ctx: StepContext, region: str) -> str:
    ledger.call(ctx)
    ledger.act(ctx)
    return f"report for {region}"
