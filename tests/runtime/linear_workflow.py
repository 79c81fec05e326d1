"""Build three steps, one after another."""

from pydantic import BaseModel

from squid_dagster.workflow import Workflow


class Order(BaseModel):
    """What the workflows here are started with."""

    order_id: str = "o-1"
    amount: int = 7


def line(name: str = "line") -> Workflow:
    """Build three steps, one after another."""
    workflow = Workflow(name, payload=Order)
    workflow.step(name="first")(lambda: 1)
    workflow.step(name="second", after="first")(lambda: 2)
    workflow.step(name="third", after="second")(lambda: 3)
    return workflow
