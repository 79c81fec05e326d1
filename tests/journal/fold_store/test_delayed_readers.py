"""A reader that is delayed between two calls of the storage decides by the time at which it read."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Completed, Settlement
from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.facts import Fact
from squid_dagster.testing import make_squid
from squid_dagster.workflow import Workflow

LEASE = timedelta(seconds=6)


class SlowStorage(MemoryStorage):
    """A storage whose readers are delayed once, after the answer is there."""

    meanwhile: Callable[[], None] | None = None

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        return self._held_up(super().read_run(run_id, before))

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        return self._held_up(super().read(thread, after, limit))

    def _held_up(self, entries: list[Entry]) -> list[Entry]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return entries


@pytest.fixture
def workflow() -> Workflow:
    wf = Workflow("one")

    @wf.step
    def work() -> int:
        return 1

    return wf


def test_a_lease_that_is_extended_while_a_reader_is_held_up_refuses_nothing(workflow: Workflow) -> None:
    clock = VirtualClock()
    storage = SlowStorage(clock)
    app = make_squid(workflow, clock=clock, storage=storage)
    run_id = app.start("one").run_id
    (claim,) = app.runtime.dispatch.claim("default", "me", lease=LEASE)

    def meanwhile() -> None:
        clock.advance(timedelta(seconds=4))
        FoldDispatchStore(storage).heartbeat([claim.ref], LEASE)[0].unwrap()
        clock.advance(timedelta(seconds=4))  # the first lease is over, the second is not

    asked: list[str] = []

    def decision(units: object, now: object) -> list[Fact]:
        asked.append("asked")
        return []

    storage.meanwhile = meanwhile
    app.runtime.dispatch.decide([run_id], decision, fence=claim.ref)
    assert asked == ["asked"]

    FoldDispatchStore(storage).heartbeat([claim.ref], LEASE)[0].unwrap()
    storage.meanwhile = meanwhile
    answer = app.runtime.dispatch.settle([Settlement(claim.ref, Completed(1))])[0]
    assert answer.unwrap().status == "completed"
