"""The example of the design, as it is written there."""
# mypy: disable-error-code="type-arg, empty-body"

from datetime import timedelta

from pydantic import BaseModel

from squid_dagster.workflow import Cron, Fail, Retry, StepContext, Workflow, path  # noqa: F401


class Recovery(BaseModel):
    account_id: str
    invoice_id: str


payment_recovery = Workflow("payment_recovery", payload=Recovery, version="2026-11-16")


@payment_recovery.step(output="invoice")
def load_invoice(account_id: str, invoice_id: str) -> dict: ...


@payment_recovery.step(
    output="gateway",
    retry=Retry(max_attempts=5, initial=timedelta(seconds=1), maximum=timedelta(seconds=30)),
)
def check_gateway(ctx: StepContext, invoice: dict) -> dict: ...


payment_recovery.wait("settle", timedelta(hours=1))
payment_recovery.approval("review", output="review")

payment_recovery.route("load_invoice", to="settle")
payment_recovery.route("settle", to="check_gateway")
payment_recovery.route("check_gateway", to="review", when=path("gateway.status_code") > 399)
payment_recovery.route("check_gateway", to="complete")
payment_recovery.route("review", on="ok", to="complete")
payment_recovery.route("review", on="error", to="fail")
