"""Steps that another system does: they wait without a worker, and the first outcome that is signalled counts, once."""

from datetime import timedelta
from typing import Any

from squid_dagster import testing, to_cloudevent
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.lanes import waiting_in_lanes
from squid_dagster.runtime.commands.external_outcomes import waiting_externals
from squid_dagster.testing import execute_until_blocked
from squid_dagster.workflow import Retry, Workflow
from tests.facts import T0
from tests.runtime.external.orders import MINUTE, Order, done, failed, orders, started, waiting
from tests.runtime.runs import MakeSquid, applied_steps, claims, drain, facts, run_facts, transitions, unit


def test_no_worker_is_held_and_none_can_claim_it(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(orders())
    run_id = squid.start("orders").run_id
    report = squid.worker(until_idle=True)
    assert (report.completed, report.claimed) == (1, 1)
    clock.advance(timedelta(days=3))
    assert squid.worker(until_idle=True).claimed == 0
    assert squid.dispatch_agent().claim_next("anybody") is None
    assert waiting(squid) == [f"{run_id}:train:1:1"]
    squid.recover()
    assert squid.recover().repaired == 0


def test_the_outcome_goes_on_as_any_steps_does(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    receipt = squid.apply_signal(to_cloudevent(done(run_id, key, external_run_id="d-1"), "e-1", T0))
    assert not receipt.repeated
    assert waiting(squid) == []
    drain(squid)
    snapshot = squid.inspect_run(run_id)
    assert snapshot.status == "completed"
    assert snapshot.outputs["train"] == {"model": "m"}
    assert snapshot.outputs["publish"] == "m"
    assert applied_steps(squid, run_id) == ["load:1", "train:1", "publish:1"]
    (claimed,) = [fact for fact in facts(squid, run_id, "attempt_claimed") if fact.runnable_key == key]
    assert claimed.owner_id == "external:d-1"
    assert len(claims(squid)) == 3


def test_a_repeated_outcome_gives_the_first_receipt_even_after_the_end(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    first = squid.apply_signal(done(run_id, key))
    drain(squid)
    again = squid.apply_signal(done(run_id, key))
    assert again.repeated
    assert again.received_at == first.received_at
    assert run_facts(squid, run_id).count("run_signal_received") == 2


def test_a_failure_is_retried_as_the_step_says_and_then_follows_the_error_route(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(orders(retry=Retry(max_attempts=2, initial=MINUTE)))
    run_id, key = started(squid)
    squid.apply_signal(failed(run_id, key, error={"message": "it broke", "api_key": "hunter2"}))
    assert waiting(squid) == []
    assert squid.explain_run(run_id).reason == "retry_scheduled"
    clock.advance(MINUTE)
    second = f"{run_id}:train:1:2"
    assert waiting(squid) == [second]
    squid.apply_signal(failed(run_id, second, "dagster:2"))
    drain(squid)
    assert squid.inspect_run(run_id).status == "failed"
    assert ("train", "error", "apologise") in transitions(squid, run_id)
    assert "hunter2" not in repr(facts(squid, run_id))


def test_a_final_failure_is_not_retried(make_squid: MakeSquid) -> None:
    squid = make_squid(orders(retry=Retry(max_attempts=9, initial=MINUTE)))
    run_id, key = started(squid)
    squid.apply_signal(failed(run_id, key, final=True))
    assert squid.explain_run(run_id).step == "apologise"


def test_a_failure_without_a_word_still_says_what_happened(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    squid.apply_signal(failed(run_id, key, error=None))
    (fact,) = facts(squid, run_id, "attempt_failed")
    assert fact.error["code"] == "external_failed"


def test_a_result_that_is_too_large_fails_the_step(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    squid.apply_signal(done(run_id, key, result="x" * 1_100_000))
    (fact,) = facts(squid, run_id, "attempt_failed")
    assert fact.error["code"] == "result_too_large"


def test_externals_run_beside_each_other_and_are_joined(make_squid: MakeSquid) -> None:
    workflow = Workflow("fan", payload=Order)
    workflow.external("left", "dagster_job", job="a")
    workflow.external("right", "dagster_assets", assets=["raw/orders"])

    @workflow.step
    def join(left: dict[str, Any], right: dict[str, Any]) -> list[Any]:
        return [left["n"], right["n"]]

    squid = make_squid(workflow)
    run_id = squid.start("fan").run_id
    keys = waiting(squid)
    assert keys == [f"{run_id}:left:1:1", f"{run_id}:right:1:1"]
    assert waiting(squid, limit=1) == keys[:1]
    place = waiting_externals(squid.runtime, ["default"], limit=1)[0][0].attempt.position
    if squid.journal.read_between(0, place)[-1].position == place:
        assert waiting(squid, after=place) == keys[1:]
    for number, key in enumerate(keys):
        squid.apply_signal(done(run_id, key, idempotency_key=f"dagster:{number}", result={"n": number}))
    drain(squid)
    assert squid.inspect_run(run_id).outputs["join"] == [0, 1]


def test_an_external_step_that_succeeded_is_undone_by_a_worker(make_squid: MakeSquid) -> None:
    workflow = Workflow("saga")
    undone: list[str] = []

    def drop(train: dict[str, Any]) -> None:
        undone.append(train["model"])

    workflow.external("train", "dagster_job", job="train_model", compensate=drop)

    @workflow.step(after="train")
    def publish() -> None:
        raise RuntimeError("no")

    squid = make_squid(workflow)
    run_id = squid.start("saga").run_id
    squid.apply_signal(done(run_id, f"{run_id}:train:1:1"))
    drain(squid)
    assert undone == ["m"]
    assert squid.inspect_run(run_id).status == "failed"


def test_a_paused_queue_is_told_and_keeps_no_outcome_out(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    squid.pause_queue("default")
    (external,) = waiting_in_lanes(squid.journal, ["default"], orders().freeze().external_keys)
    assert external.paused
    explanation = squid.explain_run(run_id)
    assert (explanation.reason, explanation.next_actions[0].action) == ("waiting_external", "resume_queue")
    squid.apply_signal(done(run_id, key))
    assert unit(squid, run_id).run.applied.keys() >= {key}


def test_the_testing_kit_goes_on_with_all_else_and_stops_where_only_another_system_can() -> None:
    workflow = Workflow("beside")
    workflow.external("train", "dagster_job", job="train_model")
    workflow.log("begin", "begin")
    workflow.wait("rest", timedelta(hours=1), after="begin")
    workflow.log("tell", "rested", after="rest")
    squid = testing.make_squid([workflow])
    run_id = squid.start("beside").run_id
    snapshot = execute_until_blocked(squid, run_id)
    assert (snapshot.status, snapshot.reason) == ("running", "waiting_external")
    assert snapshot.visible_attempts == ()
    assert applied_steps(squid, run_id) == ["begin:1", "rest:1", "tell:1"]
