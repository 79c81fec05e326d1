"""Steps that are executed under leases, and a host's queue that fails meanwhile."""

from datetime import timedelta

from squid_dagster import Delivery, LeaseOutcome, QueueLeases, Workflow, work_one_lease
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.errors import (
    ExpiredClaim,
    InvalidFact,
)
from tests.runtime.leases.lease_backends import LEASE, Make, attempt_facts, flow, single
from tests.runtime.leases.list_queue import ListQueue
from tests.runtime.runs import MakeSquid, seconds


def test_a_worker_on_leases_runs_workflows_to_their_end(
    make_squid: MakeSquid, make_backend: Make, clock: VirtualClock
) -> None:
    squid = make_squid(flow())
    backend = make_backend(squid)
    good, bad, final = (squid.start("flow", {"n": 1, "fails": fails}).run_id for fails in ("", "yes", "final"))
    deferred = squid.start("flow", {"fails": "defer"}).run_id
    outcomes = []
    for _ in range(2):
        while (report := work_one_lease(squid.runtime, backend, "default", "w", lease=LEASE)) is not None:
            outcomes.append((report.lease.attempt.step, report.outcome))
            assert report.dropped is None
        clock.advance(seconds(10))
    assert sorted(map(str, outcomes)) == sorted(
        map(
            str,
            [
                ("first", None),
                ("second", None),
                ("first", LeaseOutcome.REQUEUED),
                ("first", LeaseOutcome.DEAD_LETTERED),
                ("first", LeaseOutcome.DEAD_LETTERED),
                ("first", LeaseOutcome.REQUEUED),
            ],
        )
    )
    assert [squid.inspect_run(run).status for run in (good, bad, final)] == ["completed", "failed", "failed"]
    assert attempt_facts(squid, deferred) == ["scheduled", "claimed", "released"]


def test_an_outcome_that_comes_too_late_is_reported_as_dropped(
    make_squid: MakeSquid, make_backend: Make, clock: VirtualClock
) -> None:
    slow = Workflow("slow")

    @slow.step
    def sleep() -> str:
        clock.advance(LEASE)  # time passes while the step runs
        return "late"

    squid = make_squid(slow)
    run_id = squid.start("slow").run_id
    report = work_one_lease(squid.runtime, make_backend(squid), "default", "w", lease=LEASE)
    assert report is not None
    assert isinstance(report.dropped, ExpiredClaim)
    assert not report.completed
    assert attempt_facts(squid, run_id) == ["scheduled", "claimed"]


def test_a_result_that_cannot_be_written_down_is_not_reported_as_completed(
    make_squid: MakeSquid, make_backend: Make
) -> None:
    squid = make_squid(single("odd", "nul \0"))
    run_id = squid.start("odd").run_id
    report = work_one_lease(squid.runtime, make_backend(squid), "default", "w", lease=LEASE)
    assert report is not None
    assert isinstance(report.dropped, InvalidFact)
    assert not report.completed
    assert squid.inspect_run(run_id).status == "failed"


class _Broken(ListQueue):
    """A host's queue that can be claimed from, and then takes nothing back."""

    def heartbeat(self, delivery: Delivery, lease: timedelta) -> None:
        raise ConnectionError("the queue is gone")

    def complete(self, delivery: Delivery) -> None:
        raise ConnectionError("the queue is gone")

    def fail(self, delivery: Delivery, why: str, retry_after: timedelta | None) -> LeaseOutcome:
        raise ConnectionError("the queue is gone")


def test_a_queue_that_takes_nothing_back_ends_neither_the_journal_s_claim_nor_its_outcome(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(flow())
    backend = QueueLeases(squid.runtime, _Broken(squid.runtime.now))
    good, bad = squid.start("flow", priority=1).run_id, squid.start("flow").run_id
    first, second = backend.claim("default", "w", limit=2, lease=LEASE)
    clock.advance(seconds(30))
    assert backend.heartbeat(first, extend=LEASE).lease_until == clock.now() + LEASE
    backend.complete(first, 1)
    assert backend.fail(second, "no") == LeaseOutcome.REQUEUED
    assert attempt_facts(squid, good)[:4] == ["scheduled", "claimed", "heartbeat", "completed"]
    assert attempt_facts(squid, bad)[:3] == ["scheduled", "claimed", "failed"]
