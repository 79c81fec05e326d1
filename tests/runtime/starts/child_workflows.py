"""Workflows for child runs: a child, a parent, and a claim of the parent's step."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from squid_dagster.agents import ClaimResult
from squid_dagster.api import Squid
from squid_dagster.workflow import Manual, StepContext, Workflow


class Refund(BaseModel):
    amount: int
    note: str = "none"


def refund(version: str | None = None, wait: int = 0) -> Workflow:
    wf = Workflow("refund", payload=Refund, version=version, triggers=[Manual("api"), Manual("desk")])

    @wf.step
    def pay(amount: int) -> int:
        return amount

    wf.wait("settle", timedelta(hours=1 + wait))
    wf.route(pay, to="settle")
    wf.route("settle", to="complete")
    return wf


def parent(act: Callable[[StepContext], Any], **options: Any) -> Workflow:
    wf = Workflow("order")

    @wf.step(**options)
    def claim(ctx: StepContext) -> Any:
        return act(ctx)

    wf.route(claim, to="complete")
    return wf


def one_child(ctx: StepContext) -> str:
    return str(
        ctx.start_child_run("refund", {"amount": 5}, child_key="a", metadata={"why": "late", "token": "t"}).run_id
    )


def context(run_id: str, step: str = "claim", attempt: int = 1) -> StepContext:
    """Return the context of a step of a run."""
    key = f"{run_id}:{step}:1"
    return StepContext(
        run_id=run_id,
        workflow="order",
        step=step,
        runnable_key=f"{key}:{attempt}",
        idempotency_key=key,
        attempt=attempt,
    )


def claimed(squid: Squid, lease: timedelta = timedelta(minutes=5)) -> ClaimResult:
    """Return a claim on what is due next."""
    claim = squid.dispatch_agent().claim_next("w", lease=lease)
    assert claim is not None
    return claim
