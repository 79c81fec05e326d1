"""Dagster work as a step: launched once, reported once, in pages, on the queues that the sensor serves."""

from collections.abc import Callable
from datetime import timedelta

import dagster as dg
import pytest

from squid_dagster.api import Squid
from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.external.sensor import build_external_sensor
from squid_dagster.workflow import Retry, Workflow
from tests.plugin.external.definitions import BROKEN, JOBS, TRAINED
from tests.plugin.external.deployment import DONE, Account, Deploy, config, one_job
from tests.runtime.runs import facts, unsound

# --- what happens -----------------------------------------------------------------------------------------------------


def test_a_job_is_launched_once_and_its_outcome_completes_the_run(deploy: Deploy) -> None:
    deployment = deploy(one_job(tags={"team": "ml"}))
    run_id = deployment.start(account="a-7")
    (request,) = deployment.evaluate()
    key = f"{run_id}:learn:1:1"
    assert (request.run_key, request.job_name, request.run_config) == (key, "train_model", config("a-7"))
    assert request.tags == {
        "squid/run_id": run_id,
        "squid/runnable_key": key,
        "squid/queue": "default",
        "squid/agent": "external",
        "dagster/max_retries": "0",
        "team": "ml",
        "dagster/sensor_name": "squid_external_sensor",
    }
    dagster_run = deployment.launch(request)
    assert deployment.tick() == []
    assert deployment.status(run_id) == DONE
    outputs = deployment.squid.inspect_run(run_id).outputs
    assert outputs["learn"] == {"dagster_run_id": dagster_run, "job": "train_model", "status": "SUCCESS"}
    assert TRAINED == ["a-7"]
    assert deployment.tick() == []
    history = [fact.signal_type for fact in facts(deployment.squid, run_id, "run_signal_received")]
    assert history == ["start_run", "external_requested", "external_completed"]
    (received,) = [f for f in facts(deployment.squid, run_id, "run_signal_received") if "completed" in f.signal_type]
    assert received.metadata == {"actor_source": "dagster_sensor", "sensor": "squid_external_sensor"}
    assert unsound(deployment.squid.journal) == []


def test_assets_are_materialized_for_the_partition_that_the_run_names(deploy: Deploy) -> None:
    workflow = Workflow("learning", payload=Account)
    workflow.external("load", "dagster_assets", assets=["raw/orders"], partition_key_from="day")
    workflow.external("tell", "dagster_assets", assets=["report"], after="load")
    deployment = deploy(workflow)
    run_id = deployment.start(day="2026-03-04")
    assert [request.job_name for request in deployment.evaluate()] == ["squid_external_learning_load"]
    deployment.tick()
    assert deployment.tick() == []
    assert [request.job_name for request in deployment.evaluate()] == ["squid_external_learning_tell"]
    deployment.tick()
    deployment.tick()
    assert deployment.status(run_id) == DONE
    assert TRAINED == ["2026-03-04"]
    key = dg.AssetKey(["raw", "orders"])
    assert deployment.instance.get_materialized_partitions(key) == {"2026-03-04"}


def test_while_dagster_works_the_run_waits_and_says_for_what(deploy: Deploy) -> None:
    deployment = deploy(one_job())
    run_id = deployment.start()
    (request,) = deployment.evaluate()
    dagster_run = deployment.begin(request)
    for _ in range(3):
        assert deployment.evaluate() == []
    explanation = deployment.squid.explain_run(run_id)
    assert explanation.reason == "waiting_external"
    assert dagster_run.run_id in explanation.summary
    assert "train_model" in explanation.summary
    started = [f for f in facts(deployment.squid, run_id, "run_signal_received") if f.signal_type == "external_started"]
    assert len(started) == 1


def test_a_failed_run_is_retried_as_the_step_says(deploy: Deploy) -> None:
    BROKEN.add("a-1")
    deployment = deploy(one_job(retry=Retry(max_attempts=2, initial=timedelta(minutes=1))))
    run_id = deployment.start()
    (first,) = deployment.tick()
    assert deployment.tick() == []
    (failed,) = facts(deployment.squid, run_id, "attempt_failed")
    assert failed.error["code"] == "dagster_run_failed"
    assert failed.error["dagster_run_id"] == first
    assert "step 'train': ValueError: no data for a-1" in failed.error["message"]
    BROKEN.clear()
    deployment.clock.advance(timedelta(minutes=1))
    (request,) = deployment.evaluate()
    assert request.run_key == f"{run_id}:learn:1:2"
    deployment.launch(request)
    deployment.tick()
    assert deployment.status(run_id) == DONE
    assert TRAINED == ["a-1"]


def test_a_run_that_somebody_canceled_is_not_launched_again(deploy: Deploy) -> None:
    deployment = deploy(one_job(retry=Retry(max_attempts=5, initial=timedelta(minutes=1))))
    run_id = deployment.start()
    (request,) = deployment.evaluate()
    dagster_run = deployment.begin(request)
    deployment.instance.report_run_canceled(dagster_run)
    assert deployment.evaluate() == []
    snapshot = deployment.squid.inspect_run(run_id)
    assert snapshot.error is not None
    assert (snapshot.status, snapshot.error["code"]) == ("failed", "dagster_run_canceled")


def test_a_run_that_a_person_executed_again_counts_when_it_succeeds_first(deploy: Deploy) -> None:
    deployment = deploy(one_job())
    run_id = deployment.start()
    (request,) = deployment.evaluate()
    BROKEN.add("a-1")
    deployment.launch(request)
    BROKEN.clear()
    job = deployment.repository.get_job("train_model")
    job.execute_in_process(run_config=config("a-1"), tags=request.tags, instance=deployment.instance)
    deployment.tick()
    assert deployment.status(run_id) == DONE


def test_a_paused_queue_launches_nothing_and_still_hears_of_outcomes(deploy: Deploy) -> None:
    deployment = deploy(one_job())
    first = deployment.start()
    deployment.tick()
    second = deployment.start()
    deployment.squid.pause_queue("default")
    assert deployment.evaluate() == []
    assert deployment.status(first) == DONE
    deployment.squid.resume_queue("default")
    assert len(deployment.tick()) == 1
    deployment.tick()
    assert deployment.status(second) == DONE


def test_more_than_one_page_is_launched_page_by_page_and_a_lost_cursor_does_no_harm(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squid_dagster.plugin.external.sensor._PAGE", 2)
    deployment = deploy(one_job())
    runs = [deployment.start(account=f"a-{number}") for number in range(5)]
    assert [len(deployment.tick()) for _ in range(3)] == [2, 2, 1]
    deployment.cursor = "nonsense"
    for _ in range(4):
        assert deployment.tick() == []
    assert [deployment.status(run_id) for run_id in runs] == [DONE] * 5
    assert sorted(TRAINED) == [f"a-{number}" for number in range(5)]


def test_other_queues_are_left_to_other_deployments(deploy: Deploy) -> None:
    deployment = deploy(one_job(), queues=["elsewhere"])
    deployment.start()
    assert deployment.evaluate() == []


# --- on Postgres, through the resource --------------------------------------------------------------------------------


def test_on_postgres_the_resource_leads_the_sensor_to_the_journal(
    resource: SquidResource, make_squid: Callable[..., Squid], instance: dg.DagsterInstance
) -> None:
    workflow = one_job()
    squid = make_squid([workflow])
    sensor = build_external_sensor(workflows=[workflow], jobs=JOBS)
    defs = dg.Definitions(jobs=JOBS, sensors=[sensor], resources={"squid": resource})
    repository = defs.get_repository_def()
    run_id = squid.start("learning", {"account": "a-9"}).run_id

    def tick() -> list[dg.RunRequest]:
        with dg.build_sensor_context(
            instance=instance, repository_def=repository, resources={"squid": resource}
        ) as context:
            return list(sensor.evaluate_tick(context).run_requests or [])

    (request,) = tick()
    repository.get_job("train_model").execute_in_process(
        run_config=request.run_config, tags=request.tags, instance=instance
    )
    assert tick() == []
    assert squid.inspect_run(run_id).status == DONE
    assert TRAINED == ["a-9"]
