"""Attempts that were handed out too often: parked, listed, left by an error route, or put back by a person."""

from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.errors import ConflictingCommand, InvalidTransition, NotFound
from squid_dagster.workflow import Retry, StepContext, Workflow, path
from squid_dagster.workflow.planner.dead_letters import waiting_steps
from tests.runtime.runs import (
    MakeSquid,
    applied_steps,
    drain,
    facts,
    finish,
    planned_steps,
    seconds,
    state_of,
    transitions,
    unit,
)

LEASE = seconds(10)


def fragile(*, route: bool = False, max_deliveries: int = 2, **options: Any) -> Workflow:
    wf = Workflow("fragile")
    wf.step(name="prepare")(lambda: "ready")

    @wf.step(max_deliveries=max_deliveries, **options)
    def crash(ctx: StepContext, prepare: str) -> list[Any]:
        return [ctx.attempt, ctx.fencing_token, prepare]

    wf.route("prepare", to=crash)
    wf.route(crash, to="complete")
    if route:
        wf.step(name="apologise")(lambda: "sorry")
        wf.route(crash, on="error", to="apologise", when=path("error.code") == "dead_letter")
        wf.route(crash, on="error", to="fail")
        wf.route("apologise", to="complete")
    return wf


def die(squid: Squid, clock: VirtualClock, times: int) -> None:
    """Claim and vanish, as a worker does that is killed; then claim once more, which finds the letter dead."""
    for _ in range(times):
        assert squid.dispatch_agent().claim_next("doomed", lease=LEASE) is not None
        clock.advance(LEASE)


def dead(make_squid: MakeSquid, clock: VirtualClock, **options: Any) -> tuple[Squid, str]:
    squid = make_squid(fragile(**options))
    run_id = squid.start("fragile").run_id
    squid.execute_next()
    die(squid, clock, options.get("max_deliveries", 2))
    assert squid.execute_next() is None
    return squid, run_id


def test_an_attempt_that_was_delivered_too_often_is_parked_and_its_run_waits(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid, run_id = dead(make_squid, clock)
    (letter,) = facts(squid, run_id, "attempt_dead_lettered")
    assert (letter.runnable_key, letter.deliveries) == (f"{run_id}:crash:1:1", 2)
    snapshot = squid.inspect_run(run_id)
    assert (snapshot.status, snapshot.reason, snapshot.terminal) == ("running", "dead_letter", False)
    assert [attempt.runnable_key for attempt in snapshot.dead_letters] == [letter.runnable_key]
    assert [attempt.runnable_key for attempt in squid.dead_letters()] == [letter.runnable_key]
    clock.advance(timedelta(days=9))
    assert squid.execute_next() is None
    report = squid.recover()
    assert (report.repaired, report.listed) == (0, 1)
    assert squid.recover().repaired == 0
    assert squid.inspect_run(run_id).reason == "dead_letter"
    assert not snapshot.anomalies


def test_deliveries_up_to_the_cap_are_just_deliveries(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(fragile(max_deliveries=3))
    run_id = squid.start("fragile").run_id
    squid.execute_next()
    die(squid, clock, 2)
    assert drain(squid) == 1
    assert squid.inspect_run(run_id).outputs["crash"] == [1, 3, "ready"], "one attempt, claimed three times"


def test_a_dead_letter_follows_the_error_route_with_the_error_in_its_decision(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid, run_id = dead(make_squid, clock, route=True)
    report = squid.recover()
    assert report.dead_letters == 1
    assert transitions(squid, run_id)[-1] == ("crash", "error", "apologise")
    error = facts(squid, run_id, "runnable_applied")[-1].transition["error"]
    assert error["code"] == "dead_letter"
    assert "2 times" in error["message"]
    assert finish(squid, clock, run_id).status == "completed"
    assert applied_steps(squid, run_id) == ["prepare:1", "crash:1", "apologise:1"]
    assert squid.dead_letters() == []
    assert not unit(squid, run_id).anomalies


def test_recovery_finds_dead_letters_that_nobody_claims(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(fragile(route=True))
    run_id = squid.start("fragile").run_id
    squid.execute_next()
    die(squid, clock, 2)
    report = squid.recover()
    assert (report.dead_lettered, report.dead_letters) == (1, 1)
    assert finish(squid, clock, run_id).status == "completed"


def test_a_person_puts_a_dead_letter_back_as_one_more_attempt_at_the_same_visit(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid, run_id = dead(make_squid, clock)
    before = squid.journal.revision(f"squid:run:{run_id}")
    receipt = squid.retry_attempt(run_id, actor="ada", comment="fixed the disk", metadata={"secret": "x"})
    assert (receipt.signal_type, receipt.run_id) == ("retry_attempt", run_id)
    signal, planned = (entry.fact for entry in squid.journal.read(f"squid:run:{run_id}", before))
    assert (signal.type, planned.type) == ("run_signal_received", "runnables_planned")
    assert signal.payload == {"run_id": run_id, "runnable_key": None}  # type: ignore[union-attr]
    assert signal.metadata == {"secret": "[REDACTED]"}  # type: ignore[union-attr]
    assert planned_steps(squid, run_id)[-1] == "crash:1:2"
    assert squid.inspect_run(run_id).status == "running"
    assert squid.dead_letters() == []
    snapshot = finish(squid, clock, run_id)
    assert snapshot.status == "completed"
    assert snapshot.outputs["crash"] == [2, 3, "ready"], "its input is the same, and its fencing token never falls"
    assert applied_steps(squid, run_id) == ["prepare:1", "crash:1"]
    assert not snapshot.anomalies


def test_a_dead_letter_may_die_again_and_be_put_back_again(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid, run_id = dead(make_squid, clock)
    for attempt in (2, 3):
        squid.retry_attempt(run_id, f"{run_id}:crash:1:{attempt - 1}")
        die(squid, clock, 2)
        assert squid.execute_next() is None
        assert [parked.runnable_key for parked in squid.dead_letters()] == [f"{run_id}:crash:1:{attempt}"]
    squid.retry_attempt(run_id)
    assert finish(squid, clock, run_id).status == "completed"


def test_a_retried_letter_fails_and_is_tried_again_as_its_policy_says(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    wf = Workflow("fragile")

    @wf.step(max_deliveries=1, retry=Retry(max_attempts=3))
    def crash(ctx: StepContext) -> int:
        if ctx.attempt == 2:
            raise RuntimeError("once")
        return ctx.attempt

    wf.route(crash, to="complete")
    squid = make_squid(wf)
    run_id = squid.start("fragile").run_id
    die(squid, clock, 1)
    assert squid.execute_next() is None
    squid.retry_attempt(run_id)
    assert finish(squid, clock, run_id).outputs == {"crash": 3}


def test_a_key_used_again_gives_the_first_receipt_and_another_content_is_refused(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid, run_id = dead(make_squid, clock)
    first = squid.retry_attempt(run_id, idempotency_key="k")
    finish(squid, clock, run_id)
    written = state_of(squid.journal)
    again = squid.retry_attempt(run_id, idempotency_key="k")
    assert (again.received_at, again.repeated) == (first.received_at, True)
    with pytest.raises(ConflictingCommand, match="'k'"):
        squid.retry_attempt(run_id, f"{run_id}:crash:1:1", idempotency_key="k")
    assert state_of(squid.journal) == written


def test_only_a_dead_letter_that_the_run_waits_for_can_be_put_back(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid, run_id = dead(make_squid, clock)
    healthy = squid.start("fragile").run_id
    key = f"{run_id}:crash:1:1"
    cases: list[tuple[str, str | None, type[Exception], str]] = [
        ("nothing", None, NotFound, "nothing"),
        (healthy, None, InvalidTransition, "0 dead letters"),
        (healthy, f"{healthy}:prepare:1:1", InvalidTransition, "available"),
        (run_id, f"{run_id}:prepare:1:1", InvalidTransition, "completed"),
        (run_id, "no-such-key", NotFound, "no-such-key"),
        (healthy, key, NotFound, "crash"),
    ]
    written = state_of(squid.journal)
    for run, runnable, error, named in cases:
        with pytest.raises(error, match=named):
            squid.retry_attempt(run, runnable)
    assert state_of(squid.journal) == written
    squid.retry_attempt(run_id, key)
    with pytest.raises(InvalidTransition, match="gone on"):
        squid.retry_attempt(run_id, key)
    squid.cancel(run_id)
    with pytest.raises(InvalidTransition, match=f"{run_id}.*cancelled"):
        squid.retry_attempt(run_id, key)


def test_a_letter_that_an_error_route_has_left_cannot_be_put_back(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid, run_id = dead(make_squid, clock, route=True)
    squid.recover()
    with pytest.raises(InvalidTransition, match="gone on"):
        squid.retry_attempt(run_id, f"{run_id}:crash:1:1")


def test_a_run_with_a_dead_letter_can_be_cancelled(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid, run_id = dead(make_squid, clock)
    squid.cancel(run_id)
    assert squid.inspect_run(run_id).status == "cancelled"
    assert squid.dead_letters() == []
    assert not unit(squid, run_id).anomalies


# --- beside siblings, and while a run is undone ---------------------------------------------------------------------


def parallel(*, undo: bool = False) -> Workflow:
    wf = Workflow("parallel")
    wf.step(name="root", compensate=(lambda: "undone") if undo else None)(lambda: None)
    for name in ("left", "right"):
        wf.step(name=name, after=["root"], max_deliveries=1)(lambda: None)
    wf.step(name="join", after=["left", "right"])(lambda: None)
    return wf


def test_siblings_of_a_dead_letter_go_on_and_the_join_waits(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(parallel())
    run_id = squid.start("parallel").run_id
    squid.execute_next()
    left, right = squid.dispatch_agent().claim_many("w", 2, lease=LEASE)
    squid.dispatch_agent().complete(right)
    clock.advance(LEASE)
    assert squid.execute_next() is None
    assert squid.inspect_run(run_id).reason == "dead_letter"
    squid.retry_attempt(run_id, left.attempt.runnable_key)
    assert finish(squid, clock, run_id).status == "completed"
    assert applied_steps(squid, run_id)[-1] == "join:1"


def test_of_several_dead_letters_one_must_be_named(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(parallel())
    run_id = squid.start("parallel").run_id
    squid.execute_next()
    squid.dispatch_agent().claim_many("w", 2, lease=LEASE)
    clock.advance(LEASE)
    assert squid.execute_next() is None
    assert len(squid.dead_letters()) == 2
    with pytest.raises(InvalidTransition, match=r"2 dead letters.*left.*right.*name one"):
        squid.retry_attempt(run_id)
    squid.retry_attempt(run_id, f"{run_id}:left:1:1")
    squid.retry_attempt(run_id)
    assert finish(squid, clock, run_id).status == "completed"


def test_a_dead_letter_does_not_keep_a_failed_run_from_its_end(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(parallel(undo=True))
    run_id = squid.start("parallel").run_id
    squid.execute_next()
    left, right = squid.dispatch_agent().claim_many("w", 2, lease=LEASE)
    del left
    squid.dispatch_agent().heartbeat(right, lease=5 * LEASE)
    clock.advance(LEASE)
    assert squid.execute_next() is None
    squid.dispatch_agent().fail(right, {"message": "and now this"})
    drain(squid)
    squid.recover()
    snapshot = finish(squid, clock, run_id)
    assert snapshot.status == "failed"
    assert snapshot.error == {"message": "and now this"}
    assert "compensate:root:1" in applied_steps(squid, run_id)
    assert not snapshot.anomalies


def test_a_dead_compensation_waits_for_a_person_and_can_be_put_back(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("saga")
    wf.step(name="book", compensate=lambda: "undone", max_deliveries=1)(lambda: None)

    @wf.step
    def pay() -> None:
        raise ValueError("declined")

    wf.route("book", to=pay)
    wf.route(pay, to="complete")
    squid = make_squid(wf)
    run_id = squid.start("saga").run_id
    squid.execute_next()
    squid.execute_next()
    die(squid, clock, 1)
    assert squid.execute_next() is None
    squid.recover()
    assert squid.inspect_run(run_id).reason == "dead_letter", "nobody knows whether it was undone"
    squid.retry_attempt(run_id, actor="ada")
    snapshot = finish(squid, clock, run_id)
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert snapshot.error["message"] == "declined"


@pytest.mark.parametrize("undo", [False, True], ids=["nothing is undone", "something is undone"])
def test_dead_letters_that_wait_for_a_person_cost_a_recovery_next_to_nothing(
    make_squid: MakeSquid, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, undo: bool
) -> None:
    # given many dead letters from which nothing follows
    wf = Workflow("fragile")
    wf.step(name="crash", max_deliveries=1, compensate=(lambda: None) if undo else None)(lambda: None)
    squid = make_squid(wf)
    count = 20
    squid.start_many("fragile", [None] * count)
    assert len(squid.dispatch_agent().claim_many("doomed", count, lease=LEASE)) == count
    clock.advance(LEASE)
    assert squid.recover().dead_lettered == count
    # when recovery looks again
    reads, locks = list[str](), list[Any]()
    storage, dispatch = squid.journal, squid.runtime.dispatch
    read_run, decide = storage.read_run, dispatch.decide
    monkeypatch.setattr(storage, "read_run", lambda run_id: reads.append(run_id) or read_run(run_id))  # type: ignore[func-returns-value]

    def counted_decide(*given: Any, **options: Any) -> Any:
        locks.append(given)
        return decide(*given, **options)

    monkeypatch.setattr(type(dispatch), "decide", counted_decide)
    report = squid.recover()
    # then it passes them over; where a run may be failing, it reads each once, and locks none
    assert (report.repaired, report.held, report.failed) == (0, [], {})
    assert (len(reads), locks) == (count if undo else 0, [])


def test_the_steps_whose_dead_letters_wait_for_a_person_in_any_case() -> None:
    assert waiting_steps(fragile().freeze()) == {"prepare", "crash"}
    assert waiting_steps(fragile(route=True).freeze()) == {"prepare", "apologise"}
    # what a failing run waits for may be dead, and is then left; what undoes it is not
    assert waiting_steps(fragile(compensate=lambda: None).freeze()) == {"compensate:crash"}
