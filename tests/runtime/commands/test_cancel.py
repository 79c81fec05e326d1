"""Cancelling: the run ends at once, whatever it was doing; results that come later are refused; children on request."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.errors import ConflictingCommand, InvalidTransition, NotFound, TerminalRun
from squid_dagster.protocol.threads import run_thread
from squid_dagster.workflow import Fail, StepContext, Workflow
from tests.facts import signal, terminal
from tests.runtime.runs import MakeSquid, drain, facts, run_facts, seconds, state_of, unit


class Depth(BaseModel):
    depth: int = 0


def nothing() -> None:
    """Succeed."""


def orders() -> Workflow:
    wf = Workflow("orders")
    wf.step(name="charge")(nothing)
    wf.wait("settle", seconds(60))
    wf.step(name="ship")(nothing)
    for name, following in (("charge", "settle"), ("settle", "ship"), ("ship", "complete")):
        wf.route(name, to=following)
    return wf


def ends(squid: Squid, run_id: str) -> list[str]:
    """Return the facts that end a run, however a storage orders its threads."""
    return sorted(f.type for f in facts(squid, run_id) if f.type in ("run_terminal", "run_fenced"))


def test_a_cancelled_run_has_ended_with_who_and_why_on_record(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(orders())
    run_id = squid.start("orders").run_id
    before = len(run_facts(squid, run_id))
    clock.advance(seconds(3))
    receipt = squid.cancel(
        run_id, actor={"name": "ada", "token": "t"}, comment="wrong order", metadata={"api_key": "k"}
    )
    assert (receipt.signal_type, receipt.received_at) == ("cancel_run", clock.now())
    snapshot = squid.inspect_run(run_id)
    assert (snapshot.status, snapshot.terminal_status, snapshot.ended_at) == ("cancelled", "cancelled", clock.now())
    command = snapshot.command_history[-1]
    assert (command.signal_type, command.comment) == ("cancel_run", "wrong order")
    assert command.actor == {"name": "ada", "token": "[REDACTED]"}
    assert command.metadata == {"api_key": "[REDACTED]"}
    assert run_facts(squid, run_id)[before:] == ["run_signal_received", "run_terminal"], "in one append"
    assert ends(squid, run_id) == ["run_fenced", "run_terminal"], "there was open work on the queue"
    assert squid.execute_next() is None
    assert not snapshot.anomalies


@pytest.mark.parametrize("outcome", ["complete", "fail", "heartbeat", "release"])
def test_what_a_running_step_says_after_the_cancel_is_refused_and_changes_nothing(
    make_squid: MakeSquid, outcome: str
) -> None:
    squid = make_squid(orders())
    run_id = squid.start("orders").run_id
    agent = squid.dispatch_agent()
    claim = agent.claim_next("w")
    assert claim is not None
    squid.cancel(run_id)
    written = state_of(squid.journal)
    act: dict[str, Any] = {
        "complete": lambda: agent.complete(claim, "late"),
        "fail": lambda: agent.fail(claim, {"message": "late"}, retry_after=seconds(1)),
        "heartbeat": lambda: agent.heartbeat(claim),
        "release": lambda: agent.release(claim),
    }
    with pytest.raises(TerminalRun, match=run_id):
        act[outcome]()
    assert state_of(squid.journal) == written


def test_a_step_that_is_running_learns_of_the_cancel_when_it_is_done(make_squid: MakeSquid) -> None:
    wf = Workflow("orders")
    squids: list[Squid] = []

    @wf.step
    def charge(ctx: StepContext) -> str:
        squids[0].cancel(ctx.run_id)
        return "too late"

    squid = make_squid(wf)
    squids.append(squid)
    run_id = squid.start("orders").run_id
    with pytest.raises(TerminalRun):
        squid.execute_next()
    assert squid.inspect_run(run_id).outputs == {}
    assert not unit(squid, run_id).anomalies


def test_a_run_that_waits_can_be_cancelled(make_squid: MakeSquid, clock: VirtualClock) -> None:
    paused = Workflow("paused")
    paused.approval("review")
    paused.route("review", to="complete")
    paused.route("review", on="error", to="fail")
    squid = make_squid([orders(), paused])
    waiting, manual = squid.start("orders").run_id, squid.start("paused").run_id
    drain(squid)
    for run_id in (waiting, manual):
        squid.cancel(run_id)
        assert squid.inspect_run(run_id).status == "cancelled"
        assert squid.inspect_run(run_id).manual_state is None
    assert ends(squid, waiting) == ["run_fenced", "run_terminal"]
    assert ends(squid, manual) == ["run_terminal"], "nothing was on the queue"
    clock.advance(timedelta(days=1))
    assert squid.execute_next() is None


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_a_run_that_has_ended_cannot_be_cancelled(make_squid: MakeSquid, clock: VirtualClock, end: str) -> None:
    wf = Workflow("orders")

    @wf.step
    def act() -> None:
        if end == "failed":
            raise Fail("no")

    squid = make_squid(wf)
    run_id = squid.start("orders").run_id
    if end == "cancelled":
        squid.cancel(run_id)
    drain(squid)
    written = state_of(squid.journal)
    with pytest.raises(InvalidTransition, match=f"{run_id}.*{end}"):
        squid.cancel(run_id)
    with pytest.raises(InvalidTransition):
        squid.cancel(run_id, idempotency_key="new", cascade=True)
    assert state_of(squid.journal) == written


def test_a_cancel_repeated_by_its_key_gives_the_first_receipt(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(orders())
    run_id = squid.start("orders").run_id
    first = squid.cancel(run_id, idempotency_key="k", actor="ada")
    clock.advance(timedelta(days=99))
    written = state_of(squid.journal)
    again = squid.cancel(run_id, idempotency_key="k", actor="bob")
    assert (again.run_id, again.received_at, again.repeated) == (run_id, first.received_at, True)
    with pytest.raises(ConflictingCommand, match="'k'"):
        squid.cancel(run_id, idempotency_key="k", cascade=True)
    assert state_of(squid.journal) == written


@pytest.mark.parametrize("cascade", [True, False])
def test_there_must_be_a_run_to_cancel(make_squid: MakeSquid, cascade: bool) -> None:
    squid = make_squid(orders())
    with pytest.raises(NotFound, match="nothing"):
        squid.cancel("nothing", cascade=cascade)
    assert state_of(squid.journal) == []


# --- with children --------------------------------------------------------------------------------------------------


def tree() -> Workflow:
    """Build a workflow that starts two children of its own kind, down to a depth; then it waits for a person."""
    wf = Workflow("tree", payload=Depth)

    @wf.step
    def grow(ctx: StepContext, depth: int) -> None:
        for key in ("left", "right") if depth else ():
            ctx.start_child_run("tree", {"depth": depth - 1}, child_key=key)

    wf.pause("stand")
    wf.route(grow, to="stand")
    wf.route("stand", to="complete")
    return wf


def family(squid: Squid, run_id: str) -> list[str]:
    """Return a run and all runs below it."""
    run_ids = [run_id]
    for member in run_ids:
        run_ids += [child.child_run_id for child in squid.inspect_run(member).child_runs]
    return run_ids


def grown(make_squid: MakeSquid, depth: int = 2) -> tuple[Squid, list[str]]:
    squid = make_squid(tree())
    run_id = squid.start("tree", {"depth": depth}).run_id
    drain(squid)
    return squid, family(squid, run_id)


def test_children_go_on_unless_the_cancel_says_otherwise(make_squid: MakeSquid) -> None:
    squid, (root, *below) = grown(make_squid)
    assert len(below) == 6
    squid.cancel(root)
    assert {squid.inspect_run(member).status for member in below} == {"paused"}
    assert squid.recover().cascades == 0
    assert {squid.inspect_run(member).status for member in below} == {"paused"}, "recovery does not cancel them either"


def test_a_cascade_reaches_grandchildren_and_says_with_whom_they_were_cancelled(make_squid: MakeSquid) -> None:
    squid, (root, *below) = grown(make_squid)
    bystander = squid.start("tree").run_id
    receipt = squid.cancel(root, cascade=True, actor="ada", idempotency_key="k")
    assert receipt.run_id == root
    assert {squid.inspect_run(member).status for member in (root, *below)} == {"cancelled"}
    for member in below:
        command = squid.inspect_run(member).command_history[-1]
        assert command.signal_type == "cancel_run"
        assert command.payload == {"run_id": member, "cascade": True, "cancelled_with": root}
        assert not unit(squid, member).anomalies
    assert not squid.inspect_run(bystander).terminal
    assert squid.cancel(root, cascade=True, idempotency_key="k").repeated


def test_a_cascade_passes_through_children_that_have_ended_and_leaves_them_as_they_are(make_squid: MakeSquid) -> None:
    squid, (root, *below) = grown(make_squid)
    ended = squid.inspect_run(root).child_runs[0].child_run_id
    squid.resume(ended)
    assert squid.inspect_run(ended).status == "completed"
    squid.cancel(root, cascade=True)
    statuses = {member: squid.inspect_run(member).status for member in below}
    assert statuses.pop(ended) == "completed"
    assert set(statuses.values()) == {"cancelled"}, "grandchildren too"


def test_a_cascade_from_the_middle_leaves_the_parent_alone(make_squid: MakeSquid) -> None:
    squid, (root, *_) = grown(make_squid)
    middle, other = (child.child_run_id for child in squid.inspect_run(root).child_runs)
    squid.cancel(middle, cascade=True)
    assert squid.inspect_run(root).status == "paused"
    assert {squid.inspect_run(member).status for member in family(squid, middle)} == {"cancelled"}
    assert {squid.inspect_run(member).status for member in family(squid, other)} == {"paused"}


def test_a_cancelled_parent_starts_no_more_children(make_squid: MakeSquid) -> None:
    squid = make_squid(tree())
    run_id = squid.start("tree", {"depth": 1}).run_id
    claim = squid.dispatch_agent().claim_next("w")
    assert claim is not None
    squid.cancel(run_id, cascade=True)
    with pytest.raises(TerminalRun, match="cancelled"):
        squid.start_child_run(claim, "tree", child_key="late")


class InterleavedStorage(MemoryStorage):
    """Another writer gets in just before a commit to one run's thread, once."""

    victim: str | None = None

    def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
        for one in appends:
            if self.victim is not None and one.thread == run_thread(self.victim):
                victim, self.victim = self.victim, None
                super().commit([Append(one.thread, [signal(victim, signal_type="note")])])
        return super().commit(appends, commit_id)


@pytest.mark.parametrize("atomic", [True, False])
def test_a_cascade_that_meets_another_writer_ends_well(clock: VirtualClock, atomic: bool) -> None:
    for place in range(7):
        storage = InterleavedStorage(clock, atomic_across_threads=atomic)
        squid = Squid(storage, tree())
        run_id = squid.start("tree", {"depth": 2}).run_id
        drain(squid)
        everyone = family(squid, run_id)
        storage.victim = everyone[place]
        receipt = squid.cancel(run_id, cascade=True)
        assert (receipt.run_id, receipt.repeated) == (run_id, False)
        assert {squid.inspect_run(member).status for member in everyone} == {"cancelled"}
        assert all(not unit(squid, member).anomalies for member in everyone)


def test_a_cascade_that_was_cut_off_is_finished_by_one_recovery(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid, (root, *below) = grown(make_squid)
    # What a process leaves behind that dies right after its first append, where a commit cannot span threads.
    command = signal(root, signal_type="cancel_run", payload={"run_id": root, "cascade": True})
    squid.journal.append(run_thread(root), [command, terminal(root, status="cancelled")])
    assert {squid.inspect_run(member).status for member in below} == {"paused"}
    assert squid.recover().cascades == len(below)
    assert {squid.inspect_run(member).status for member in below} == {"cancelled"}
    assert squid.recover().cascades == 0
