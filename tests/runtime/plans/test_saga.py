"""Undoing what a failed run has done: newest first, one after another, whatever else happens meanwhile."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Failed, Settlement
from squid_dagster.runtime.execution.settlement import settle as settle_all
from squid_dagster.workflow import Defer, Fail, Retry, StepContext, Workflow, path
from tests.runtime.runs import (
    MakeSquid,
    applied_steps,
    complete_run,
    drain,
    facts,
    finish,
    planned_steps,
    seconds,
    unit,
)


class Trip(BaseModel):
    city: str = "Oslo"


def nothing() -> None:
    """Succeed."""


def broken() -> None:
    raise ValueError("no seats left")


class Travel:
    """A trip booked in steps, with a diary of what was done and undone."""

    def __init__(self, *, entry: str | None = None) -> None:
        self.diary: list[Any] = []
        self.wf = Workflow("trip", payload=Trip, entry=entry)

    def book(self, name: str, undo: Callable[..., Any] | None = None, **options: Any) -> None:
        """Declare a step that is undone by noting what it had given."""

        def do(city: str, ctx: StepContext) -> str:
            self.diary.append(f"{name} {ctx.idempotency_key.rpartition(':')[2]}")
            return f"{name} in {city}, visit {ctx.idempotency_key.rpartition(':')[2]}"

        self.wf.step(name=name, compensate=undo or self.undoing(name), **options)(do)

    def undoing(self, name: str, fail: int = 0) -> Callable[..., Any]:
        left = [fail]

        def undo(ctx: StepContext) -> str:
            if left[0]:
                left[0] -= 1
                raise RuntimeError(f"cannot undo {name}")
            assert ctx.step == f"compensate:{name}"
            self.diary.append(f"undo {name} {ctx.idempotency_key.rpartition(':')[2]}")
            return "undone"

        return undo

    def chain(self, *names: str) -> Workflow:
        for name, following in zip(names, [*names[1:], "complete"], strict=True):
            self.wf.route(name, to=following)
        return self.wf


def test_what_was_done_is_undone_newest_first_and_then_the_run_has_failed(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    travel = Travel()
    travel.book("flight")
    travel.wf.step(name="note")(nothing)  # has nothing to undo
    travel.book("hotel")
    travel.book("car", max_deliveries=2)
    travel.wf.step(name="pay")(broken)
    squid = make_squid(travel.chain("flight", "note", "hotel", "car", "pay"))
    snapshot = complete_run(squid, clock, "trip")
    assert travel.diary == ["flight 1", "hotel 1", "car 1", "undo car 1", "undo hotel 1", "undo flight 1"]
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert snapshot.error["message"] == "no seats left"
    assert "compensation_failures" not in snapshot.error
    assert applied_steps(squid, snapshot.run_id)[4:] == [
        "pay:1",
        "compensate:car:1",
        "compensate:hotel:1",
        "compensate:flight:1",
    ]
    assert len(facts(squid, snapshot.run_id, "run_terminal")) == 1
    assert not snapshot.anomalies


def test_one_compensation_is_planned_when_the_one_before_it_is_done(make_squid: MakeSquid, clock: VirtualClock) -> None:
    travel = Travel()
    travel.book("flight")
    travel.book("hotel")
    travel.wf.step(name="pay")(broken)
    squid = make_squid(travel.chain("flight", "hotel", "pay"))
    run_id = squid.start("trip").run_id
    for expected in ([], [], ["compensate:hotel:1:1"], ["compensate:hotel:1:1", "compensate:flight:1:1"]):
        squid.execute_next()
        assert [key for key in planned_steps(squid, run_id) if key.startswith("compensate")] == expected
        assert not squid.inspect_run(run_id).terminal
    squid.execute_next()
    assert squid.inspect_run(run_id).status == "failed"


def test_a_compensation_takes_payload_outputs_and_the_result_it_undoes(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    seen: list[tuple[str, str, str]] = []

    def cancel_hotel(city: str, flight: str, hotel: str) -> None:
        seen.append((city, flight, hotel))

    travel = Travel()
    travel.book("flight", output="flight")
    travel.book("hotel", cancel_hotel)
    travel.wf.step(name="pay")(broken)
    complete_run(make_squid(travel.chain("flight", "hotel", "pay")), clock, "trip", {"city": "Rome"})
    assert seen == [("Rome", "flight in Rome, visit 1", "hotel in Rome, visit 1")]


def test_every_visit_of_a_loop_is_undone_with_its_own_result(make_squid: MakeSquid, clock: VirtualClock) -> None:
    undone: list[str] = []

    def cancel(hop: str) -> None:
        undone.append(hop)

    travel = Travel(entry="hop")
    travel.book("hop", cancel, max_visits=3)
    travel.book("rest")
    travel.wf.route("hop", to="rest")
    travel.wf.route("rest", to="hop", when=path("hop") != "hop in Oslo, visit 3")
    travel.wf.route("rest", to="fail")
    squid = make_squid(travel.wf)
    snapshot = complete_run(squid, clock, "trip")
    assert snapshot.status == "failed"
    assert undone == [f"hop in Oslo, visit {n}" for n in (3, 2, 1)]
    compensated = [step for step in applied_steps(squid, snapshot.run_id) if step.startswith("compensate")]
    assert compensated == [f"compensate:{name}:{n}" for n in (3, 2, 1) for name in ("rest", "hop")]
    assert not snapshot.anomalies


def test_a_compensation_that_fails_is_noted_and_the_others_go_on(make_squid: MakeSquid, clock: VirtualClock) -> None:
    travel = Travel()
    travel.book("flight")
    travel.book("hotel", travel.undoing("hotel", fail=99))
    travel.wf.step(name="pay")(broken)
    squid = make_squid(travel.chain("flight", "hotel", "pay"))
    snapshot = complete_run(squid, clock, "trip")
    assert travel.diary[-1] == "undo flight 1"
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert snapshot.error["message"] == "no seats left", "why the run failed stays what it was"
    (failure,) = snapshot.error["compensation_failures"]
    assert (failure["step"], failure["error"]["message"]) == ("hotel", "cannot undo hotel")
    assert not snapshot.anomalies


def test_a_compensation_is_retried_as_its_step_is(make_squid: MakeSquid, clock: VirtualClock) -> None:
    travel = Travel()
    travel.book("hotel", travel.undoing("hotel", fail=2), retry=Retry(max_attempts=3, initial=seconds(5)))
    travel.wf.step(name="pay")(broken)
    squid = make_squid(travel.chain("hotel", "pay"))
    snapshot = complete_run(squid, clock, "trip")
    assert travel.diary == ["hotel 1", "undo hotel 1"]
    undos = [key for key in planned_steps(squid, snapshot.run_id) if key.startswith("compensate")]
    assert undos == [f"compensate:hotel:1:{n}" for n in (1, 2, 3)]
    assert snapshot.error is not None
    assert "compensation_failures" not in snapshot.error


def test_a_compensation_may_defer_itself(make_squid: MakeSquid, clock: VirtualClock) -> None:
    tries: list[int] = []

    def undo() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise Defer(after=seconds(60))

    travel = Travel()
    travel.book("hotel", undo)
    travel.wf.step(name="pay")(broken)
    squid = make_squid(travel.chain("hotel", "pay"))
    assert complete_run(squid, clock, "trip").status == "failed"
    assert len(tries) == 3


def test_a_step_that_failed_is_not_undone(make_squid: MakeSquid, clock: VirtualClock) -> None:
    travel = Travel()
    travel.wf.step(name="pay", compensate=travel.undoing("pay"))(broken)
    squid = make_squid(travel.chain("pay"))
    snapshot = complete_run(squid, clock, "trip")
    assert (snapshot.status, travel.diary) == ("failed", [])


def test_a_failure_that_an_error_route_makes_good_undoes_nothing(make_squid: MakeSquid, clock: VirtualClock) -> None:
    travel = Travel()
    travel.book("hotel")
    travel.wf.step(name="pay")(broken)
    travel.wf.route("hotel", to="pay")
    travel.wf.route("pay", to="complete")
    travel.wf.route("pay", on="error", to="complete", recovery="undo")
    squid = make_squid(travel.wf)
    assert complete_run(squid, clock, "trip").status == "completed"
    assert travel.diary == ["hotel 1"]


def test_a_rejection_that_ends_the_run_undoes_too(make_squid: MakeSquid, clock: VirtualClock) -> None:
    travel = Travel()
    travel.book("hotel")
    travel.wf.approval("review")
    travel.wf.route("hotel", to="review")
    travel.wf.route("review", to="complete")
    travel.wf.route("review", on="error", to="fail")
    squid = make_squid(travel.wf)
    run_id = squid.start("trip").run_id
    drain(squid)
    squid.reject(run_id, actor="ada", comment="too dear")
    snapshot = finish(squid, clock, run_id)
    assert travel.diary == ["hotel 1", "undo hotel 1"]
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert (snapshot.error["code"], snapshot.error["decision"]["comment"]) == ("rejected", "too dear")


def test_a_cancelled_run_undoes_nothing_and_a_cancel_ends_the_undoing(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    travel = Travel()
    travel.book("flight")
    travel.book("hotel")
    travel.wf.step(name="pay")(broken)
    squid = make_squid(travel.chain("flight", "hotel", "pay"))
    early, late = (squid.start("trip").run_id for _ in range(2))
    squid.cancel(early)
    for _ in range(4):
        squid.execute_next()
    squid.cancel(late)
    assert squid.execute_next() is None
    assert travel.diary == ["flight 1", "hotel 1", "undo hotel 1"]
    assert squid.inspect_run(late).status == "cancelled"
    assert not unit(squid, late).anomalies


# --- while siblings are at work, in workflows of dependencies ------------------------------------------------------


def parallel(travel: Travel, **steps: Callable[..., Any]) -> Workflow:
    """Build a flight, then other steps beside each other, then a join."""
    travel.book("flight")
    for name, function in steps.items():
        travel.wf.step(name=name, after=["flight"], compensate=travel.undoing(name))(function)
    travel.wf.step(name="join", after=list(steps))(nothing)
    return travel.wf


def settle(squid: Squid, claim: Any, error: dict[str, Any] | None = None) -> None:
    agent = squid.dispatch_agent()
    if error is None:
        agent.complete(claim, claim.attempt.step)
    else:
        agent.fail(claim, error)


def test_a_sibling_that_ends_after_the_failure_is_undone_as_well_and_the_run_waits_for_it(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    travel = Travel()
    squid = make_squid(parallel(travel, hotel=nothing, car=nothing))
    run_id = squid.start("trip").run_id
    squid.execute_next()
    claims = {claim.attempt.step: claim for claim in squid.dispatch_agent().claim_many("w", 5)}
    settle(squid, claims["hotel"], {"message": "full"})
    assert planned_steps(squid, run_id)[-1] == "compensate:flight:1:1", "undoing begins at once"
    settle(squid, claims["car"])
    assert not squid.inspect_run(run_id).terminal
    assert planned_steps(squid, run_id)[-1] == "compensate:flight:1:1", "one after another"
    assert drain(squid) == 2
    assert travel.diary == ["flight 1", "undo flight 1", "undo car 1"]
    snapshot = squid.inspect_run(run_id)
    assert snapshot.status == "failed"
    assert snapshot.error == {"message": "full"}
    assert "join:1" not in applied_steps(squid, run_id)
    assert not snapshot.anomalies


def test_the_run_does_not_end_before_its_slow_sibling_has(make_squid: MakeSquid, clock: VirtualClock) -> None:
    travel = Travel()
    squid = make_squid(parallel(travel, hotel=nothing, car=nothing))
    run_id = squid.start("trip").run_id
    squid.execute_next()
    claims = {claim.attempt.step: claim for claim in squid.dispatch_agent().claim_many("w", 5)}
    settle(squid, claims["hotel"], {"message": "full"})
    drain(squid)
    assert not squid.inspect_run(run_id).terminal
    settle(squid, claims["car"], {"message": "crashed"})
    snapshot = squid.inspect_run(run_id)
    assert snapshot.status == "failed"
    assert snapshot.error == {"message": "full"}, "the first failure says why"
    assert not snapshot.anomalies


def test_two_siblings_that_fail_in_one_commit_are_one_failure(make_squid: MakeSquid, clock: VirtualClock) -> None:
    travel = Travel()
    squid = make_squid(parallel(travel, hotel=nothing, car=nothing))
    run_id = squid.start("trip").run_id
    squid.execute_next()
    held = squid.dispatch_agent().claim_many("w", 5)
    outcomes = [Settlement(claimed.claim.ref, Failed({"message": claimed.attempt.step})) for claimed in held]
    assert [answer.error for answer in settle_all(squid.runtime, outcomes).answers] == [None, None]
    snapshot = finish(squid, clock, run_id)
    assert snapshot.error == {"message": held[0].attempt.step}
    assert travel.diary == ["flight 1", "undo flight 1"]
    assert len(facts(squid, run_id, "run_terminal")) == 1
    assert not snapshot.anomalies


def test_without_anything_to_undo_the_first_failure_ends_the_run_and_fences_its_siblings(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    wf = Workflow("trip", payload=Trip)
    wf.step(name="flight")(nothing)
    wf.step(name="hotel", after=["flight"])(nothing)
    wf.step(name="car", after=["flight"])(nothing)
    squid = make_squid(wf)
    run_id = squid.start("trip").run_id
    squid.execute_next()
    hotel, _ = squid.dispatch_agent().claim_many("w", 5)
    settle(squid, hotel, {"message": "full"})
    snapshot = squid.inspect_run(run_id)
    assert snapshot.status == "failed"
    assert [fact.type for fact in facts(squid, run_id) if fact.type in ("run_fenced", "run_terminal")] in (
        ["run_fenced", "run_terminal"],
        ["run_terminal", "run_fenced"],  # where a commit cannot span threads
    )
    assert squid.execute_next() is None
    assert not unit(squid, run_id).anomalies


def test_a_final_failure_undoes_once_however_often_the_step_was_tried(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    travel = Travel()
    travel.book("hotel")
    tries: list[int] = []

    def pay() -> None:
        tries.append(1)
        raise Fail("declined") if len(tries) == 2 else RuntimeError("busy")

    travel.wf.step(name="pay", retry=Retry(max_attempts=5))(pay)
    squid = make_squid(travel.chain("hotel", "pay"))
    complete_run(squid, clock, "trip")
    assert (len(tries), travel.diary) == (2, ["hotel 1", "undo hotel 1"])
