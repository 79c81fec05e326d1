"""The resource: one engine per process and database, right in every place, and no credential anywhere."""

import multiprocessing
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster_shared.serdes import serialize_value
from sqlalchemy import event

from squid_dagster.api import Squid
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.engines import storage_of
from squid_dagster.protocol.errors import InvalidArgument, SchemaOutdated, StorageUnavailable
from squid_dagster.workflow import MissingResource, WorkflowsNotLoaded
from tests.plugin import drain_workflows
from tests.plugin.conftest import URL_VARIABLE

SECRET = "correct-horse"
UNREACHABLE = f"postgresql://somebody:{SECRET}@127.0.0.1:1/journal"


def touch(resource: SquidResource) -> dg.Definitions:
    """Build a location whose job and sensor use the resource."""

    @dg.op(required_resource_keys={"squid"})
    def look(context: dg.OpExecutionContext) -> None:
        squid: SquidResource = context.resources.squid
        context.log.info(f"{squid!r} {squid}")
        context.add_output_metadata({"runs": len(squid.squid.list_runs().runs)})

    @dg.job
    def look_job() -> None:
        look()

    @dg.sensor(job=look_job, required_resource_keys={"squid"})
    def look_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        return dg.SkipReason(f"{len(context.resources.squid.squid.list_runs().runs)} runs")

    @dg.schedule(job=look_job, cron_schedule="* * * * *", required_resource_keys={"squid"})
    def look_schedule(context: dg.ScheduleEvaluationContext) -> dg.SkipReason:
        return dg.SkipReason(f"{len(context.resources.squid.squid.list_runs().runs)} runs")

    return dg.Definitions(
        jobs=[look_job], sensors=[look_sensor], schedules=[look_schedule], resources={"squid": resource}
    )


def tick(resource: SquidResource, instance: dg.DagsterInstance) -> str:
    """Evaluate the sensor once, as a code server does it: with a resource made anew."""
    sensor = touch(resource).get_repository_def().get_sensor_def("look_sensor")
    with dg.build_sensor_context(instance=instance, resources={"squid": resource}) as context:
        return sensor.evaluate_tick(context).skip_message or ""


# --- credentials ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["url", "listen_url"])
def test_a_password_in_clear_is_refused_when_the_location_loads(field: str) -> None:
    given: dict[str, Any] = {field: UNREACHABLE}
    with pytest.raises(InvalidArgument, match=r"somebody:\*\*\*@127\.0\.0\.1.*dg\.EnvVar") as refused:
        touch(SquidResource(**given)).get_repository_def()
    assert SECRET not in str(refused.value)


def test_no_credential_is_in_any_view_log_or_error(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a server that cannot be reached, by a URL with a password
    monkeypatch.setenv("UNREACHABLE_URL", UNREACHABLE)
    resource = SquidResource(url=dg.EnvVar("UNREACHABLE_URL"))
    defs = touch(resource)
    # when a job fails with it
    result = defs.resolve_job_def("look_job").execute_in_process(instance=instance, raise_on_error=False)
    # then the error names the host
    assert not result.success
    events = [repr(record) for record in instance.all_logs(result.run_id)]
    assert any("cannot reach Postgres" in event and "127.0.0.1:1" in event for event in events)
    with pytest.raises(Exception, match=r"127\.0\.0\.1"):
        tick(resource, instance)
    # and the password is in no event, no output, no view of the configuration, no representation
    seen = [*events, *capfd.readouterr(), repr(resource), str(resource)]
    seen += [repr(resource.process_config_and_initialize()), str(resource.process_config_and_initialize())]
    seen += [serialize_value(RepositorySnap.from_def(defs.get_repository_def()))]
    assert [text for text in seen if SECRET in text] == []
    assert "UNREACHABLE_URL" in seen[-1]


def test_a_place_never_shows_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNREACHABLE_URL", UNREACHABLE)
    resource = SquidResource(url=dg.EnvVar("UNREACHABLE_URL"))
    assert SECRET not in repr(resource._database())
    with pytest.raises(StorageUnavailable) as refused:
        storage_of(resource._database())
    assert SECRET not in str(refused.value)


# --- what cannot be used --------------------------------------------------------------------------------------------


def test_a_variable_that_is_not_set_is_named(instance: dg.DagsterInstance) -> None:
    defs = touch(SquidResource(url=dg.EnvVar("NOBODY_SET_THIS")))
    with pytest.raises(dg.DagsterInvalidConfigError, match="NOBODY_SET_THIS"):
        defs.resolve_job_def("look_job").execute_in_process(instance=instance)


def test_an_outdated_schema_is_named_and_tried_again_once_it_is_there(
    postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, postgres_url)
    resource = SquidResource(url=dg.EnvVar(URL_VARIABLE), schema_name=schema)
    with pytest.raises(SchemaOutdated, match=schema):
        _ = resource.squid
    storage = PostgresStorage(postgres_url, schema)
    storage.upgrade()
    storage.close()
    assert not resource.squid.list_runs().runs


def test_a_module_that_does_not_exist_is_named(resource: SquidResource) -> None:
    wrong = SquidResource(url=resource.url, schema_name=resource.schema_name, workflow_modules=["no.such.module"])
    with pytest.raises(WorkflowsNotLoaded, match=r"no\.such\.module"):
        _ = wrong.squid


@pytest.mark.parametrize("field", ["lease_seconds", "heartbeat_seconds"])
def test_a_time_that_is_not_positive_is_refused(field: str) -> None:
    given: dict[str, Any] = {field: 0.0}
    with pytest.raises(ValueError, match=field):
        SquidResource(**given)


# --- one engine -----------------------------------------------------------------------------------------------------


def test_many_ticks_and_resources_share_one_engine_and_one_connection(
    resource: SquidResource, instance: dg.DagsterInstance
) -> None:
    connects: list[Any] = []
    storage = storage_of(resource._database())
    event.listen(storage.engine, "connect", lambda *_: connects.append(1))
    storage.engine.dispose()
    for _ in range(10):
        assert tick(resource, instance) == "0 runs"
    schedule = touch(resource).get_repository_def().get_schedule_def("look_schedule")
    with dg.build_schedule_context(instance=instance, resources={"squid": resource}) as context:
        assert schedule.evaluate_tick(context).skip_message == "0 runs"
    # the same database by another name is the same engine
    same = SquidResource(url=os.environ[URL_VARIABLE], schema_name=resource.schema_name)
    assert same.squid is resource.squid
    assert same.journal is storage
    assert touch(same).resolve_job_def("look_job").execute_in_process(instance=instance).success
    assert len(connects) == 1


def test_a_forked_child_makes_its_own_engine_and_leaves_its_parent_s_alone(resource: SquidResource) -> None:
    ((mine,),) = storage_of(resource._database()).rows("SELECT pg_backend_pid()")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_backend, args=(resource, theirs))
    child.start()
    other = ours.recv()
    child.join(60)
    assert child.exitcode == 0
    assert other != mine
    assert storage_of(resource._database()).rows("SELECT pg_backend_pid()") == [(mine,)]


def _backend(resource: SquidResource, answer: Any) -> None:
    storage = storage_of(resource._database())
    ((pid,),) = storage.rows("SELECT pg_backend_pid()")
    answer.send(pid)
    storage.close()


def test_workflows_given_as_objects_and_as_modules_stand_side_by_side(resource: SquidResource) -> None:
    both = SquidResource(
        url=resource.url,
        schema_name=resource.schema_name,
        workflow_modules=["tests.plugin.drain_workflows"],
        queue="mail",
    )
    squid = both.squid_for([drain_workflows.quick])
    assert {definition.name for definition in squid.runtime.registry} >= {"quick", "talking", "greeting"}
    assert both.squid_for([drain_workflows.quick]) is squid
    assert both.squid_for([drain_workflows.talking]) is not squid
    assert both.dispatch_agent().queue == "mail"
    assert squid.start("quick", {"number": 1}).snapshot.queue == "mail"


def test_lease_and_heartbeat_are_what_the_configuration_says(resource: SquidResource) -> None:
    short = SquidResource(url=resource.url, schema_name=resource.schema_name, lease_seconds=30, heartbeat_seconds=2)
    assert short.squid.runtime.lease == timedelta(seconds=30)
    assert (short.lease, short.heartbeat) == (timedelta(seconds=30), timedelta(seconds=2))
    assert resource.heartbeat is None


# --- resources of steps ---------------------------------------------------------------------------------------------


def test_where_no_steps_run_their_resources_say_so(resource: SquidResource) -> None:
    absent = resource.squid_for([drain_workflows.greeting]).runtime.resources["greeter"]
    with pytest.raises(MissingResource, match="'greeter' is there only where steps run"):
        _ = absent.greeting  # type: ignore[attr-defined]
    with pytest.raises(MissingResource, match="greeter"):
        resource.squid_running([drain_workflows.greeting], {})


# --- tests of users -------------------------------------------------------------------------------------------------


class Outer(dg.ConfigurableResource[Any]):
    """A resource that holds ours."""

    inner: SquidResource


def test_for_testing_gives_that_very_object_in_ops_and_sensors_and_nested(
    make_squid: Callable[..., Squid], instance: dg.DagsterInstance
) -> None:
    squid = make_squid([drain_workflows.quick])
    resource = SquidResource.for_testing(squid)
    squid.start("quick", {"number": 1})
    seen: list[Any] = []

    @dg.op
    def look(squid: SquidResource, outer: Outer) -> None:
        seen.extend([squid.squid, squid.squid_for([drain_workflows.talking]), squid.journal, outer.inner.squid])

    @dg.job
    def look_job() -> None:
        look()

    outer = Outer(inner=resource)
    defs = dg.Definitions(jobs=[look_job], resources={"squid": resource, "outer": outer})
    assert defs.resolve_job_def("look_job").execute_in_process(instance=instance).success
    assert seen == [squid, squid, squid.journal, squid]
    assert tick(resource, instance) == "1 runs"
    # and two of them know nothing of each other
    other = make_squid()
    assert SquidResource.for_testing(other).squid is other
    assert resource.squid is squid


def test_the_backlog_is_that_of_the_same_journal(resource: SquidResource) -> None:
    resource.backlog.create("card-1", "look at it")
    assert [card.id for card in resource.squid.backlog.list()] == ["card-1"]
