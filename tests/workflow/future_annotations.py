"""A workflow in a module whose annotations are all texts."""

from __future__ import annotations

from typing import Annotated

from squid_dagster.workflow import Resource, StepContext, Workflow
from tests.workflow.drafts import Order

later = Workflow("later", payload=Order)


class SlackClient:
    """A resource: not data."""


@later.step
def tell(ctx: StepContext, order_id: str, slack: Annotated[SlackClient, Resource("slack")]) -> list[str]:
    """Send an order's id."""
    return [ctx.run_id, order_id]


@later.step
async def note(tell: list[str], amount: int | None = None) -> None:
    """Record what was sent."""
