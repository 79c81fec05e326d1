"""Every lease backend, with workflows for its tests."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from squid_dagster import Defer, Fail, JournalLeases, Lease, LeaseBackend, QueueLeases, Retry, Squid, Workflow
from squid_dagster.backlog import BacklogLeases
from tests.runtime.leases.list_queue import ListQueue
from tests.runtime.runs import facts

LEASE = timedelta(seconds=60)


Make = Callable[[Squid], LeaseBackend]


BACKENDS: dict[str, Make] = {
    "journal": lambda squid: JournalLeases(squid.runtime),
    "backlog": lambda squid: BacklogLeases(squid.runtime, squid.backlog),
    "list": lambda squid: QueueLeases(squid.runtime, ListQueue(squid.runtime.now)),
}


class FlowPayload(BaseModel):
    """What a run is started with."""

    n: int = 0
    fails: str = ""


def flow() -> Workflow:
    """Build one step with two attempts, and one that follows."""
    workflow = Workflow("flow", payload=FlowPayload)

    @workflow.step(retry=Retry(max_attempts=2, initial=timedelta(seconds=10)))
    def first(n: int, fails: str) -> int:
        if fails == "defer":
            raise Defer("not yet", after=timedelta(seconds=30))
        if fails == "final":
            raise Fail("for good")
        if fails:
            raise ValueError("no")
        return n + 1

    @workflow.step
    def second(first: int) -> int:
        return first + 1

    return workflow


def single(name: str, result: object, **options: Any) -> Workflow:
    """Build one step that returns this."""
    workflow = Workflow(name)

    @workflow.step(**options)
    def go() -> Any:
        return result

    return workflow


def only(leases: list[Lease]) -> Lease:
    """Return the only lease."""
    assert len(leases) == 1
    return leases[0]


def attempt_facts(squid: Squid, run_id: str) -> list[str]:
    """Return the types of a run's facts on the dispatch thread, in order."""
    names = [fact.type for fact in facts(squid, run_id) if fact.type.startswith("attempt_")]
    return [name.removeprefix("attempt_") for name in names]
