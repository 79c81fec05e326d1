"""Ticks of all sensors and schedules meet a database that is away, that has to be upgraded, or that refuses."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import psycopg
import pytest
from dagster._utils.error import serializable_error_info_from_exc_info

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.attention.sensor import build_attention_sensor
from squid_dagster.plugin.crons import build_cron_schedules
from squid_dagster.plugin.dispatch.job import build_dispatch_job
from squid_dagster.plugin.dispatch.sensor import build_dispatch_sensor
from squid_dagster.plugin.external.sensor import build_external_sensor
from squid_dagster.protocol.errors import (
    IncompatibleDefinition,
    SchemaOutdated,
    SchemaTooNew,
    SquidError,
    StorageRefused,
    StorageUnavailable,
    ViewsMissing,
)
from squid_dagster.workflow import Cron, Workflow
from tests.facts import T0
from tests.journal.access import raw

SECRET = "hunter2"
FAILED = (dg.Failure, dg.DagsterUserCodeExecutionError)  # as a sensor raises it, and as a schedule's tick wraps it
Tick = Callable[[SquidResource], Any]


@dg.op
def trains() -> None:
    """Return at once."""


@dg.job
def train() -> None:
    trains()


def learning() -> Workflow:
    workflow = Workflow("learning", triggers=[Cron("0 4 * * *", name="night")])
    workflow.external("learn", "dagster_job", job="train")
    return workflow


DISPATCH = build_dispatch_job(workflows=[learning()])


def tick_sensor(sensor: dg.SensorDefinition, resource: SquidResource) -> str:
    repository = dg.Definitions(
        jobs=[train, DISPATCH], sensors=[sensor], resources={"squid": resource}
    ).get_repository_def()
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance=instance, repository_def=repository, resources={"squid": resource}) as context,
    ):
        return sensor.evaluate_tick(context).skip_message or ""


def tick_schedule(resource: SquidResource) -> str:
    (schedule,) = build_cron_schedules(workflows=[learning()])
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_schedule_context(
            instance=instance, scheduled_execution_time=T0, resources={"squid": resource}
        )
        return schedule.evaluate_tick(context).skip_message or ""


TICKS: dict[str, Tick] = {
    "dispatch": lambda resource: tick_sensor(build_dispatch_sensor(job=DISPATCH, workflows=[learning()]), resource),
    "external": lambda resource: tick_sensor(build_external_sensor(workflows=[learning()], jobs=[train]), resource),
    "attention": lambda resource: tick_sensor(build_attention_sensor(workflows=[learning()]), resource),
    "crons": tick_schedule,
}


@pytest.fixture(params=TICKS)
def tick(request: pytest.FixtureRequest) -> Tick:
    return TICKS[request.param]


@pytest.fixture
def resource(postgres: PostgresStorage, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> SquidResource:
    monkeypatch.setenv("TICKS_URL", postgres_url)
    return SquidResource(url=dg.EnvVar("TICKS_URL"), schema_name=postgres.schema)


def fail_with(monkeypatch: pytest.MonkeyPatch, kind: type[SquidError]) -> None:
    """Raise where the journal is opened: an error caused by one of the driver's, which quotes values."""

    def squid_for(*_: object) -> None:
        try:
            raise psycopg.errors.UniqueViolation(f"DETAIL: Key (data)=({SECRET}) already exists")
        except psycopg.Error as error:
            raise kind(f"something about postgresql://bob:{SECRET}@db/x") from error

    monkeypatch.setattr(SquidResource, "squid_for", squid_for)


@pytest.mark.parametrize("kind", [StorageUnavailable, ViewsMissing])
def test_a_tick_that_has_to_wait_is_skipped_with_its_reason(
    tick: Tick, resource: SquidResource, monkeypatch: pytest.MonkeyPatch, kind: type[SquidError]
) -> None:
    fail_with(monkeypatch, kind)
    said = tick(resource)
    assert said.startswith("skipped, the next tick looks again: something about postgresql://")
    assert SECRET not in said


@pytest.mark.parametrize("kind", [SchemaOutdated, SchemaTooNew, StorageRefused, IncompatibleDefinition])
def test_a_tick_that_fails_leaves_nothing_of_the_driver_in_dagsters_storage(
    tick: Tick, resource: SquidResource, monkeypatch: pytest.MonkeyPatch, kind: type[SquidError]
) -> None:
    fail_with(monkeypatch, kind)
    with pytest.raises(FAILED) as failed:
        tick(resource)
    error = failed.value
    assert error.__traceback__ is not None
    stored = serializable_error_info_from_exc_info((type(error), error, error.__traceback__)).to_string()
    assert "something about postgresql://" in stored
    assert SECRET not in stored
    assert "UniqueViolation" not in stored


def test_a_tick_waits_for_views_that_are_gone(tick: Tick, resource: SquidResource, postgres: PostgresStorage) -> None:
    with raw(postgres) as connection:
        connection.execute("DROP TABLE attempts, runs, children, queues, anomalies CASCADE")
    assert "views" in tick(resource)


def test_a_tick_on_a_schema_that_has_to_be_upgraded_says_so(
    tick: Tick, resource: SquidResource, postgres_url: str
) -> None:
    other = SquidResource(url=dg.EnvVar("TICKS_URL"), schema_name="nothing_is_here")
    with pytest.raises(FAILED) as failed:
        tick(other)
    failure = failed.value if isinstance(failed.value, dg.Failure) else failed.value.__cause__
    assert isinstance(failure, dg.Failure)
    assert "squid db upgrade" in str(failure)
