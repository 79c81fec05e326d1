"""Locations and requests that cannot be: the location does not load, or one step fails and no other."""

from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.external.sensor import build_external_sensor
from squid_dagster.workflow import InvalidWorkflow, Retry, Workflow
from tests.plugin.external.definitions import ASSETS, JOBS, TRAINED
from tests.plugin.external.deployment import DONE, Account, Deploy, bad_config, one_job

# --- a location that cannot be ----------------------------------------------------------------------------------------


def test_an_unknown_job_fails_when_the_location_loads() -> None:
    with pytest.raises(InvalidWorkflow, match="did you mean 'train_model'") as refused:
        build_external_sensor(workflows=[one_job(job="train_modl")], jobs=JOBS)
    (problem,) = refused.value.problems
    assert problem.path == ("steps", "learn", "job")


def test_an_unknown_asset_fails_when_the_location_loads() -> None:
    workflow = Workflow("learning", payload=Account)
    workflow.external("learn", "dagster_assets", assets=["raw/orders", "raw/nothing"])
    with pytest.raises(InvalidWorkflow, match="raw/nothing"):
        build_external_sensor(workflows=[workflow], assets=ASSETS)
    unchecked = build_external_sensor(workflows=[workflow])
    defs = dg.Definitions(assets=ASSETS, sensors=[unchecked], resources={"squid": SquidResource()})
    with pytest.raises(dg.DagsterInvalidDefinitionError):
        dg.Definitions.validate_loadable(defs)


def test_a_location_without_external_steps_loads_and_its_sensor_does_nothing(deploy: Deploy) -> None:
    workflow = Workflow("learning", payload=Account)
    workflow.log("hello", "hello")
    deployment = deploy(workflow)
    dg.Definitions.validate_loadable(deployment.definitions)
    assert deployment.tick() == []


def test_it_is_on_by_default_under_its_own_name(deploy: Deploy) -> None:
    sensor = deploy(one_job()).sensor
    assert (sensor.name, sensor.default_status) == ("squid_external_sensor", dg.DefaultSensorStatus.RUNNING)


# --- requests that cannot be ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        ({"run_config": {"ops": {"train": {"config": {"acount": "a"}}}}}, "invalid_run_request", "acount"),
        ({"run_config": None}, "invalid_run_request", "train"),
        ({"partition_key_from": "day"}, "invalid_run_request", "PartitionsDefinition"),
        ({"run_config": bad_config}, "invalid_input", "must be a mapping"),
    ],
)
def test_a_request_that_does_not_fit_fails_its_step_and_no_other(
    deploy: Deploy, options: dict[str, Any], code: str, named: str
) -> None:
    deployment = deploy(one_job(retry=Retry(max_attempts=3, initial=timedelta(minutes=1)), **options))
    run_id = deployment.start()
    assert deployment.evaluate() == []
    snapshot = deployment.squid.inspect_run(run_id)
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert snapshot.error["code"] == code
    assert named in snapshot.error["message"]


def test_a_run_config_that_raises_is_retried_as_any_step_is(deploy: Deploy) -> None:
    def broken(account: str) -> dict[str, Any]:
        raise LookupError(f"no {account}")

    deployment = deploy(one_job(run_config=broken, retry=Retry(max_attempts=2, initial=timedelta(minutes=1))))
    run_id = deployment.start()
    assert deployment.tick() == []
    assert deployment.squid.explain_run(run_id).reason == "retry_scheduled"
    deployment.clock.advance(timedelta(minutes=1))
    assert deployment.tick() == []
    assert deployment.squid.inspect_run(run_id).status == "failed"


def test_an_unknown_partition_fails_its_step_while_others_are_launched(deploy: Deploy) -> None:
    workflow = Workflow("learning", payload=Account)
    workflow.external("load", "dagster_assets", assets=["raw/orders"], partition_key_from="day")
    deployment = deploy(workflow)
    bad, good = deployment.start(day="2020-01-01"), deployment.start()
    assert len(deployment.tick()) == 1
    deployment.tick()
    assert (deployment.status(bad), deployment.status(good)) == ("failed", DONE)
    assert TRAINED == ["2026-01-02"]
