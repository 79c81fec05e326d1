"""Workflows of routes at run time: what follows an outcome, which condition decides, and where a loop ends."""

from typing import Any

import pytest
from pydantic import BaseModel

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.workflow import Fail, InvalidWorkflow, StepContext, Workflow, path
from tests.runtime.runs import MakeSquid, applied_steps, complete_run, drain, facts, finish, transitions, unit


class Order(BaseModel):
    order_id: str
    amount: int = 1


def orders(**options: Any) -> Workflow:
    return Workflow("orders", payload=Order, **options)


def test_steps_take_payload_and_earlier_outputs_by_name(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = orders()

    @wf.step(output="invoice")
    def load(order_id: str, amount: int) -> dict[str, Any]:
        return {"order": order_id, "total": amount * 2}

    @wf.step
    async def charge(invoice: dict[str, Any], ctx: StepContext) -> list[Any]:
        return [invoice["total"], dict(ctx.state), ctx.step, ctx.attempt]

    wf.route(load, to=charge)
    wf.route(charge, to="complete")
    squid = make_squid(wf)
    snapshot = complete_run(squid, clock, "orders", {"order_id": "o-1", "amount": 4})
    invoice = {"order": "o-1", "total": 8}
    assert snapshot.status == "completed"
    assert snapshot.outputs == {
        "invoice": invoice,
        "charge": [8, {"order_id": "o-1", "amount": 4, "invoice": invoice}, "charge", 1],
    }
    assert transitions(squid, snapshot.run_id) == [("load", "ok", "charge"), ("charge", "ok", "complete")]


def test_a_start_is_one_history_of_signal_start_plan_and_schedule(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = orders(version="7")

    @wf.step
    def load(order_id: str) -> str:
        return order_id

    wf.route(load, to="complete")
    squid = make_squid(wf)
    run_id = squid.start("orders", {"order_id": "o-1"}, actor="ada", comment="asap", priority=3).run_id
    signal, started, planned = (facts(squid, run_id, name)[0] for name in _ON_THE_RUN)
    assert (signal.signal_type, signal.actor, signal.comment) == ("start_run", "ada", "asap")
    assert signal.payload == {"workflow": "orders", "trigger": "manual", "input": {"order_id": "o-1"}}
    assert (started.workflow, started.trigger, started.queue, started.priority) == ("orders", "manual", "default", 3)
    assert started.input == {"order_id": "o-1", "amount": 1}, "with defaults"
    assert (started.definition_version, started.definition_fingerprint) == ("7", wf.freeze().fingerprint)
    (runnable,) = planned.runnables
    assert runnable.runnable_key == f"{run_id}:load:1:1"
    assert runnable.idempotency_key == f"{run_id}:load:1"
    scheduled = facts(squid, run_id, "attempt_scheduled")[0]
    assert (scheduled.runnable_key, scheduled.input) == (runnable.runnable_key, {"order_id": "o-1"})
    assert (scheduled.workflow, scheduled.definition_version) == ("orders", "7")
    assert scheduled.definition_fingerprint == started.definition_fingerprint
    assert {fact.occurred_at for fact in facts(squid, run_id)} == {clock.now()}


_ON_THE_RUN = ("run_signal_received", "run_started", "runnables_planned")


def conditional() -> Workflow:
    wf = orders()

    @wf.step
    def rate(amount: int) -> dict[str, int]:
        return {"score": amount}

    for name in ("high", "middle", "low"):
        wf.step(name=name)(lambda: None)
        wf.route(name, to="complete")
    wf.route(rate, to="low")  # the fallback, wherever it stands
    wf.route(rate, to="high", when=path("rate.score") > 100)
    wf.route(rate, to="middle", when=path("rate.score") > 10)
    wf.route(rate, to="fail", when=path("rate.score") == 13)
    return wf


def test_conditions_are_tried_in_order_of_declaration_and_the_fallback_last(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(conditional())
    chosen = {}
    for amount in (500, 50, 13, 5):
        snapshot = complete_run(squid, clock, "orders", {"order_id": "o", "amount": amount})
        chosen[amount] = applied_steps(squid, snapshot.run_id)[1]
    assert chosen == {500: "high:1", 50: "middle:1", 13: "middle:1", 5: "low:1"}


def test_the_decision_that_was_taken_is_on_record_with_its_condition(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(conditional())
    snapshot = complete_run(squid, clock, "orders", {"order_id": "o", "amount": 50})
    decision = facts(squid, snapshot.run_id, "runnable_applied")[0].transition
    condition = {"path": ["rate", "score"], "operator": ">", "value": 10}
    assert decision == {"from": "rate", "on": "ok", "to": "middle", "condition": condition}


def test_a_route_to_fail_ends_the_run_as_failed_and_says_so(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = orders()

    @wf.step
    def rate(amount: int) -> int:
        return amount

    wf.route(rate, to="fail", when=path("rate") > 10)
    wf.route(rate, to="complete")
    squid = make_squid(wf)
    snapshot = complete_run(squid, clock, "orders", {"order_id": "o", "amount": 50})
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert snapshot.error["code"] == "routed_to_fail"
    assert "rate" in snapshot.error["message"]
    assert snapshot.outputs == {"rate": 50}, "the step itself has succeeded"


def failing(*others: str) -> Workflow:
    wf = orders()

    @wf.step
    def charge(order_id: str) -> str:
        if order_id == "bad value":
            raise ValueError("no such order")
        if order_id == "final":
            raise Fail("card declined", details={"reason": "stolen", "card_token": "tok_1"})
        raise KeyError(order_id)

    wf.route(charge, to="complete")
    for name in others:
        wf.step(name=name)(lambda: None)
        wf.route(name, to="complete")
    return wf


def test_error_routes_are_chosen_by_the_error_in_order_and_the_decision_holds_it(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    wf = failing("ask_again", "report", "apologise")
    wf.route("charge", on="error", to="apologise")
    wf.route("charge", on="error", to="ask_again", when=path("error.type") == "ValueError", recovery="compensation")
    wf.route("charge", on="error", to="report", when=path("error.details.reason") == "stolen", recovery="undo")
    squid = make_squid(wf)
    decisions = {}
    for order_id in ("bad value", "final", "other"):
        snapshot = complete_run(squid, clock, "orders", {"order_id": order_id})
        applied = facts(squid, snapshot.run_id, "runnable_applied")[0]
        decisions[order_id] = (snapshot.status, applied.transition["to"], applied.transition.get("recovery"))
        assert applied.result is None
        assert applied.transition["on"] == "error"
        assert applied.transition["error"] == facts(squid, snapshot.run_id, "attempt_failed")[0].error
    assert decisions == {
        "bad value": ("completed", "ask_again", "compensation"),
        "final": ("completed", "report", "undo"),
        "other": ("completed", "apologise", None),
    }


def test_a_step_that_failed_has_no_output(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = failing()

    @wf.step
    def apologise(ctx: StepContext, charge: str = "nothing was charged") -> list[Any]:
        return [charge, "charge" in ctx.state]

    wf.route("charge", on="error", to=apologise)
    wf.route(apologise, to="complete")
    snapshot = complete_run(make_squid(wf), clock, "orders", {"order_id": "bad value"})
    assert snapshot.outputs == {"apologise": ["nothing was charged", False]}


def test_an_error_is_journalled_with_type_message_and_traceback_and_without_secrets(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(failing())
    plain = complete_run(squid, clock, "orders", {"order_id": "bad value"})
    error = facts(squid, plain.run_id, "run_terminal")[0].error
    assert (error["type"], error["message"]) == ("ValueError", "no such order")
    assert "test_routes.py" in error["traceback"]
    final = complete_run(squid, clock, "orders", {"order_id": "final"})
    for name in ("attempt_failed", "run_terminal"):
        error = facts(squid, final.run_id, name)[0].error
        assert error["details"] == {"reason": "stolen", "card_token": "[REDACTED]"}
    assert not any("tok_1" in repr(entry) for entry in squid.journal.read_run(final.run_id))


def test_without_an_error_route_a_failure_ends_the_run(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(failing())
    snapshot = complete_run(squid, clock, "orders", {"order_id": "bad value"})
    assert (snapshot.status, snapshot.terminal_status) == ("failed", "failed")
    assert transitions(squid, snapshot.run_id) == [("charge", "error", "fail")]
    assert not snapshot.anomalies


def test_an_error_route_may_complete_the_run(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = failing()
    wf.route("charge", on="error", to="complete")
    squid = make_squid(wf)
    assert complete_run(squid, clock, "orders", {"order_id": "bad value"}).status == "completed"


def poll(max_visits: int = 3) -> Workflow:
    wf = Workflow("orders", payload=Order, entry="ask")
    seen: list[int] = []

    @wf.step(max_visits=max_visits)
    def ask(amount: int) -> dict[str, int]:
        seen.append(amount)
        return {"answers": len(seen)}

    @wf.step
    def digest(ask: dict[str, int]) -> int:
        return ask["answers"]

    wf.route(ask, to=digest)
    wf.route(digest, to=ask, when=path("ask.answers") < 3)
    wf.route(digest, to="complete")
    return wf


def test_a_loop_visits_a_step_again_with_the_latest_outputs(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(poll())
    snapshot = complete_run(squid, clock, "orders", {"order_id": "o"})
    assert snapshot.status == "completed"
    assert applied_steps(squid, snapshot.run_id) == ["ask:1", "digest:1", "ask:2", "digest:2", "ask:3", "digest:3"]
    results = [fact.result for fact in facts(squid, snapshot.run_id, "runnable_applied")]
    assert results == [{"answers": 1}, 1, {"answers": 2}, 2, {"answers": 3}, 3]
    assert snapshot.outputs == {"ask": {"answers": 3}, "digest": 3}


def test_a_loop_ends_when_its_visits_are_spent_and_the_run_says_which_step(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(poll(max_visits=2))
    snapshot = complete_run(squid, clock, "orders", {"order_id": "o"})
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert "'ask'" in snapshot.error["message"]
    assert "max_visits" in snapshot.error["message"]
    assert applied_steps(squid, snapshot.run_id) == ["ask:1", "digest:1", "ask:2", "digest:2"]
    assert not snapshot.anomalies


def test_an_error_route_that_cannot_be_entered_keeps_the_error_that_led_there(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    wf = Workflow("orders", payload=Order, entry="charge")

    @wf.step(max_visits=1)
    def charge(order_id: str) -> None:
        raise ValueError("declined")

    wf.route(charge, to="complete")
    wf.route(charge, on="error", to=charge)
    squid = make_squid(wf)
    snapshot = complete_run(squid, clock, "orders", {"order_id": "o"})
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert "max_visits" in snapshot.error["message"]
    assert snapshot.error["cause"]["message"] == "declined"


def test_a_step_that_loops_to_itself_is_counted_by_visits_not_attempts(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    wf = Workflow("orders", payload=Order, entry="ask")
    keys: list[tuple[str, str, int]] = []

    @wf.step(max_visits=3)
    def ask(ctx: StepContext) -> int:
        keys.append((ctx.runnable_key, ctx.idempotency_key, ctx.fencing_token))
        return len(keys)

    wf.route(ask, to=ask, when=path("ask") < 3)
    wf.route(ask, to="complete")
    squid = make_squid(wf)
    run_id = complete_run(squid, clock, "orders", {"order_id": "o"}).run_id
    assert keys == [(f"{run_id}:ask:{n}:1", f"{run_id}:ask:{n}", 1) for n in (1, 2, 3)]


def test_runs_do_not_see_each_other(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(conditional())
    receipts = squid.start_many("orders", [{"order_id": str(n), "amount": n} for n in (1, 50, 200)])
    drain(squid)
    outputs = [finish(squid, clock, receipt.run_id).outputs["rate"] for receipt in receipts]
    assert outputs == [{"score": 1}, {"score": 50}, {"score": 200}]
    assert all(not unit(squid, receipt.run_id).anomalies for receipt in receipts)


def test_only_error_routes_may_ask_about_the_error() -> None:
    wf = failing()
    wf.route("charge", to="fail", when=path("error.type") == "ValueError")
    with pytest.raises(InvalidWorkflow, match="'error' is neither a payload field nor an output"):
        wf.check()
