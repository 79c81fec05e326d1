"""Child runs: an order starts one shipment for each parcel, each a run of its own."""

from pydantic import BaseModel

from examples import ledger
from squid_dagster import StepContext, Workflow


class Order(BaseModel):
    order_id: str
    parcels: int


class Parcel(BaseModel):
    order_id: str
    number: int


order = Workflow("order", payload=Order)
shipment = Workflow("shipment", payload=Parcel)


@order.step
def ship(ctx: StepContext, order_id: str, parcels: int) -> list[str]:
    started = [
        ctx.start_child_run(shipment, {"order_id": order_id, "number": number}, child_key=f"parcel-{number}")
        for number in range(parcels)
    ]
    return [receipt.run_id for receipt in started]


@shipment.step
def send(ctx: StepContext, order_id: str, number: int) -> str:
    ledger.call(ctx)
    ledger.act(ctx)
    return f"{order_id}/{number}"
