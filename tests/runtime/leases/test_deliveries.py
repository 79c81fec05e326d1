"""Lease backends keep one contract: the journal's own, the backlog, and a plain list that a host brings."""

from squid_dagster import LeaseOutcome
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Failed
from squid_dagster.runtime.leases.host_queue import OFFERED_AT_ONCE
from tests.runtime.leases.lease_backends import LEASE, Make, attempt_facts, flow, only, single
from tests.runtime.runs import MakeSquid, facts, seconds


def test_nobody_gets_what_another_one_has(make_squid: MakeSquid, make_backend: Make) -> None:
    squid = make_squid(flow())
    runs = [squid.start("flow").run_id for _ in range(5)]
    one, two = make_backend(squid), make_backend(squid)
    leases = [*one.claim("default", "a", limit=3), *two.claim("default", "b", limit=3)]
    assert sorted(lease.attempt.run_id for lease in leases) == sorted(runs)
    assert one.claim("default", "a") == two.claim("other", "b") == []


def test_the_best_comes_first_and_tells_what_is_to_be_done(make_squid: MakeSquid, make_backend: Make) -> None:
    squid = make_squid(flow())
    backend = make_backend(squid)
    squid.start("flow", {"n": 1})
    urgent = squid.start("flow", {"n": 2}, priority=5).run_id
    lease = only(backend.claim("default", "w", lease=LEASE))
    assert (lease.attempt.run_id, lease.attempt.step, lease.owner) == (urgent, "first", "w")
    assert lease.attempt.input is not None
    assert lease.attempt.input["n"] == 2
    assert lease.claim.ref.token not in repr(lease)


def test_a_heartbeat_extends_and_never_shortens(make_squid: MakeSquid, make_backend: Make, clock: VirtualClock) -> None:
    squid = make_squid(flow())
    run_id = squid.start("flow").run_id
    backend = make_backend(squid)
    held = only(backend.claim("default", "w", lease=LEASE))
    clock.advance(seconds(30))
    longer = backend.heartbeat(held, extend=LEASE)
    assert longer.lease_until == clock.now() + LEASE
    assert backend.heartbeat(held, extend=seconds(1)).lease_until == longer.lease_until
    clock.advance(seconds(59))
    assert backend.claim("default", "other") == []
    backend.complete(held, 1)
    assert attempt_facts(squid, run_id)[:5] == ["scheduled", "claimed", "heartbeat", "heartbeat", "completed"]


def test_a_result_counts_and_what_follows_is_delivered(make_squid: MakeSquid, make_backend: Make) -> None:
    squid = make_squid(flow())
    run_id = squid.start("flow", {"n": 1}).run_id
    backend = make_backend(squid)
    first = only(backend.claim("default", "w"))
    backend.complete(first, 2)
    backend.complete(first, 2)
    second = only(backend.claim("default", "w"))
    assert (second.attempt.step, second.attempt.input) == ("second", {"first": 2})
    backend.complete(second, 3)
    assert squid.inspect_run(run_id).status == "completed"
    assert backend.claim("default", "w") == []


def test_a_failure_is_requeued_as_the_step_wants_and_then_dead_lettered(
    make_squid: MakeSquid, make_backend: Make, clock: VirtualClock
) -> None:
    squid = make_squid(flow())
    run_id = squid.start("flow").run_id
    backend = make_backend(squid)
    held = only(backend.claim("default", "w"))
    assert backend.fail(held, "no luck") == LeaseOutcome.REQUEUED
    assert backend.claim("default", "w") == []
    clock.advance(seconds(10))
    again = only(backend.claim("default", "w"))
    assert (again.item_id, again.attempt.attempt_number) == (held.item_id, 2)
    assert backend.fail(again, {"message": "again"}) == LeaseOutcome.DEAD_LETTERED
    assert squid.inspect_run(run_id).status == "failed"
    assert [fact.error["message"] for fact in facts(squid, run_id, "attempt_failed")] == ["no luck", "again"]
    assert backend.claim("default", "w") == []


def test_a_failure_can_be_final_at_once(make_squid: MakeSquid, make_backend: Make) -> None:
    squid = make_squid(flow())
    run_id = squid.start("flow").run_id
    backend = make_backend(squid)
    assert backend.fail(only(backend.claim("default", "w")), Failed({"message": "no"})) == "dead_lettered"
    assert squid.inspect_run(run_id).status == "failed"


def test_work_that_is_delivered_too_often_is_a_dead_letter(
    make_squid: MakeSquid, make_backend: Make, clock: VirtualClock
) -> None:
    squid = make_squid(flow())
    run_id = squid.start("flow").run_id
    backend = make_backend(squid)
    for _ in range(5):
        only(backend.claim("default", "w", lease=LEASE))
        clock.advance(LEASE)
    assert backend.claim("default", "w") == []
    assert attempt_facts(squid, run_id)[-1] == "dead_lettered"
    # and comes back on request
    squid.recover()
    squid.retry_attempt(run_id)
    clock.advance(LEASE)
    backend.complete(only(backend.claim("default", "w")), 1)


def test_work_that_is_put_back_after_a_dead_letter_is_delivered_again(
    make_squid: MakeSquid, make_backend: Make, clock: VirtualClock
) -> None:
    # given work that was delivered too often, and other work, so that a claim meets it on the queue meanwhile
    squid = make_squid(single("once", 2, max_deliveries=1))
    backend = make_backend(squid)
    run_id = squid.start("once").run_id
    lost = only(backend.claim("default", "dies", lease=LEASE))
    clock.advance(LEASE)
    squid.start("once")
    other = only(backend.claim("default", "w", limit=5, lease=LEASE))
    assert attempt_facts(squid, run_id)[-1] == "dead_lettered"
    # when it is put back
    squid.retry_attempt(run_id)
    # then it is delivered, under the same id
    again = only(backend.claim("default", "w", limit=5, lease=LEASE))
    assert (again.item_id, again.attempt.attempt_number) == (lost.item_id, 2)
    for lease in (other, again):
        backend.complete(lease, 2)
    assert squid.inspect_run(run_id).status == "completed"


def test_much_work_that_cannot_be_run_here_does_not_hide_the_rest(make_squid: MakeSquid, make_backend: Make) -> None:
    both = make_squid([single("gone", 1), flow()])
    for _ in range(OFFERED_AT_ONCE):
        both.start("gone", priority=5)
    mine = both.start("flow").run_id
    assert only(make_backend(make_squid(flow())).claim("default", "w", limit=5)).attempt.run_id == mine
