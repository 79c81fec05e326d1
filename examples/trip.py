"""A saga: when the last booking fails, the ones before it are undone, newest first."""

from pydantic import BaseModel

from examples import ledger
from squid_dagster import Fail, StepContext, Workflow


class Trip(BaseModel):
    traveller: str
    car: bool = True  # whether there is a car left


trip = Workflow("trip", payload=Trip)


def cancel_flight(ctx: StepContext, flight: str) -> None:
    ledger.act(ctx)


def cancel_hotel(ctx: StepContext, hotel: str) -> None:
    ledger.act(ctx)


@trip.step(output="flight", compensate=cancel_flight)
def book_flight(ctx: StepContext, traveller: str) -> str:
    ledger.call(ctx)
    ledger.act(ctx)
    return f"flight of {traveller}"


@trip.step(output="hotel", compensate=cancel_hotel)
def book_hotel(ctx: StepContext, flight: str) -> str:
    ledger.call(ctx)
    ledger.act(ctx)
    return f"hotel for {flight}"


@trip.step
def book_car(ctx: StepContext, hotel: str, car: bool) -> str:
    ledger.call(ctx)
    if not car:
        raise Fail("no car left", {"hotel": hotel})
    ledger.act(ctx)
    return "a small one"
