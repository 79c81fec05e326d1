"""What another system is asked for: the request, its explanation, and its end with the run."""

from datetime import timedelta
from typing import Any

import pytest

from squid_dagster import Signal
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.errors import (
    InvalidTransition,
)
from squid_dagster.runtime.commands.external_outcomes import launch_of, waiting_externals
from squid_dagster.workflow import InvalidInput, Workflow
from squid_dagster.workflow.external_request import request_of
from tests.runtime.external.orders import done, orders, started, waiting
from tests.runtime.runs import MakeSquid, drain, unit


def test_the_request_is_made_of_the_journalled_input(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, _ = started(squid)
    ((external, step),) = waiting_externals(squid.runtime, ["default"])
    request = request_of(step, external.attempt)
    assert external.attempt.input == {"amount": 3, "day": "2026-11-16"}
    assert request.partition_key == "2026-11-16"
    assert request.run_config == {"ops": {"train": {"config": {"amount": 3, "key": f"{run_id}:train:1"}}}}


@pytest.mark.parametrize("given", [[1], float("nan"), {"a": object()}])
def test_a_run_config_that_is_none_says_so(make_squid: MakeSquid, given: Any) -> None:
    workflow = Workflow("bad")
    workflow.external("train", "dagster_job", job="j", run_config=lambda: given)
    squid = make_squid(workflow)
    squid.start("bad")
    ((external, step),) = waiting_externals(squid.runtime, ["default"])
    with pytest.raises(InvalidInput, match="run config of step 'train'"):
        request_of(step, external.attempt)


def test_explain_tells_what_is_waited_for_and_since_when_it_has_an_id(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(orders(deadline=timedelta(hours=2)))
    run_id, key = started(squid)
    explanation = squid.explain_run(run_id)
    assert (explanation.reason, explanation.step) == ("waiting_external", "train")
    assert "Dagster job 'train_model'" in explanation.summary
    assert [proposal.action for proposal in explanation.next_actions] == ["start_sensor", "cancel"]
    assert [fact.type for fact in explanation.evidence] == ["attempt_scheduled"]
    assert explanation.details["deadline"]["state"] == "on_time"

    asked: dict[str, Any] = {"run_id": run_id, "runnable_key": key, "launcher": "storage-1"}
    squid.apply_signal(Signal(type="external_requested", payload=asked, idempotency_key="one"))
    assert squid.apply_signal(Signal(type="external_requested", payload=asked, idempotency_key="one")).repeated
    assert "no run of it was seen" in squid.explain_run(run_id).summary
    begun = {**asked, "external_run_id": "d-77"}
    squid.apply_signal(Signal(type="external_started", payload=begun))
    clock.advance(timedelta(hours=3))
    explanation = squid.explain_run(run_id)
    assert "'d-77'" in explanation.summary
    assert explanation.details["external_run_id"] == "d-77"
    assert explanation.details["deadline"]["state"] == "overdue"
    assert [fact.type for fact in explanation.evidence].count("run_signal_received") == 2
    nodes = {node.id: node for node in squid.inspect_run_graph(run_id).nodes}
    assert (nodes["train"].kind, nodes["train"].status, nodes["train"].current) == ("external", "running", True)
    assert any("begun elsewhere" in event.summary for event in squid.inspect_run_timeline(run_id))
    ((external, _),) = waiting_externals(squid.runtime, ["default"])
    launch = launch_of(squid.runtime, external.attempt)
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
