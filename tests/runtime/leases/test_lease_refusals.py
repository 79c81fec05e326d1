"""What every lease backend refuses, with nothing written."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from squid_dagster import JournalLeases, Lease, LeaseBackend
from squid_dagster.backlog import BacklogLeases
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Deferred
from squid_dagster.protocol.errors import (
    ExpiredClaim,
    InvalidArgument,
    InvalidFact,
    InvalidThread,
    StaleClaim,
    TerminalRun,
)
from tests.runtime.leases.lease_backends import LEASE, Make, attempt_facts, flow, only
from tests.runtime.runs import MakeSquid, facts, seconds


def test_a_claim_that_makes_no_sense_is_refused(make_squid: MakeSquid, make_backend: Make) -> None:
    squid = make_squid(flow())
    squid.start("flow")
    backend = make_backend(squid)
    for queue, owner, options, error in (
        ("a b", "w", {}, InvalidThread),
        ("default", "", {}, InvalidArgument),
        ("default", "w", {"limit": 0}, InvalidArgument),
        ("default", "w", {"lease": timedelta(0)}, InvalidArgument),
    ):
        with pytest.raises(error):
            backend.claim(queue, owner, **options)


def test_a_result_without_a_valid_claim_is_dropped(
    make_squid: MakeSquid, make_backend: Make, clock: VirtualClock
) -> None:
    # given a lease that ran out, and a worker that took the work over
    squid = make_squid(flow())
    run_id = squid.start("flow").run_id
    backend = make_backend(squid)
    late = only(backend.claim("default", "late", lease=LEASE))
    clock.advance(LEASE)
    with pytest.raises(ExpiredClaim):
        backend.complete(late, 1)
    new = only(backend.claim("default", "new", lease=LEASE))
    assert new.item_id == late.item_id
    # when the first one comes back, then nothing of it counts
    before = attempt_facts(squid, run_id)
    for act in (lambda: backend.complete(late, 1), lambda: backend.fail(late, "no"), lambda: backend.heartbeat(late)):
        with pytest.raises(StaleClaim):
            act()
    assert attempt_facts(squid, run_id) == before
    # and the second one is not disturbed
    backend.complete(backend.heartbeat(new, extend=LEASE), 7)
    assert squid.inspect_run(run_id).status == "running"
    assert [fact.result for fact in facts(squid, run_id, "attempt_completed")] == [7]


def test_a_made_up_token_is_refused(make_squid: MakeSquid, make_backend: Make) -> None:
    squid = make_squid(flow())
    run_id = squid.start("flow").run_id
    backend = make_backend(squid)
    held = only(backend.claim("default", "w", lease=LEASE))
    forged = replace(held, claim=replace(held.claim, ref=replace(held.claim.ref, token="made up")))
    with pytest.raises(StaleClaim):
        backend.complete(forged, 1)
    assert attempt_facts(squid, run_id) == ["scheduled", "claimed"]


def test_the_end_of_a_run_ends_its_leases(make_squid: MakeSquid, make_backend: Make) -> None:
    squid = make_squid(flow())
    backend = make_backend(squid)
    held_by = squid.start("flow").run_id
    held = only(backend.claim("default", "w", lease=LEASE))
    squid.cancel(held_by)
    for act in (lambda: backend.heartbeat(held), lambda: backend.complete(held, 1), lambda: backend.fail(held, "no")):
        with pytest.raises(TerminalRun):
            act()
    squid.cancel(squid.start("flow").run_id)
    assert backend.claim("default", "w") == []


def test_a_paused_queue_gives_nothing(make_squid: MakeSquid, make_backend: Make) -> None:
    squid = make_squid(flow())
    squid.start("flow")
    backend = make_backend(squid)
    squid.pause_queue("default")
    assert backend.claim("default", "w") == []
    squid.resume_queue("default")
    assert len(backend.claim("default", "w")) == 1


@pytest.mark.parametrize(
    "act",
    [
        lambda backend, lease: backend.complete(lease, "nul \0"),
        lambda backend, lease: backend.fail(lease, {"message": "nul \0"}),
        lambda backend, lease: backend.fail(lease, Deferred("nul \0", seconds(9))),
    ],
    ids=["result", "error", "deferral"],
)
def test_an_outcome_that_cannot_be_written_down_is_no_success_and_the_failure_on_record_says_so(
    make_squid: MakeSquid, make_backend: Make, clock: VirtualClock, act: Callable[[LeaseBackend, Lease], object]
) -> None:
    squid = make_squid(flow())
    run_id = squid.start("flow").run_id
    backend = make_backend(squid)
    held = only(backend.claim("default", "w", lease=LEASE))
    with pytest.raises(InvalidFact, match="cannot be written down"):
        act(backend, held)
    assert squid.inspect_run(run_id).status == "failed"
    assert [fact.error["code"] for fact in facts(squid, run_id, "attempt_failed")] == ["unwritable_outcome"]
    clock.advance(LEASE)
    assert backend.claim("default", "w") == []


@pytest.mark.parametrize(
    "act",
    [
        lambda backend, lease: backend.heartbeat(lease),
        lambda backend, lease: backend.complete(lease, 1),
        lambda backend, lease: backend.fail(lease, "no"),
        lambda backend, lease: backend.settled(lease),
    ],
    ids=["heartbeat", "complete", "fail", "settled"],
)
def test_a_lease_of_another_backend_is_refused_and_nothing_is_written(
    make_squid: MakeSquid, act: Callable[[LeaseBackend, Lease], object]
) -> None:
    squid = make_squid(flow())
    squid.start("flow")
    held = only(JournalLeases(squid.runtime).claim("default", "w", lease=LEASE))
    before = squid.journal.cut()
    with pytest.raises(InvalidArgument, match="give it to the backend that it came from"):
        act(BacklogLeases(squid.runtime, squid.backlog), held)
    assert squid.journal.cut() == before
