"""The backlog as a lease backend: intents are cards."""

import json

import pytest

from squid_dagster import LeaseOutcome
from squid_dagster.backlog import BacklogLeases
from squid_dagster.backlog.lease_backend import card_id, phase
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.facts.backlog import CardBlocked
from tests.runtime.leases.lease_backends import LEASE, flow, only
from tests.runtime.runs import MakeSquid, seconds


def test_intents_are_cards_and_their_lives_go_together(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(flow())
    backend = BacklogLeases(squid.runtime, squid.backlog)
    squid.backlog.create("mine", "somebody's own card", priority=9)
    run_id = squid.start("flow", priority=3).run_id
    held = only(backend.claim("default", "w", lease=LEASE))
    card = squid.backlog.get(card_id(held.item_id))
    assert (card.status, card.claim_owner, card.phase, card.priority) == ("claimed", "w", phase("default"), 3)
    assert backend.fail(held, "no") == LeaseOutcome.REQUEUED
    waiting = squid.backlog.get(card.id)
    assert (waiting.status, waiting.not_before, waiting.error) == (
        "ready",
        clock.now() + seconds(10),
        {"message": "no"},
    )
    clock.advance(seconds(10))
    backend.complete(only(backend.claim("default", "w", lease=LEASE)), 1)
    assert squid.backlog.get(card.id).status == "done"
    assert squid.backlog.get(card.id).attempts == 2
    assert squid.backlog.get("mine").status == "ready"
    assert squid.inspect_run(run_id).status == "running"


def test_a_card_whose_work_a_plain_worker_has_is_put_back(make_squid: MakeSquid, clock: VirtualClock) -> None:
    # given a card that was offered, and a worker that took the attempt from the journal itself
    squid = make_squid(flow())
    squid.start("flow")
    backend = BacklogLeases(squid.runtime, squid.backlog)
    backend.offer("default")
    clock.advance(seconds(1))  # the older card comes first
    (claim,) = squid.dispatch_agent().claim_many("worker", 1, lease=LEASE)
    squid.start("flow")
    # when another worker claims, then it gets other work, and the card waits until the first worker's lease is over
    other = only(backend.claim("default", "w", lease=2 * LEASE))
    assert other.attempt.run_id != claim.attempt.run_id
    card = squid.backlog.get(card_id(claim.attempt.idempotency_key))
    assert (card.status, card.not_before) == ("ready", claim.lease_until)
    clock.advance(LEASE)
    assert only(backend.claim("default", "w")).attempt.run_id == claim.attempt.run_id


def test_a_card_whose_work_is_done_is_taken_off(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(flow())
    backend = BacklogLeases(squid.runtime, squid.backlog)
    run_id = squid.start("flow").run_id
    backend.offer("default")
    clock.advance(seconds(1))  # the older card comes first
    squid.execute_next()
    lease = only(backend.claim("default", "w"))
    assert lease.attempt.step == "second"
    assert squid.backlog.get(card_id(f"{run_id}:first:1")).status == "done"


def test_a_card_whose_work_will_not_be_done_is_buried_once(make_squid: MakeSquid, clock: VirtualClock) -> None:
    # given a card that is offered, whose run ends
    squid = make_squid(flow())
    backend = BacklogLeases(squid.runtime, squid.backlog)
    run_id = squid.start("flow", priority=9).run_id
    backend.offer("default")
    clock.advance(seconds(1))
    squid.cancel(run_id)
    # when others look for work, again and again
    for _ in range(3):
        squid.start("flow")
        assert only(backend.claim("default", "w", limit=3, lease=LEASE)).attempt.run_id != run_id
    # then it was delivered once, and is not offered any more
    card = squid.backlog.get(card_id(f"{run_id}:first:1"))
    assert (card.status, card.attempts) == ("dead_lettered", 1)


@pytest.mark.parametrize("body", [None, "my notes", "[1]", "{}", '{"item_id": 7}'])
def test_a_card_that_is_no_intent_is_blocked_and_stands_in_nobody_s_way(
    make_squid: MakeSquid, body: str | None
) -> None:
    squid = make_squid(flow())
    squid.backlog.create("mine", "my own card", body=body, phase=phase("default"), priority=9)
    run_id = squid.start("flow").run_id
    backend = BacklogLeases(squid.runtime, squid.backlog)
    assert only(backend.claim("default", "w")).attempt.run_id == run_id
    assert squid.backlog.get("mine").status == "blocked"
    blocked = squid.backlog.history("mine")[-1].fact
    assert isinstance(blocked, CardBlocked)
    assert "no intent" in (blocked.reason or "")


def test_an_intent_of_a_newer_version_is_understood(make_squid: MakeSquid) -> None:
    squid = make_squid(flow())
    run_id = squid.start("flow").run_id
    item_id = f"{run_id}:first:1"
    intent = {"item_id": item_id, "run_id": run_id, "queue": "default", "step": "first", "priority": 0}
    body = json.dumps({**intent, "visible_at": squid.runtime.now().isoformat(), "colour": "blue"})
    squid.backlog.create(card_id(item_id), "newer", body=body, phase=phase("default"), idempotency_key=card_id(item_id))
    backend = BacklogLeases(squid.runtime, squid.backlog)
    assert only(backend.claim("default", "w")).attempt.run_id == run_id


def test_work_without_a_definition_here_is_left_to_others(make_squid: MakeSquid) -> None:
    squid = make_squid(flow())
    squid.start("flow")
    stranger = make_squid()
    assert BacklogLeases(stranger.runtime, stranger.backlog).claim("default", "w") == []
    assert stranger.backlog.list() == []
