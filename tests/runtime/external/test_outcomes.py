"""Steps that another system does: they wait without a worker, and the first outcome that is signalled counts, once."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from squid_dagster import testing
from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.lanes import waiting_in_lanes
from squid_dagster.protocol.errors import (
    ConflictingCommand,
    IncompatibleDefinition,
    InvalidArgument,
    InvalidTransition,
    NotFound,
)
from squid_dagster.runtime.commands.cloudevents import to_cloudevent
from squid_dagster.runtime.commands.external_outcomes import launch_of, waiting_externals
from squid_dagster.runtime.commands.signals import Signal
from squid_dagster.testing import Crashed, InjectedStorage, Plan, execute_until_blocked
from squid_dagster.workflow import InvalidInput, Retry, StepContext, Workflow
from squid_dagster.workflow.external_request import request_of
from tests.facts import T0
from tests.runtime.runs import MakeSquid, applied_steps, claims, drain, facts, run_facts, transitions, unit

MINUTE = timedelta(minutes=1)


class Order(BaseModel):
    day: str = "2026-11-16"
    amount: int = 3


def train_config(ctx: StepContext, amount: int) -> dict[str, Any]:
    return {"ops": {"train": {"config": {"amount": amount, "key": ctx.idempotency_key}}}}


def orders(**options: Any) -> Workflow:
    """One external step between two of workers."""
    workflow = Workflow("orders", payload=Order)

    @workflow.step
    def load(amount: int) -> int:
        return amount * 2

    workflow.external(
        "train", "dagster_job", job="train_model", run_config=train_config, partition_key_from="day", **options
    )

    @workflow.step
    def publish(train: dict[str, Any]) -> str:
        return str(train["model"])

    @workflow.step
    def apologise() -> None:
        return None

    workflow.route("load", to="train")
    workflow.route("train", to="publish")
    workflow.route("train", on="error", to="apologise")
    workflow.route("publish", to="complete")
    workflow.route("apologise", to="fail")
    return workflow


def started(squid: Squid, workflow: str = "orders") -> tuple[str, str]:
    """Start a run and let it come to its external step; give its id and the attempt that waits."""
    run_id = squid.start(workflow).run_id
    drain(squid)
    return run_id, f"{run_id}:train:1:1"


def done(run_id: str, key: str, *, idempotency_key: str | None = "dagster:1", **payload: Any) -> Signal:
    content = {"run_id": run_id, "runnable_key": key, "succeeded": True, "result": {"model": "m"}, **payload}
    return Signal(type="external_completed", payload=content, idempotency_key=idempotency_key)


def failed(run_id: str, key: str, idempotency_key: str = "dagster:1", **more: Any) -> Signal:
    content = {"succeeded": False, "result": None, "error": {"code": "boom", "message": "it broke"}, **more}
    return done(run_id, key, idempotency_key=idempotency_key, **content)


def waiting(squid: Squid, **options: Any) -> list[str]:
    return [each.attempt.runnable_key for each, _ in waiting_externals(squid.runtime, ["default"], **options)]


# --- refused ----------------------------------------------------------------------------------------------------------


def test_an_outcome_of_an_unknown_run_or_attempt_is_refused(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, _ = started(squid)
    with pytest.raises(NotFound, match="'nowhere'"):
        squid.apply_signal(done("nowhere", "nowhere:train:1:1"))
    with pytest.raises(NotFound, match="train:9:1"):
        squid.apply_signal(done(run_id, f"{run_id}:train:9:1"))


def test_a_step_of_a_worker_takes_no_signal(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id = squid.start("orders").run_id
    with pytest.raises(InvalidTransition, match=r"load:1:1.*worker"):
        squid.apply_signal(done(run_id, f"{run_id}:load:1:1"))
    assert squid.explain_run(run_id).step == "load"


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"succeeded": "yes"}, "succeeded"),
        ({"succeeded": None}, "succeeded"),
        ({"error": "text"}, "error"),
        ({"final": 1}, "final"),
        ({"token": "x"}, "token"),
        ({"runnable_key": 7}, "runnable_key"),
    ],
)
def test_a_payload_that_does_not_fit_names_the_field(
    make_squid: MakeSquid, payload: dict[str, Any], named: str
) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    before = len(facts(squid, run_id))
    with pytest.raises(InvalidArgument, match=named):
        squid.apply_signal(done(run_id, key, **payload))
    assert len(facts(squid, run_id)) == before


def test_a_start_without_an_id_is_refused(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    content: dict[str, Any] = {"run_id": run_id, "runnable_key": key, "launcher": "here"}
    with pytest.raises(InvalidArgument, match="external_run_id"):
        squid.apply_signal(Signal(type="external_started", payload=content))


def test_an_outcome_after_the_runs_end_is_refused_and_changes_nothing(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    squid.cancel(run_id)
    before = len(facts(squid, run_id))
    with pytest.raises(InvalidTransition, match="cancelled"):
        squid.apply_signal(done(run_id, key))
    assert len(facts(squid, run_id)) == before
    assert waiting(squid) == []


def test_a_second_outcome_under_another_key_is_refused(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    squid.apply_signal(done(run_id, key))
    with pytest.raises(InvalidTransition, match="first one stands"):
        squid.apply_signal(done(run_id, key, idempotency_key="dagster:2"))
    with pytest.raises(InvalidTransition, match="first one stands"):
        squid.apply_signal(done(run_id, key, idempotency_key=None))
    with pytest.raises(ConflictingCommand):
        squid.apply_signal(done(run_id, key, result={"model": "other"}))
    assert [fact.runnable_key for fact in facts(squid, run_id, "attempt_completed")] == [f"{run_id}:load:1:1", key]


def test_an_outcome_of_a_run_whose_definition_is_gone_is_refused(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    other = make_squid([])
    with pytest.raises(IncompatibleDefinition):
        other.apply_signal(done(run_id, key))
    assert waiting(other) == []
    assert waiting(squid) == [key]


def test_nobody_can_have_begun_a_retry_that_is_not_due(make_squid: MakeSquid) -> None:
    squid = make_squid(orders(retry=Retry(max_attempts=2, initial=MINUTE)))
    run_id, key = started(squid)
    squid.apply_signal(failed(run_id, key))
    with pytest.raises(InvalidTransition, match="not due before"):
        squid.apply_signal(done(run_id, f"{run_id}:train:1:2", idempotency_key="dagster:2"))


# --- what happens -----------------------------------------------------------------------------------------------------


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
    (found,) = waiting_in_lanes(squid.journal, ["default"], orders().freeze().external_keys)
    assert found.paused
    told = squid.explain_run(run_id)
    assert (told.reason, told.next_actions[0].action) == ("waiting_external", "resume_queue")
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


# --- launching --------------------------------------------------------------------------------------------------------


def test_the_request_is_made_of_the_journalled_input(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, _ = started(squid)
    ((found, step),) = waiting_externals(squid.runtime, ["default"])
    request = request_of(step, found.attempt)
    assert found.attempt.input == {"amount": 3, "day": "2026-11-16"}
    assert request.partition_key == "2026-11-16"
    assert request.run_config == {"ops": {"train": {"config": {"amount": 3, "key": f"{run_id}:train:1"}}}}


@pytest.mark.parametrize("given", [[1], float("nan"), {"a": object()}])
def test_a_run_config_that_is_none_says_so(make_squid: MakeSquid, given: Any) -> None:
    workflow = Workflow("bad")
    workflow.external("train", "dagster_job", job="j", run_config=lambda: given)
    squid = make_squid(workflow)
    squid.start("bad")
    ((found, step),) = waiting_externals(squid.runtime, ["default"])
    with pytest.raises(InvalidInput, match="run config of step 'train'"):
        request_of(step, found.attempt)


def test_explain_tells_what_is_waited_for_and_since_when_it_has_an_id(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(orders(deadline=timedelta(hours=2)))
    run_id, key = started(squid)
    told = squid.explain_run(run_id)
    assert (told.reason, told.step) == ("waiting_external", "train")
    assert "Dagster job 'train_model'" in told.summary
    assert [each.action for each in told.next_actions] == ["start_sensor", "cancel"]
    assert [each.type for each in told.evidence] == ["attempt_scheduled"]
    assert told.details["deadline"]["state"] == "on_time"

    asked: dict[str, Any] = {"run_id": run_id, "runnable_key": key, "launcher": "storage-1"}
    squid.apply_signal(Signal(type="external_requested", payload=asked, idempotency_key="one"))
    assert squid.apply_signal(Signal(type="external_requested", payload=asked, idempotency_key="one")).repeated
    assert "no run of it was seen" in squid.explain_run(run_id).summary
    begun = {**asked, "external_run_id": "d-77"}
    squid.apply_signal(Signal(type="external_started", payload=begun))
    clock.advance(timedelta(hours=3))
    told = squid.explain_run(run_id)
    assert "'d-77'" in told.summary
    assert told.details["external_run_id"] == "d-77"
    assert told.details["deadline"]["state"] == "overdue"
    assert [each.type for each in told.evidence].count("run_signal_received") == 2
    nodes = {node.id: node for node in squid.inspect_run_graph(run_id).nodes}
    assert (nodes["train"].kind, nodes["train"].status, nodes["train"].current) == ("external", "running", True)
    assert any("begun elsewhere" in event.summary for event in squid.inspect_run_timeline(run_id))
    ((found, _),) = waiting_externals(squid.runtime, ["default"])
    launch = launch_of(squid.runtime, found.attempt)
    assert launch is not None
    assert (launch.launcher, launch.count, launch.external_run_id) == ("storage-1", 1, "d-77")


def test_a_request_for_what_nobody_waits_for_is_refused(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    squid.apply_signal(done(run_id, key))
    asked: dict[str, Any] = {"run_id": run_id, "runnable_key": key, "launcher": "storage-1"}
    with pytest.raises(InvalidTransition, match="completed"):
        squid.apply_signal(Signal(type="external_requested", payload=asked))


def test_a_cancelled_run_leaves_nothing_claimed_or_waiting(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, _ = started(squid)
    squid.cancel(run_id)
    assert waiting(squid) == []
    assert squid.inspect_run(run_id).status == "cancelled"
    assert not list(unit(squid, run_id).dispatch.open_attempts())


def test_a_replay_asks_for_the_work_again(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    squid.apply_signal(done(run_id, key))
    drain(squid)
    again = squid.replay(run_id).run_id
    drain(squid)
    assert waiting(squid) == [f"{again}:train:1:1"]


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan_of",
    [lambda at: Plan(crash_before=at), lambda at: Plan(crash_after=at)],
    ids=["right before", "right after"],
)
@pytest.mark.parametrize("repeated", [True, False], ids=["the signal comes again", "recovery comes"])
def test_a_crash_at_any_append_of_an_outcome_loses_and_doubles_nothing(
    make_squid: MakeSquid, storage: Storage, plan_of: Callable[[int], Plan], repeated: bool
) -> None:
    squid = make_squid(orders())
    crashes = 0
    while True:
        run_id, key = started(squid)
        injected = InjectedStorage(storage, plan_of(crashes + 1))
        try:
            Squid(injected, orders()).apply_signal(done(run_id, key))
        except Crashed:
            crashes += 1
        else:
            break
        if repeated:
            squid.apply_signal(done(run_id, key))
        squid.recover()
        if waiting(squid):  # nothing was written before the crash: whoever has the outcome still has it
            squid.apply_signal(done(run_id, key))
        drain(squid)
        assert squid.inspect_run(run_id).status == "completed"
        assert len(facts(squid, run_id, "attempt_completed")) == 3
        assert applied_steps(squid, run_id) == ["load:1", "train:1", "publish:1"]
        if repeated:
            assert squid.apply_signal(done(run_id, key)).repeated
    assert crashes == (1 if storage.atomic_across_threads else 3)


def test_of_two_outcomes_at_once_one_counts_and_the_other_is_told(make_squid: MakeSquid, storage: Storage) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    other = done(run_id, key, idempotency_key="dagster:2", result={"model": "other"})
    injected = InjectedStorage(storage, Plan(meanwhile={1: lambda: squid.apply_signal(other)}))
    with pytest.raises(InvalidTransition, match="first one stands"):
        Squid(injected, orders()).apply_signal(done(run_id, key))
    drain(squid)
    assert squid.inspect_run(run_id).outputs["publish"] == "other"
