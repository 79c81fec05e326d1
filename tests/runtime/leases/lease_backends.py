"""Every lease backend, with workflows for its tests."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from squid_dagster import Defer, Fail, Retry, Squid, Workflow
from squid_dagster.backlog import BacklogLeases
from squid_dagster.runtime.leases.host_queue import QueueLeases
from squid_dagster.runtime.leases.lease_backend import JournalLeases, Lease, LeaseBackend
from tests.runtime.leases.list_queue import ListQueue
from tests.runtime.runs import facts

LEASE = timedelta(seconds=60)


Make = Callable[[Squid], LeaseBackend]


BACKENDS: dict[str, Make] = {
    "journal": lambda squid: JournalLeases(squid.runtime),
    "backlog": lambda squid: BacklogLeases(squid.runtime, squid.backlog),
    "list": lambda squid: QueueLeases(squid.runtime, ListQueue(squid.runtime.now)),
}


class Given(BaseModel):
    """What a run is started with."""

    n: int = 0
    fails: str = ""


def flow() -> Workflow:
    """One step with two attempts, and one that follows."""
    found = Workflow("flow", payload=Given)

    @found.step(retry=Retry(max_attempts=2, initial=timedelta(seconds=10)))
    def first(n: int, fails: str) -> int:
        if fails == "defer":
            raise Defer("not yet", after=timedelta(seconds=30))
        if fails == "final":
            raise Fail("for good")
        if fails:
            raise ValueError("no")
        return n + 1

    @found.step
    def second(first: int) -> int:
        return first + 1

    return found


def single(name: str, result: object, **options: Any) -> Workflow:
    """One step that returns this."""
    found = Workflow(name)

    @found.step(**options)
    def go() -> Any:
        return result

    return found


def only(found: list[Lease]) -> Lease:
    """The one lease that there is."""
    assert len(found) == 1
    return found[0]


def told(squid: Squid, run_id: str) -> list[str]:
    """What the dispatch thread tells of a run, without what planning added."""
    names = [fact.type for fact in facts(squid, run_id) if fact.type.startswith("attempt_")]
    return [name.removeprefix("attempt_") for name in names]
