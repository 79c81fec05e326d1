"""Dagster work as a step: launched once, reported once, and what happens when Dagster forgets, fails or is stopped."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import dagster as dg
import pytest
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.external.sensor import build_external_sensor
from squid_dagster.plugin.names import ABANDONED_TAG
from squid_dagster.protocol.errors import ConflictingCommand, InvalidFact, SchemaOutdated, SquidError, StorageRefused
from squid_dagster.workflow import InvalidWorkflow, Retry, Workflow
from tests.facts import T0
from tests.plugin.external.definitions import ASSETS, BROKEN, JOBS, TRAINED
from tests.runtime.runs import drain, facts, unsound

RUN_KEY_TAG = "dagster/run_key"
DONE = "completed"


class Account(BaseModel):
    account: str = "a-1"
    day: str = "2026-01-02"


def config(account: str) -> dict[str, Any]:
    return {"ops": {"train": {"config": {"account": account}}}}


def bad_config(account: str) -> list[str]:
    return [account]


def one_job(**options: Any) -> Workflow:
    workflow = Workflow("learning", payload=Account)
    workflow.external("learn", "dagster_job", **{"job": "train_model", "run_config": config, **options})
    return workflow


class Deployment:
    """A code location with its Dagster instance. `tick` does what the daemon does: evaluate, then launch by run key."""

    cursor: str | None
    instance: dg.DagsterInstance

    def __init__(self, stack: ExitStack, workflow: Workflow, **options: Any) -> None:
        self.stack = stack
        self.clock = VirtualClock(T0)
        self.squid = Squid(MemoryStorage(self.clock), [workflow], random_unit=lambda: 0.0)
        self.wipe()
        self.sensor = build_external_sensor(workflows=[workflow], jobs=JOBS, assets=ASSETS, **options)
        self.definitions = dg.Definitions(
            assets=ASSETS,
            jobs=JOBS,
            sensors=[self.sensor],
            resources={"squid": SquidResource.for_testing(self.squid)},
        )
        self.repository = self.definitions.get_repository_def()

    def evaluate(self) -> list[dg.RunRequest]:
        """Evaluate the sensor as a code server does."""
        with dg.build_sensor_context(
            instance=self.instance,
            repository_def=self.repository,
            cursor=self.cursor,
            resources={"squid": SquidResource.for_testing(self.squid)},
        ) as context:
            data = self.sensor.evaluate_tick(context)
        self.cursor = data.cursor
        return list(data.run_requests or [])

    def launch(self, request: dg.RunRequest) -> str | None:
        """Execute a request, unless Dagster has a run under its key."""
        known = self.instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: request.run_key or ""}))
        if known:
            return None
        job = self.repository.get_job(request.job_name or "")
        tags = {**request.tags, RUN_KEY_TAG: request.run_key or ""}
        done = job.execute_in_process(
            run_config=request.run_config,
            tags=tags,
            partition_key=request.partition_key,
            instance=self.instance,
            raise_on_error=False,
        )
        return done.run_id

    def begin(self, request: dg.RunRequest) -> dg.DagsterRun:
        """Create a run that is under way, and stays so."""
        job = self.repository.get_job(request.job_name or "")
        tags = {**request.tags, RUN_KEY_TAG: request.run_key or ""}
        return self.instance.create_run_for_job(
            job, run_config=request.run_config, tags=tags, status=dg.DagsterRunStatus.STARTED
        )

    def tick(self) -> list[str | None]:
        """Evaluate and launch; give the ids of the runs."""
        return [self.launch(request) for request in self.evaluate()]

    def wipe(self) -> None:
        """Lose everything that Dagster knows."""
        self.instance = self.stack.enter_context(dg.DagsterInstance.ephemeral())
        self.cursor = None

    def start(self, **payload: Any) -> str:
        """Start a run, and let workers do what they can; none of them waits."""
        run_id = self.squid.start("learning", payload).run_id
        assert self.squid.worker(until_idle=True).claimed == 0
        return run_id

    def status(self, run_id: str) -> str:
        """Let workers go on, and say how the run stands."""
        drain(self.squid)
        return self.squid.inspect_run(run_id).status


Deploy = Callable[..., Deployment]


@pytest.fixture
def deploy() -> Iterator[Deploy]:
    """Makes a deployment of a workflow; options are those of `build_external_sensor`."""
    with ExitStack() as stack:
        yield partial(Deployment, stack)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Let each test count for itself."""
    TRAINED.clear()
    BROKEN.clear()
    yield
    TRAINED.clear()
    BROKEN.clear()


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
    told = deployment.squid.explain_run(run_id)
    assert told.reason == "waiting_external"
    assert dagster_run.run_id in told.summary
    assert "train_model" in told.summary
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
    kept = deployment.begin(requests[other])
    deployment.squid.cancel(early)
    deployment.squid.cancel(late)
    assert deployment.evaluate() == []
    found = deployment.instance.get_run_by_id(dagster_run.run_id)
    assert found is not None
    assert found.tags[ABANDONED_TAG] == "cancelled"
    assert found.status is dg.DagsterRunStatus.STARTED
    still = deployment.instance.get_run_by_id(kept.run_id)
    assert still is not None
    assert ABANDONED_TAG not in still.tags
    deployment.instance.report_run_canceled(found)
    assert deployment.evaluate() == []
    assert deployment.squid.inspect_run(late).status == "cancelled"


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
    monkeypatch.setattr("squid_dagster.plugin.external.sensor._MOST", 2)
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


# --- what goes wrong with one attempt ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [StorageRefused, InvalidFact, ConflictingCommand])
def test_what_goes_wrong_with_one_attempt_keeps_no_other_one_waiting(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, kind: type[SquidError], caplog: pytest.LogCaptureFixture
) -> None:
    here = deploy(one_job())
    bad, *others = (here.start(account=f"a-{n}") for n in range(3))
    refusing: list[str] = [bad]
    usual = Squid.apply_signal

    def apply_signal(squid: Squid, signal: Any) -> Any:
        if signal.payload["run_id"] in refusing:
            raise kind("not this one: postgresql://bob:hunter2@db/x")
        return usual(squid, signal)

    monkeypatch.setattr(Squid, "apply_signal", apply_signal)
    assert len(here.tick()) == 2
    assert here.tick() == []
    assert [here.status(each) for each in (bad, *others)] == ["running", DONE, DONE]
    # and it is looked at by every tick
    refusing.clear()
    assert len(here.tick()) == 1
    here.tick()
    assert here.status(bad) == DONE
    assert "hunter2" not in caplog.text


def test_what_is_on_record_as_asked_for_is_launched_though_the_database_must_be_upgraded(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = deploy(one_job())
    run_ids = [here.start(account=f"a-{n}") for n in range(3)]
    calls: list[str] = []
    usual = Squid.apply_signal

    def apply_signal(squid: Squid, signal: Any) -> Any:
        calls.append(signal.type)
        if len(calls) > 1:
            raise SchemaOutdated("upgrade it")
        return usual(squid, signal)

    with monkeypatch.context() as patched:
        patched.setattr(Squid, "apply_signal", apply_signal)
        assert len(here.tick()) == 1
        with pytest.raises(dg.Failure, match="upgrade it"):
            here.evaluate()
    here.tick()
    here.tick()
    assert [here.status(each) for each in run_ids] == [DONE] * 3
