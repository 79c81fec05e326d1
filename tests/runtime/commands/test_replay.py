"""Replaying a run: the same workflow, trigger and payload once more, unless something was done that cannot be twice."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Completed, Settlement
from squid_dagster.protocol.errors import (
    ConflictingCommand,
    IncompatibleDefinition,
    InvalidArgument,
    InvalidThread,
    NotFound,
    UnsafeReplay,
)
from squid_dagster.workflow import Manual, Workflow
from tests.runtime.runs import MakeSquid, complete_run, drain, facts, finish, run_facts, state_of


class Order(BaseModel):
    order_id: str = "o"


def orders(version: str | None = None, *, irreversible: bool = False, wait: int = 0) -> Workflow:
    wf = Workflow("orders", payload=Order, version=version, triggers=[Manual("web"), Manual("desk")])
    wf.step(name="charge", irreversible=irreversible)(lambda: "charged")
    wf.wait("settle", timedelta(hours=1 + wait))
    wf.step(name="ship")(lambda: "shipped")
    for name, following in (("charge", "settle"), ("settle", "ship"), ("ship", "complete")):
        wf.route(name, to=following)
    return wf


def test_a_replay_is_a_new_run_like_the_first_one(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(orders("1"))
    source = squid.start("orders", {"order_id": "o-1"}, trigger="desk", queue="slow", priority=5).run_id
    for _ in range(2):
        drain(squid, "slow")
        clock.advance(timedelta(hours=1))
    written = run_facts(squid, source)
    receipt = squid.replay(source, actor="ada", comment="once more")
    assert receipt.run_id != source
    started = facts(squid, receipt.run_id, "run_started")[0]
    assert (started.workflow, started.trigger, started.input) == ("orders", "desk", {"order_id": "o-1"})
    assert (started.queue, started.priority, started.definition_version) == ("slow", 5, "1")
    assert (started.replayed_from_run_id, started.context) == (source, {})
    (command,) = receipt.snapshot.command_history
    assert (command.signal_type, command.actor, command.comment) == ("replay_run", "ada", "once more")
    assert command.payload == {"run_id": source, "allow_irreversible": False}
    assert receipt.snapshot.replayed_from_run_id == source
    assert run_facts(squid, source) == written, "the first run is left as it was"
    assert drain(squid, "slow") == 1


@pytest.mark.parametrize("status", ["running", "completed", "failed", "cancelled"])
def test_a_run_can_be_replayed_wherever_it_stands(make_squid: MakeSquid, clock: VirtualClock, status: str) -> None:
    wf = Workflow("orders", payload=Order)

    @wf.step
    def act(order_id: str) -> None:
        if order_id == "bad":
            raise ValueError(order_id)

    wf.route(act, to="complete")
    squid = make_squid(wf)
    source = squid.start("orders", {"order_id": "bad" if status == "failed" else "good"}).run_id
    if status in ("completed", "failed"):
        drain(squid)
    if status == "cancelled":
        squid.cancel(source)
    assert squid.inspect_run(source).status == status
    assert facts(squid, squid.replay(source).run_id, "run_started")[0].replayed_from_run_id == source


def test_replays_without_a_key_are_all_new_and_with_a_key_one(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(orders())
    source = complete_run(squid, clock, "orders").run_id
    assert len({squid.replay(source).run_id for _ in range(3)}) == 3
    first = squid.replay(source, idempotency_key="k")
    finish(squid, clock, first.run_id)
    again = squid.replay(source, idempotency_key="k")
    assert (again.run_id, again.received_at, again.repeated) == (first.run_id, first.received_at, True)
    with pytest.raises(ConflictingCommand, match="'k'"):
        squid.replay(source, idempotency_key="k", allow_irreversible=True)
    other = complete_run(squid, clock, "orders").run_id
    assert squid.replay(other, idempotency_key="k").run_id != first.run_id, "a key belongs to the run"


def test_after_an_irreversible_step_a_replay_must_be_allowed(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(orders(irreversible=True))
    source = squid.start("orders").run_id
    assert squid.replay(source).run_id, "before the step, nothing stands against it"
    squid.execute_next()
    written = state_of(squid.journal)
    with pytest.raises(UnsafeReplay, match=r"'charge'.*allow_irreversible=True"):
        squid.replay(source, allow_irreversible=False)
    for no_answer in (1, "yes"):
        with pytest.raises(InvalidArgument, match="allow_irreversible must be True or False"):
            squid.replay(source, allow_irreversible=no_answer)  # type: ignore[arg-type]
    assert state_of(squid.journal) == written
    allowed = squid.replay(source, allow_irreversible=True, idempotency_key="k")
    assert facts(squid, allowed.run_id, "run_signal_received")[0].payload["allow_irreversible"] is True


def test_a_completed_irreversible_step_counts_before_it_is_applied(make_squid: MakeSquid) -> None:
    squid = make_squid(orders(irreversible=True))
    source = squid.start("orders").run_id
    (claim,) = squid.runtime.dispatch.claim("default", "w")
    squid.runtime.dispatch.settle([Settlement(claim.ref, Completed(None))])
    assert "runnable_applied" not in run_facts(squid, source)
    with pytest.raises(UnsafeReplay, match="'charge'"):
        squid.replay(source)


def test_an_irreversible_step_that_only_failed_does_not_stand_in_the_way(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    wf = Workflow("orders")

    def charge() -> None:
        raise ValueError("declined")

    wf.step(name="charge", irreversible=True)(charge)
    wf.route("charge", to="complete")
    squid = make_squid(wf)
    source = complete_run(squid, clock, "orders").run_id
    assert squid.replay(source).run_id


def test_a_key_is_answered_whatever_would_refuse_the_replay_now(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(orders("1", irreversible=True))
    source = squid.start("orders").run_id
    first = squid.replay(source, idempotency_key="k")
    drain(squid)
    with pytest.raises(UnsafeReplay):
        squid.replay(source)
    assert squid.replay(source, idempotency_key="k").run_id == first.run_id
    changed = make_squid(orders("2", wait=1))
    again = changed.replay(source, idempotency_key="k")
    assert (again.run_id, again.received_at, again.repeated) == (first.run_id, first.received_at, True)


def test_a_replay_needs_the_definition_that_the_run_was_started_with(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    source = complete_run(make_squid(orders("1")), clock, "orders").run_id
    changed = make_squid(orders("2", wait=1))
    written = state_of(changed.journal)
    with pytest.raises(IncompatibleDefinition, match=r"'1'.*'2'"):
        changed.replay(source)
    assert state_of(changed.journal) == written
    both = make_squid([orders("1"), orders("2", wait=1)])
    assert facts(both, both.replay(source).run_id, "run_started")[0].definition_version == "1"


@pytest.mark.parametrize(("run_id", "error"), [("nothing", NotFound), ("a:b", (NotFound, InvalidThread))])
def test_there_must_be_something_to_replay(make_squid: MakeSquid, run_id: str, error: Any) -> None:
    squid = make_squid(orders())
    with pytest.raises(error, match=run_id):
        squid.replay(run_id)
    assert state_of(squid.journal) == []
