"""The dispatch sensor: few runs for much work, none for nothing, and never fooled by what Dagster remembers."""

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.contract.queries import BacklogRow
from squid_dagster.journal.contract.worker_liveness import WorkerRow
from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.dispatch.code_version import NO_LOCATION, code_version, location_of_run
from squid_dagster.plugin.dispatch.job import DRAIN_OP, DrainConfig, build_dispatch_job, worker_id_of
from squid_dagster.plugin.dispatch.scale import Scale, launches
from squid_dagster.plugin.dispatch.sensor import build_dispatch_sensor
from squid_dagster.plugin.engines import storage_of
from squid_dagster.protocol.errors import InvalidArgument
from tests.plugin import drain_workflows
from tests.plugin.dispatch.drains import WORKFLOWS

MakeSquid = Callable[..., Squid]
QUEUES = ("default", "mail")
VERSION = code_version(workflow.freeze() for workflow in WORKFLOWS)
NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


def sensor_of(**options: Any) -> tuple[dg.JobDefinition, dg.SensorDefinition]:
    """Build the job and the sensor of a location."""
    job = build_dispatch_job(workflows=WORKFLOWS, queues=QUEUES)
    return job, build_dispatch_sensor(job=job, queues=QUEUES, workflows=WORKFLOWS, **options)


def tick(
    resource: SquidResource, instance: dg.DagsterInstance, **options: Any
) -> tuple[list[dg.RunRequest], str | None]:
    """Evaluate a tick: what it requests, or why it requests nothing."""
    job, sensor = sensor_of(**options)
    repository = dg.Definitions(jobs=[job], sensors=[sensor], resources={"squid": resource}).get_repository_def()
    with dg.build_sensor_context(
        instance=instance, repository_def=repository, resources={"squid": resource}
    ) as context:
        data = sensor.evaluate_tick(context)
    return list(data.run_requests or []), data.skip_message


def launched(
    instance: dg.DagsterInstance,
    request: dg.RunRequest,
    status: dg.DagsterRunStatus,
    job: dg.JobDefinition | None = None,
) -> dg.DagsterRun:
    """Put the run of a request on record, in a status: launched, and not alive."""
    made = job or sensor_of()[0]
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "__repository__")
    return instance.create_run_for_job(
        made,
        run_config=request.run_config,
        tags=request.tags,
        status=status,
        remote_job_origin=RemoteJobOrigin(repository, made.name),
        job_code_origin=JobPythonOrigin(
            made.name, RepositoryPythonOrigin("python", ModuleCodePointer("m", "f"), None, None, None)
        ),
    )


def alive(squid: Squid, **fields: Any) -> WorkerRow:
    """Report a drain run as alive."""
    row = WorkerRow(
        **{
            "worker_id": "dagster:some-run",
            "kind": "dagster_run",
            "queues": QUEUES,
            "definitions": tuple(squid.runtime.registry.keys),
            "host": "here",
            "pid": 1,
            "capacity": 10,
            "details": {"location": NO_LOCATION, "code_version": VERSION},
            **fields,
        }
    )
    squid.runtime.liveness.report(row)
    return row


@pytest.fixture
def squid(make_squid: MakeSquid) -> Squid:
    """The journal of the location, with the same workflows."""
    return make_squid(WORKFLOWS)


# --- failures first -------------------------------------------------------------------------------------------------


def test_while_the_database_cannot_be_reached_ticks_are_skipped_with_our_text(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNREACHABLE_URL", "postgresql://u:secret@127.0.0.1:1/db")
    requests, said = tick(SquidResource(url=dg.EnvVar("UNREACHABLE_URL")), instance)
    assert requests == []
    assert re.search(r"cannot reach Postgres at .*u:\*\*\*@127\.0\.0\.1:1/db", said or "")


@pytest.mark.parametrize(
    "options", [{"queues": []}, {"max_in_flight": 0}, {"attempts_per_run": True}, {"launch_grace_seconds": 0}], ids=str
)
def test_a_sensor_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"queue|from 1 to|above 0|whole number"):
        build_dispatch_sensor(**{"job": build_dispatch_job(), **options})


def test_work_that_nobody_here_has_the_definition_for_launches_nothing(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid
) -> None:
    make_squid([drain_workflows.greeting], resources={"greeter": drain_workflows.Greeter()}).start("greeting")
    assert tick(resource, instance) == ([], "nothing is due on default, mail")


def test_a_paused_queue_launches_nothing(resource: SquidResource, instance: dg.DagsterInstance, squid: Squid) -> None:
    squid.start("quick", {"number": 1})
    squid.pause_queue("default")
    assert tick(resource, instance)[0] == []
    squid.resume_queue("default")
    assert len(tick(resource, instance)[0]) == 1


# --- idle -----------------------------------------------------------------------------------------------------------


def test_an_idle_tick_costs_one_query(
    resource: SquidResource, instance: dg.DagsterInstance, squid: Squid, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tick(resource, instance) == ([], "nothing is due on default, mail")
    loans: list[Any] = []
    usual = PostgresStorage.connection

    def counted(storage: PostgresStorage) -> Any:
        loans.append(storage)
        return usual(storage)

    monkeypatch.setattr(PostgresStorage, "connection", counted)
    for _ in range(3):
        assert tick(resource, instance)[0] == []
    assert loans == [storage_of(resource._database())] * 3


# --- launching ------------------------------------------------------------------------------------------------------


def test_a_request_serves_all_queues_and_has_no_run_key(
    resource: SquidResource, instance: dg.DagsterInstance, squid: Squid
) -> None:
    squid.start("quick", {"number": 1}, queue="mail")
    (request,), _ = tick(resource, instance, drain=DrainConfig(concurrency=3))
    assert request.run_key is None
    assert request.run_config["ops"][DRAIN_OP]["config"]["queues"] == list(QUEUES)
    assert request.run_config["ops"][DRAIN_OP]["config"]["concurrency"] == 3
    assert request.tags["squid/queue"] == "default,mail"
    job, _ = sensor_of()
    assert dg.validate_run_config(job, request.run_config)
    # and launched as it is, it does the work
    job = dg.Definitions(jobs=[job], resources={"squid": resource}).resolve_job_def(job.name)
    config = {"ops": {DRAIN_OP: {"config": {**request.run_config["ops"][DRAIN_OP]["config"], "linger_seconds": 0.2}}}}
    assert job.execute_in_process(instance=instance, run_config=config).success
    assert tick(resource, instance) == ([], "nothing is due on default, mail")


def test_a_thousand_attempts_need_few_runs(resource: SquidResource, instance: dg.DagsterInstance, squid: Squid) -> None:
    squid.start_many("quick", [{"number": number} for number in range(1000)])
    requests, _ = tick(resource, instance)
    assert len(requests) == 1
    assert len(tick(resource, instance, attempts_per_run=100, max_in_flight=4)[0]) == 4
    # once they are launched, no tick launches more of them
    for request in requests:
        launched(instance, request, dg.DagsterRunStatus.STARTING)
    assert tick(resource, instance)[0] == []


def test_the_sensor_runs_from_the_beginning() -> None:
    job, sensor = sensor_of(minimum_interval_seconds=7)
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert (sensor.minimum_interval_seconds, sensor.name) == (7, "squid_dispatch_sensor")
    assert [target.job_name for target in sensor.targets] == [job.name]


def test_an_expired_claim_launches_a_run(resource: SquidResource, instance: dg.DagsterInstance, squid: Squid) -> None:
    squid.start("quick", {"number": 1})
    assert squid.dispatch_agent().claim_next("killed", lease=timedelta(milliseconds=1))
    drain_workflows.wait_until(lambda: squid.dispatch_agent().expired_claims())
    assert len(tick(resource, instance)[0]) == 1


# --- who is there ---------------------------------------------------------------------------------------------------


def test_a_live_drain_or_plain_worker_is_enough(
    resource: SquidResource, instance: dg.DagsterInstance, squid: Squid
) -> None:
    squid.start("quick", {"number": 1})
    for fields in ({}, {"kind": "worker", "details": {}}, {"definitions": None}):
        row = alive(squid, **fields)
        requests, reason = tick(resource, instance)
        assert (requests, (reason or "").endswith("enough")) == ([], True)
        squid.runtime.liveness.withdraw(row.worker_id)
    assert len(tick(resource, instance)[0]) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"queues": ("mail",)},
        {"definitions": ("another",)},
        {"capacity": 0},
        {"details": {"location": NO_LOCATION, "code_version": "older"}},
    ],
    ids=["another queue", "another definition", "stopping", "older code"],
)
def test_one_that_cannot_do_it_does_not_count(
    resource: SquidResource, instance: dg.DagsterInstance, squid: Squid, fields: dict[str, Any]
) -> None:
    squid.start("quick", {"number": 1})
    alive(squid, **fields)
    assert len(tick(resource, instance, max_in_flight=1)[0]) == 1


# --- what Dagster remembers -----------------------------------------------------------------------------------------


def test_runs_that_dagster_believes_to_be_alive_do_not_block(
    resource: SquidResource, instance: dg.DagsterInstance, squid: Squid
) -> None:
    squid.start("quick", {"number": 1})
    (request,), _ = tick(resource, instance)
    for _ in range(3):
        launched(instance, request, dg.DagsterRunStatus.STARTED)
    # a young launch counts, for it may be about to announce itself
    assert tick(resource, instance)[0] == []
    # an old one that never did was killed, whatever its status says
    assert len(tick(resource, instance, launch_grace_seconds=1e-6)[0]) == 1


def test_a_run_that_fails_at_once_is_not_launched_again_at_once(
    resource: SquidResource, instance: dg.DagsterInstance, squid: Squid
) -> None:
    squid.start("quick", {"number": 1})
    (request,), _ = tick(resource, instance)
    launched(instance, request, dg.DagsterRunStatus.FAILURE)
    assert tick(resource, instance)[0] == []
    assert len(tick(resource, instance, launch_grace_seconds=1e-6)[0]) == 1


def test_a_run_worker_that_dagster_knows_as_ended_is_followed_by_another_at_once(
    resource: SquidResource, instance: dg.DagsterInstance, squid: Squid
) -> None:
    # given a drain run that has announced itself a moment ago
    squid.start("quick", {"number": 1})
    (request,), _ = tick(resource, instance)
    run = launched(instance, request, dg.DagsterRunStatus.STARTED)
    details = {"location": NO_LOCATION, "code_version": VERSION, "dagster_run_id": run.run_id}
    alive(squid, worker_id=worker_id_of(run.run_id), details=details)
    assert tick(resource, instance)[0] == []
    # when it is killed, and Dagster has heard of that
    instance.report_run_failed(run)
    # then no tick waits for its row to expire, nor for the grace of a launch that fails at once
    assert len(tick(resource, instance)[0]) == 1


def test_a_run_that_waits_in_dagster_s_queue_counts_however_old(
    resource: SquidResource, instance: dg.DagsterInstance, squid: Squid
) -> None:
    squid.start("quick", {"number": 1})
    (request,), _ = tick(resource, instance)
    run = launched(instance, request, dg.DagsterRunStatus.QUEUED)
    assert location_of_run(run) == "here"
    assert tick(resource, instance, launch_grace_seconds=1e-6)[0] == []


def test_runs_of_other_jobs_and_locations_do_not_count(
    resource: SquidResource, instance: dg.DagsterInstance, squid: Squid
) -> None:
    squid.start("quick", {"number": 1})
    (request,), _ = tick(resource, instance)
    elsewhere = request.with_replaced_attrs(tags={**request.tags, "squid/location": "elsewhere"})
    launched(instance, elsewhere, dg.DagsterRunStatus.STARTING)
    launched(instance, request, dg.DagsterRunStatus.STARTING, build_dispatch_job(name="another"))
    assert len(tick(resource, instance)[0]) == 1


def test_a_wiped_instance_knows_nothing_and_work_goes_on(resource: SquidResource, squid: Squid) -> None:
    squid.start("quick", {"number": 1})
    for _ in range(2):
        with tempfile.TemporaryDirectory() as home, dg.DagsterInstance.local_temp(home) as instance:
            (request,), _ = tick(resource, instance)
            launched(instance, request, dg.DagsterRunStatus.STARTED)
            assert tick(resource, instance)[0] == []


# --- how many -------------------------------------------------------------------------------------------------------


SCALE = Scale(
    queues=QUEUES,
    definitions=frozenset({"flow"}),
    run_kind="dagster_run",
    location="here",
    code_version="1",
    max_in_flight=3,
    attempts_per_run=100,
)
DRAIN = WorkerRow(
    worker_id="a",
    kind="dagster_run",
    queues=QUEUES,
    definitions=("flow",),
    host="h",
    pid=1,
    capacity=10,
    details={"location": "here", "code_version": "1"},
)
BUSY = replace(DRAIN, running=10)
PLAIN = replace(DRAIN, worker_id="plain", kind="worker", queues=("default",), details={})


def due(count: int, queue: str = "default", waiting: float = 0.0) -> BacklogRow:
    """Return a row of due attempts, the oldest for so many seconds."""
    return BacklogRow(queue, count, NOW - timedelta(seconds=waiting))


@pytest.mark.parametrize(
    ("backlog", "workers", "launching", "expected"),
    [
        ([due(1)], [], 0, 1),
        ([due(1)], [DRAIN], 0, 0),
        ([due(1)], [], 1, 0),
        ([due(250)], [], 0, 3),
        ([due(250)], [DRAIN], 0, 2),
        ([due(250)], [DRAIN], 1, 1),
        ([due(9999)], [], 0, 3),
        ([due(9999)], [DRAIN, replace(DRAIN, worker_id="b")], 1, 0),
        ([due(250)], [PLAIN, DRAIN], 0, 1),
        # all are busy: more only when work has been waiting
        ([due(1)], [BUSY], 0, 0),
        ([due(1, waiting=60)], [BUSY], 0, 1),
        ([due(1, waiting=60)], [BUSY, replace(DRAIN, worker_id="b")], 0, 0),
        ([due(1, waiting=60)], [BUSY], 1, 0),
        # a small queue without a worker gets a run at once, though others are busy with a full one
        ([due(9999), due(1, "mail")], [PLAIN, replace(PLAIN, worker_id="b"), replace(PLAIN, worker_id="c")], 0, 3),
        ([due(1, "mail")], [PLAIN], 0, 1),
        ([due(1, "mail")], [replace(DRAIN, worker_id=w, queues=("default",)) for w in "abcd"], 0, 1),
    ],
)
def test_as_many_are_launched_as_the_work_needs(
    backlog: list[BacklogRow], workers: list[WorkerRow], launching: int, expected: int
) -> None:
    assert launches(SCALE, backlog, workers, launching, NOW).runs == expected


def test_the_reason_says_what_was_counted() -> None:
    said = launches(SCALE, [due(9999)], [DRAIN, PLAIN], 2, NOW).reason
    assert said == (
        "9999 due on default; 1 drain runs alive, 1 other workers, 2 runs being launched: max_in_flight is 3"
    )
