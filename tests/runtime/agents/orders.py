"""A workflow for the agents' tests, with a claim of its first step, and with a step that was not scheduled."""

from typing import Any

from pydantic import BaseModel

from squid_dagster.agents import ClaimResult, DispatchAgent
from squid_dagster.api import Squid
from squid_dagster.protocol import RunnablesPlanned
from squid_dagster.protocol.threads import run_thread
from squid_dagster.workflow import Workflow
from tests.facts import runnable
from tests.runtime.runs import seconds

LEASE = seconds(60)


class Order(BaseModel):
    amount: int = 1


def orders() -> Workflow:
    wf = Workflow("orders", payload=Order)

    @wf.step
    def charge(amount: int) -> int:
        return amount

    wf.step(name="ship")(lambda: "shipped")
    wf.step(name="apologise")(lambda: "sorry")
    wf.route(charge, to="ship")
    wf.route(charge, on="error", to="apologise")
    wf.route("ship", to="complete")
    wf.route("apologise", to="complete")
    return wf


def claimed(squid: Squid, **payload: Any) -> tuple[DispatchAgent, ClaimResult]:
    squid.start("orders", payload)
    agent = squid.dispatch_agent()
    claim = agent.claim_next("w", lease=LEASE)
    assert claim is not None
    return agent, claim


def unscheduled(squid: Squid, step: str = "extra") -> tuple[str, Any]:
    """Start a run with a plan that no queue has, as a crash between two appends leaves it."""
    run_id = squid.start("orders").run_id
    planned = runnable(run_id, step)
    fact = RunnablesPlanned(run_id=run_id, runnables=[planned], occurred_at=squid.journal.now())
    squid.journal.append(run_thread(run_id), [fact])
    return run_id, planned
