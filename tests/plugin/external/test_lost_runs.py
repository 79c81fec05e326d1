"""Dagster forgets runs, or the run is cancelled: work is launched again as the step says, and never done twice."""

from datetime import timedelta

import dagster as dg
import pytest

from squid_dagster.plugin.names import ABANDONED_TAG
from squid_dagster.workflow import Retry
from tests.plugin.external.definitions import TRAINED
from tests.plugin.external.deployment import DONE, Deploy, one_job
from tests.runtime.runs import facts

# --- Dagster forgets --------------------------------------------------------------------------------------------------


def test_a_request_that_never_became_a_run_is_made_again_under_the_same_key(deploy: Deploy) -> None:
    for on_lost in ("relaunch", "fail"):
        deployment = deploy(one_job(on_lost=on_lost))
        run_id = deployment.start()
        (first,) = deployment.evaluate()  # the daemon dies before it has stored the tick
        (second,) = deployment.evaluate()
        assert first.run_key == second.run_key
        assert deployment.launch(second) is not None
        assert deployment.launch(first) is None
        deployment.tick()
        assert deployment.status(run_id) == DONE


def test_a_run_that_was_created_and_never_launched_is_asked_for_again(deploy: Deploy) -> None:
    deployment = deploy(one_job())
    deployment.start()
    (request,) = deployment.evaluate()
    job = deployment.repository.get_job("train_model")
    deployment.instance.create_run_for_job(
        job, run_config=request.run_config, tags=request.tags, status=dg.DagsterRunStatus.NOT_STARTED
    )
    (again,) = deployment.evaluate()
    assert again.run_key == request.run_key


def test_with_relaunch_wiped_storage_means_once_more(deploy: Deploy) -> None:
    deployment = deploy(one_job())
    run_id = deployment.start()
    (request,) = deployment.evaluate()
    deployment.begin(request)
    deployment.evaluate()
    deployment.wipe()
    (again,) = deployment.evaluate()
    assert again.run_key == request.run_key
    deployment.launch(again)
    deployment.tick()
    assert deployment.status(run_id) == DONE
    asked = [f for f in facts(deployment.squid, run_id, "run_signal_received") if f.signal_type == "external_requested"]
    assert [f.payload["launch"] for f in asked] == [1, 2]
    assert len({f.payload["launcher"] for f in asked}) == 2


@pytest.mark.parametrize("was_seen", [True, False])
def test_with_fail_wiped_storage_fails_the_step_for_good(deploy: Deploy, was_seen: bool) -> None:
    policy = Retry(max_attempts=5, initial=timedelta(minutes=1))
    deployment = deploy(one_job(on_lost="fail", retry=policy))
    run_id = deployment.start()
    (request,) = deployment.evaluate()
    dagster_run = deployment.begin(request)
    if was_seen:
        deployment.evaluate()
    deployment.wipe()
    assert deployment.evaluate() == []
    snapshot = deployment.squid.inspect_run(run_id)
    assert snapshot.error is not None
    assert (snapshot.status, snapshot.error["code"]) == ("failed", "external_lost")
    assert (dagster_run.run_id in snapshot.error["message"]) is was_seen


@pytest.mark.parametrize(("on_lost", "launched"), [("relaunch", 1), ("fail", 0)])
def test_a_deleted_run_is_a_lost_one(deploy: Deploy, on_lost: str, launched: int) -> None:
    deployment = deploy(one_job(on_lost=on_lost))
    deployment.start()
    (request,) = deployment.evaluate()
    dagster_run = deployment.begin(request)
    deployment.evaluate()
    deployment.instance.delete_run(dagster_run.run_id)
    assert len(deployment.evaluate()) == launched


def test_wiped_after_the_outcome_was_reported_nothing_is_done_twice(deploy: Deploy) -> None:
    deployment = deploy(one_job())
    run_id = deployment.start()
    deployment.tick()
    deployment.tick()
    deployment.wipe()
    assert deployment.tick() == []
    assert deployment.status(run_id) == DONE
    assert TRAINED == ["a-1"]


# --- our run stops ----------------------------------------------------------------------------------------------------


def test_a_cancelled_run_is_not_launched_and_its_dagster_run_is_tagged(deploy: Deploy) -> None:
    deployment = deploy(one_job())
    early, late, other = deployment.start(), deployment.start(), deployment.start()
    requests = {request.tags["squid/run_id"]: request for request in deployment.evaluate()}
    dagster_run = deployment.begin(requests[late])
    untouched_run = deployment.begin(requests[other])
    deployment.squid.cancel(early)
    deployment.squid.cancel(late)
    assert deployment.evaluate() == []
    tagged_run = deployment.instance.get_run_by_id(dagster_run.run_id)
    assert tagged_run is not None
    assert tagged_run.tags[ABANDONED_TAG] == "cancelled"
    assert tagged_run.status is dg.DagsterRunStatus.STARTED
    still = deployment.instance.get_run_by_id(untouched_run.run_id)
    assert still is not None
    assert ABANDONED_TAG not in still.tags
    deployment.instance.report_run_canceled(tagged_run)
    assert deployment.evaluate() == []
    assert deployment.squid.inspect_run(late).status == "cancelled"
