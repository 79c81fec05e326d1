"""Lease backends keep one contract: the journal's own, the backlog, and a plain list that a host brings."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from squid_dagster import Defer, Fail, Retry, Squid, Workflow
from squid_dagster.backlog import BacklogLeases
from squid_dagster.backlog.lease_backend import card_id, phase
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Deferred, Failed
from squid_dagster.protocol.errors import (
    ExpiredClaim,
    InvalidArgument,
    InvalidFact,
    InvalidThread,
    StaleClaim,
    TerminalRun,
)
from squid_dagster.protocol.facts.backlog import CardBlocked
from squid_dagster.runtime.leases.host_queue import OFFERED_AT_ONCE, Delivery, Intent, QueueLeases
from squid_dagster.runtime.leases.lease_backend import JournalLeases, Lease, LeaseBackend, LeaseOutcome
from squid_dagster.runtime.leases.lease_work import work_one_lease
from tests.runtime.runs import MakeSquid, facts, seconds

LEASE = timedelta(seconds=60)


class ListQueue:
    """A host's queue in a list: what waits, from when on, and until when somebody has it."""

    def __init__(self, now: Callable[[], Any]) -> None:
        """Begin empty, by that clock."""
        self._now, self._lock = now, threading.Lock()
        self.items: dict[str, tuple[Intent, Any]] = {}
        self.buried: dict[str, str] = {}

    def offer(self, intent: Intent) -> None:
        """Take an intent, once."""
        with self._lock:
            self.buried.pop(intent.item_id, None)
            self.items.setdefault(intent.item_id, (intent, self._now()))

    def claim(self, queue: str, owner: str, limit: int, lease: timedelta) -> list[Delivery]:
        """Hand out what is due."""
        del owner
        with self._lock:
            due = [one for one, at in self.items.values() if at <= self._now() and one.queue == queue]
            found = sorted(due, key=lambda one: (-one.priority, one.visible_at))[:limit]
            for one in found:
                self.items[one.item_id] = (one, self._now() + lease)
        return [Delivery(one) for one in found]

    def heartbeat(self, delivery: Delivery, lease: timedelta) -> None:
        """Keep it from the others."""
        self.items[delivery.intent.item_id] = (delivery.intent, self._now() + lease)

    def complete(self, delivery: Delivery) -> None:
        """Forget it."""
        self.items.pop(delivery.intent.item_id, None)

    def fail(self, delivery: Delivery, why: str, retry_after: timedelta | None) -> LeaseOutcome:
        """Keep it for later, or bury it."""
        if retry_after is None:
            self.complete(delivery)
            self.buried[delivery.intent.item_id] = why
            return LeaseOutcome.DEAD_LETTERED
        self.items[delivery.intent.item_id] = (delivery.intent, self._now() + retry_after)
        return LeaseOutcome.REQUEUED


Make = Callable[[Squid], LeaseBackend]
BACKENDS: dict[str, Make] = {
    "journal": lambda squid: JournalLeases(squid.runtime),
    "backlog": lambda squid: BacklogLeases(squid.runtime, squid.backlog),
    "list": lambda squid: QueueLeases(squid.runtime, ListQueue(squid.runtime.now)),
}


@pytest.fixture(params=BACKENDS)
def make_backend(request: pytest.FixtureRequest) -> Make:
    """Every backend."""
    return BACKENDS[request.param]


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


# --- refusals -------------------------------------------------------------------------------------------------------


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
    # given a lease that ran out, and somebody who took the work over
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
    before = told(squid, run_id)
    for act in (lambda: backend.complete(late, 1), lambda: backend.fail(late, "no"), lambda: backend.heartbeat(late)):
        with pytest.raises(StaleClaim):
            act()
    assert told(squid, run_id) == before
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
    assert told(squid, run_id) == ["scheduled", "claimed"]


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


# --- the life of a lease --------------------------------------------------------------------------------------------


def test_nobody_gets_what_another_one_has(make_squid: MakeSquid, make_backend: Make) -> None:
    squid = make_squid(flow())
    runs = [squid.start("flow").run_id for _ in range(5)]
    one, two = make_backend(squid), make_backend(squid)
    found = [*one.claim("default", "a", limit=3), *two.claim("default", "b", limit=3)]
    assert sorted(lease.attempt.run_id for lease in found) == sorted(runs)
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
    assert told(squid, run_id)[:5] == ["scheduled", "claimed", "heartbeat", "heartbeat", "completed"]


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
    assert told(squid, run_id)[-1] == "dead_lettered"
    # and comes back when somebody asks for it
    squid.recover()
    squid.retry_attempt(run_id)
    clock.advance(LEASE)
    backend.complete(only(backend.claim("default", "w")), 1)


def test_work_that_is_put_back_after_a_dead_letter_is_delivered_again(
    make_squid: MakeSquid, make_backend: Make, clock: VirtualClock
) -> None:
    # given work that was delivered too often, and other work, so that somebody finds it on the queue meanwhile
    squid = make_squid(single("once", 2, max_deliveries=1))
    backend = make_backend(squid)
    run_id = squid.start("once").run_id
    lost = only(backend.claim("default", "dies", lease=LEASE))
    clock.advance(LEASE)
    squid.start("once")
    other = only(backend.claim("default", "w", limit=5, lease=LEASE))
    assert told(squid, run_id)[-1] == "dead_lettered"
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


# --- working --------------------------------------------------------------------------------------------------------


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
    assert told(squid, deferred) == ["scheduled", "claimed", "released"]


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
    assert told(squid, run_id) == ["scheduled", "claimed"]


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


# --- a queue that fails ---------------------------------------------------------------------------------------------


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
    assert told(squid, good)[:4] == ["scheduled", "claimed", "heartbeat", "completed"]
    assert told(squid, bad)[:3] == ["scheduled", "claimed", "failed"]


# --- the backlog as a backend ---------------------------------------------------------------------------------------


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
    # when somebody claims, then he gets other work, and the card waits until the worker's lease is over
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
    # then it was delivered once, and nobody offers it any more
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
