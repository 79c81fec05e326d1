"""An invoice that was not paid: wait, check the gateway, and wait for a person's decision above an amount."""

from datetime import timedelta
from typing import Any

import sqlalchemy
from pydantic import BaseModel

from examples import ledger
from squid_dagster import Retry, StepContext, Workflow, path


class Recovery(BaseModel):
    account_id: str
    amount: int


payment_recovery = Workflow("payment_recovery", payload=Recovery, version="2026-11-16")


@payment_recovery.step(output="invoice")
def load_invoice(account_id: str, amount: int) -> dict[str, Any]:
    return {"account": account_id, "amount": amount, "currency": "EUR"}


@payment_recovery.step(
    output="gateway", retry=Retry(max_attempts=4, initial=timedelta(milliseconds=100), maximum=timedelta(seconds=1))
)
def check_gateway(ctx: StepContext, invoice: dict[str, Any]) -> dict[str, Any]:
    ledger.call(ctx)
    if ctx.attempt == 1 and invoice["amount"] % 3 == 0:
        raise TimeoutError("the gateway did not answer")
    return {"status_code": 402 if invoice["amount"] > 500 else 200}


@payment_recovery.step(transactional=True, irreversible=True)
def book(ctx: StepContext, connection: sqlalchemy.Connection, invoice: dict[str, Any]) -> int:
    """Insert into the journal's own database, in the transaction that completes the step: exactly once."""
    row = {"key": ctx.idempotency_key, "amount": invoice["amount"]}
    connection.execute(sqlalchemy.text("INSERT INTO demo_bookings (key, amount) VALUES (:key, :amount)"), row)
    return int(invoice["amount"])


@payment_recovery.step
def write_off(ctx: StepContext) -> str:
    ledger.call(ctx)
    ledger.act(ctx)
    return "written off"


payment_recovery.wait("settle", timedelta(milliseconds=300))
payment_recovery.approval("review", output="review")

payment_recovery.route("load_invoice", to="settle")
payment_recovery.route("settle", to="check_gateway")
payment_recovery.route("check_gateway", to="review", when=path("gateway.status_code") > 399)
payment_recovery.route("check_gateway", to="book")
payment_recovery.route("review", on="ok", to="book")
payment_recovery.route("review", on="error", to="write_off")
payment_recovery.route("book", to="complete")
payment_recovery.route("write_off", to="complete")
