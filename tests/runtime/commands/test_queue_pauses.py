"""Pausing and resuming a queue: facts that stop the claims of every process, and nothing else."""

from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.errors import InvalidArgument, InvalidThread, SquidError
from squid_dagster.protocol.threads import dispatch_thread
from squid_dagster.workflow import Workflow
from tests.runtime.runs import MakeSquid, drain, finish, state_of


def work() -> Workflow:
    wf = Workflow("work")
    wf.step(name="first")(lambda: None)
    wf.step(name="second")(lambda: None)
    wf.route("first", to="second")
    wf.route("second", to="complete")
    return wf


def test_nobody_claims_from_a_paused_queue_until_it_is_resumed(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(work())
    run_id = squid.start("work").run_id
    assert squid.pause_queue("default", actor="ada", comment="maintenance")
    other = make_squid(work())
    for process in (squid, other):
        assert process.execute_next() is None
        assert process.dispatch_agent().claim_many("w", 10) == []
    explanation = squid.explain_run(run_id)
    assert explanation.reason == "queue_paused"
    assert squid.dispatch_agent().visible_attempts(), "what waits can be seen"
    assert squid.resume_queue("default", actor="ada")
    assert finish(other, clock, run_id).status == "completed"


def test_starting_and_planning_go_on_while_a_queue_is_paused(make_squid: MakeSquid) -> None:
    squid = make_squid(work())
    squid.start("work")
    claim = squid.dispatch_agent().claim_next("w")
    assert claim is not None
    squid.pause_queue("default")
    squid.start("work")
    squid.dispatch_agent().heartbeat(claim)
    squid.dispatch_agent().complete(claim)
    assert len(squid.dispatch_agent().visible_attempts()) == 2, "the other run's first step, and this one's second"
    assert squid.execute_next() is None
    squid.resume_queue("default")
    assert drain(squid) == 3


def test_a_pause_is_for_one_queue(make_squid: MakeSquid) -> None:
    squid = make_squid(work())
    squid.start("work", queue="slow")
    squid.start("work", queue="fast")
    squid.pause_queue("slow")
    assert drain(squid, "slow") == 0
    assert drain(squid, "fast") == 2
    assert {row.queue: row.paused for row in squid.runtime.queries.queues()} == {"slow": True}


def test_an_empty_queue_can_be_paused_ahead(make_squid: MakeSquid) -> None:
    squid = make_squid(work())
    squid.pause_queue("tomorrow")
    squid.start("work", queue="tomorrow")
    assert squid.execute_next("tomorrow") is None


def test_expired_claims_are_not_taken_from_a_paused_queue(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(work())
    squid.start("work")
    squid.dispatch_agent().claim_next("doomed", lease=timedelta(seconds=1))
    squid.pause_queue("default")
    clock.advance(timedelta(seconds=5))
    assert squid.execute_next() is None
    squid.resume_queue("default")
    assert drain(squid) == 2


def test_who_paused_and_why_is_on_record_without_secrets(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(work())
    actor: dict[str, Any] = {"name": "ada", "password": "hunter2"}
    squid.pause_queue("default", actor=actor, comment="fire", metadata={"token": "hunter2", "room": 4})
    (entry,) = squid.journal.read(dispatch_thread("default"))
    fact: Any = entry.fact
    assert (fact.type, fact.queue, fact.occurred_at) == ("queue_paused", "default", clock.now())
    assert fact.actor == {"name": "ada", "password": "[REDACTED]"}
    assert (fact.comment, fact.metadata) == ("fire", {"token": "[REDACTED]", "room": 4})


def test_a_key_makes_a_pause_happen_once(make_squid: MakeSquid) -> None:
    squid = make_squid(work())
    assert squid.pause_queue("default", idempotency_key="k") is True
    assert squid.resume_queue("default", idempotency_key="k") is True, "a key belongs to the command"
    written = state_of(squid.journal)
    assert squid.pause_queue("default", idempotency_key="k") is False
    assert squid.resume_queue("default", idempotency_key="k") is False
    assert state_of(squid.journal) == written
    squid.start("work")
    assert drain(squid) == 2, "the repeated pause changed nothing"
    assert squid.pause_queue("other", idempotency_key="k") is True, "and to the queue"


def test_pausing_twice_and_resuming_what_is_not_paused_are_no_errors(make_squid: MakeSquid) -> None:
    squid = make_squid(work())
    squid.resume_queue("default")
    squid.pause_queue("default")
    squid.pause_queue("default")
    squid.start("work")
    assert squid.execute_next() is None
    squid.resume_queue("default")
    assert drain(squid) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"queue": "a b"}, InvalidThread, "a b"),
        ({"queue": ""}, InvalidThread, "queue"),
        ({"actor": 7}, InvalidArgument, "actor"),
        ({"comment": 7}, InvalidArgument, "comment"),
        ({"metadata": [1]}, InvalidArgument, "metadata"),
        ({"idempotency_key": ""}, InvalidArgument, "idempotency_key"),
    ],
    ids=str,
)
def test_what_cannot_be_recorded_pauses_nothing(
    make_squid: MakeSquid, arguments: dict[str, Any], error: type[SquidError], named: str
) -> None:
    squid = make_squid(work())
    for command in (squid.pause_queue, squid.resume_queue):
        with pytest.raises(error, match=named):
            command(**{"queue": "default", **arguments})
    assert state_of(squid.journal) == []
