"""A lease is kept alive while its step runs, through heartbeats that fail; a step whose lease is lost is told so."""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from squid_dagster import JournalLeases, Lease, LeaseReport, work_one_lease
from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.contract.dispatch_store import DEFAULT_LEASE
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.errors import ExpiredClaim, StorageUnavailable, TerminalRun
from squid_dagster.workflow import StepContext, Workflow
from tests.runtime.workers import PATIENCE, facts_of, until

ERRORS = pytest.mark.parametrize("error", [StorageUnavailable("gone"), OSError("odd")], ids=["outage", "anything else"])


@pytest.fixture(params=["memory", "postgres"])
def journal(request: pytest.FixtureRequest) -> Storage:
    """A journal by the real time, in both adapters."""
    storage = MemoryStorage() if request.param == "memory" else request.getfixturevalue("postgres")
    assert isinstance(storage, MemoryStorage | PostgresStorage)
    return storage


class _Unreachable(JournalLeases):
    """A backend whose first heartbeats get no answer."""

    def __init__(self, squid: Squid, error: Exception, failures: float) -> None:
        super().__init__(squid.runtime)
        self.error, self.failures, self.beats = error, failures, 0

    def heartbeat(self, lease: Lease, *, extend: timedelta = DEFAULT_LEASE) -> Lease:
        self.beats += 1
        if self.beats <= self.failures:
            raise self.error
        return super().heartbeat(lease, extend=extend)


def waiting(until_then: Callable[[StepContext], object]) -> Workflow:
    """Build one step that returns when this function does; its result is whether it was cancelled."""
    workflow = Workflow("slow")

    @workflow.step
    def step(ctx: StepContext) -> bool:
        until_then(ctx)
        return bool(ctx.cancelled)

    return workflow


def work(squid: Squid, backend: JournalLeases, lease: timedelta) -> LeaseReport:
    """Execute the step of the only lease."""
    report = work_one_lease(squid.runtime, backend, "default", "w", lease=lease)
    assert report is not None
    return report


@ERRORS
def test_a_heartbeat_that_fails_is_tried_again_and_the_step_goes_on(journal: Storage, error: Exception) -> None:
    lease = timedelta(seconds=3)
    wait_for_heartbeat = lambda ctx: until(lambda: facts_of(journal, ctx.run_id, "attempt_heartbeat"), "a heartbeat")  # noqa: E731
    squid = Squid(journal, waiting(wait_for_heartbeat))
    run_id = squid.start("slow").run_id
    backend = _Unreachable(squid, error, failures=2)
    assert work(squid, backend, lease).completed
    assert backend.beats >= 3
    assert [fact.result for fact in facts_of(journal, run_id, "attempt_completed")] == [False]
    assert len(facts_of(journal, run_id, "attempt_claimed")) == 1


@ERRORS
def test_without_a_heartbeat_for_a_whole_lease_the_step_is_told_that_it_works_in_vain(
    journal: Storage, error: Exception
) -> None:
    cancellations: list[bool] = []
    squid = Squid(journal, waiting(lambda ctx: cancellations.append(ctx.cancelled.wait(PATIENCE))))
    squid.start("slow")
    report = work(squid, _Unreachable(squid, error, failures=float("inf")), timedelta(seconds=0.5))
    assert cancellations == [True]
    assert isinstance(report.dropped, ExpiredClaim)


def test_a_lease_that_is_lost_for_good_is_told_to_its_step_at_the_next_heartbeat(journal: Storage) -> None:
    begun, cancellations = threading.Event(), list[bool]()

    def listen(ctx: StepContext) -> None:
        begun.set()
        cancellations.append(ctx.cancelled.wait(PATIENCE))

    squid = Squid(journal, waiting(listen))
    run_id = squid.start("slow").run_id

    def cancel() -> None:
        assert begun.wait(PATIENCE)
        squid.cancel(run_id)

    other = threading.Thread(target=cancel)
    other.start()
    report = work(squid, JournalLeases(squid.runtime), timedelta(seconds=3))
    other.join()
    assert cancellations == [True]
    assert isinstance(report.dropped, TerminalRun)
