"""A journal with a run in every state that the calls of the table ask for."""

from datetime import timedelta
from itertools import count
from typing import Any

from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal import MemoryStorage
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.runtime.commands.child_runs import ChildStarter
from squid_dagster.runtime.execution.step_calls import StepCalls
from squid_dagster.runtime.execution.step_execution import make_context
from squid_dagster.workflow import Cancellation, Cron, StepContext, Workflow
from tests.facts import T0


class Order(BaseModel):
    """The payload of a run."""

    item: str = "tea"
    much: dict[str, Any] = {}


def _nothing(item: str) -> str:
    return item


def workflows() -> list[Workflow]:
    """Return two workflows: one that waits for a person, and one with a cron trigger."""
    orders = Workflow("orders", payload=Order)
    orders.step(name="check")(_nothing)
    orders.approval("review")
    orders.route("check", to="review")
    orders.route("review", to="complete")
    orders.route("review", on="error", to="fail")
    nightly = Workflow("nightly", triggers=[Cron("0 4 * * *", name="night")])
    nightly.pause("rest")
    nightly.route("rest", to="complete")
    return [orders, nightly]


numbers = count(1)
_WORKFLOWS = [workflow.freeze() for workflow in workflows()]
_OUTSIDE = Workflow("outside")
_OUTSIDE.external("report", kind="dagster_job", job="report")
_WORKFLOWS.append(_OUTSIDE.freeze())


class ApiFixture:
    """A journal with a run in every state that a call asks for, under names that no other fixture uses."""

    def __init__(self, storage: Any = None) -> None:
        """Start the runs, claim an attempt and create the cards."""
        self.clock = VirtualClock(T0)
        self.storage = MemoryStorage(clock=self.clock) if storage is None else storage
        self.number = next(numbers)
        self.queue = f"queue-{self.number}"
        self.squid = Squid(self.storage, _WORKFLOWS, queue=self.queue)
        self.runtime = self.squid.runtime
        self.waiting, self.paused, self.open = (f"{name}-{self.number}" for name in ("waiting", "paused", "open"))
        self.squid.start("orders", {}, run_id=self.waiting)
        self.squid.execute_next()
        self.squid.start("nightly", run_id=self.paused)
        self.squid.start("orders", {}, run_id=self.open)
        self.agent = self.squid.dispatch_agent()
        self.claim: Any = self.agent.claim_next("ada")
        self.squid.start("orders", {}, run_id=f"fresh-{self.number}")
        self.cards = self.squid.backlog
        self.free, self.held = f"card-{self.number}", f"held-{self.number}"
        self.cards.create(self.free, "a card", phase=f"p{self.number}")
        self.cards.create(self.held, "another one")
        self.lease: Any = None  # a backend's
        self.outside: Any = None  # the attempt of an external step
        self.card: Any = self.cards.claim("ada", card_id=self.held)

    def facts(self) -> int:
        """Return the cut: it grows with every fact that is written."""
        return int(self.storage.cut())

    def context(self) -> StepContext:
        """Return the context that the step of the claimed attempt is called with."""
        definition = self.runtime.registry.select("orders", None)
        calls = StepCalls(self.claim.claim, Cancellation(), timedelta(seconds=30))
        starter = ChildStarter(self.runtime, calls)
        return make_context(self.claim.claim, definition, {}, Cancellation(), child_starter=starter)


OPTIONS: dict[str, Any] = {"actor": "ada", "comment": "why", "metadata": {"a": 1}, "idempotency_key": "key-1"}
