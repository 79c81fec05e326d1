"""`squid_definitions`: one call gives everything, refuses what cannot work, and merges into any project."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from squid_dagster import InvalidArgument, InvalidThread, InvalidWorkflow
from squid_dagster.api import Squid
from squid_dagster.inspection.attention_items import WAITING
from squid_dagster.plugin import DrainConfig, SquidResource, names, squid_definitions
from squid_dagster.plugin.dispatch.job import DRAIN_OP
from squid_dagster.workflow import Cron, Workflow
from squid_dagster.workflow.errors import WorkflowsNotLoaded
from tests.plugin import drain_workflows
from tests.plugin.external.definitions import ASSETS, JOBS

MakeSquid = Callable[..., Squid]
COMMANDS = {"start", "approve", "reject", "resume", "cancel", "replay", "retry"}


def jobs_of(defs: dg.Definitions) -> set[str]:
    return {job.name for job in defs.get_repository_def().get_all_jobs()}


def sensors_of(defs: dg.Definitions) -> set[str]:
    return {sensor.name for sensor in defs.get_repository_def().sensor_defs}


def schedules_of(defs: dg.Definitions) -> set[str]:
    return {schedule.name for schedule in defs.get_repository_def().schedule_defs}


def drain_config(defs: dg.Definitions) -> dict[str, Any]:
    """Return the default configuration in the launchpad of `squid_dispatch`."""
    job = defs.get_job_def(names.DISPATCH_JOB)
    config: dict[str, Any] = dict(job.run_config or {})["ops"][DRAIN_OP]["config"]
    return config


def with_external(kind: Any, **target: Any) -> Workflow:
    wf = Workflow("training", version="1")
    wf.external("train", kind, **target)
    return wf


# --- bad input ------------------------------------------------------------------------------------------------------


def test_a_location_without_workflows_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"at least one workflow: give workflows=\[orders\]"):
        squid_definitions()


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(WorkflowsNotLoaded, match=r"no module 'tests\.nowhere'"):
        squid_definitions(workflows="tests.nowhere")


@pytest.mark.parametrize(
    ("queues", "error", "message"),
    [
        ([], InvalidArgument, "at least one queue"),
        ("mail", InvalidArgument, "queues must be a list"),
        (["no space"], InvalidThread, "'no space' cannot be part"),
    ],
)
def test_queues_that_cannot_be_are_refused(queues: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        squid_definitions(workflows=[drain_workflows.quick], queues=queues)


def test_a_default_queue_that_nobody_would_work_off_is_refused() -> None:
    with pytest.raises(
        InvalidArgument, match=r"'default' is none of the location's \(mail\).*SquidResource\(queue='mail'"
    ):
        squid_definitions(workflows=[drain_workflows.quick], queues=["mail"], resource=SquidResource())


@pytest.mark.parametrize("options", [{"max_in_flight": 0}, {"launch_grace_seconds": 0}])
def test_numbers_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        squid_definitions(workflows=[drain_workflows.quick], **options)


def test_an_event_policy_that_is_none_is_refused() -> None:
    policy: Any = "loud"
    with pytest.raises(InvalidArgument, match="events must be one of 'notable', 'all', 'none'"):
        squid_definitions(workflows=[drain_workflows.quick], events=policy)


def test_a_resource_that_a_step_asks_for_and_the_project_lacks_fails_when_it_loads() -> None:
    defs = squid_definitions(workflows=[drain_workflows.greeting])
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="greeter"):
        dg.Definitions.validate_loadable(defs)
    given = dg.Definitions(resources={"greeter": dg.ResourceDefinition.hardcoded_resource(drain_workflows.Greeter())})
    dg.Definitions.validate_loadable(dg.Definitions.merge(defs, given))


def test_an_external_step_whose_job_the_project_lacks_is_refused() -> None:
    training = with_external("dagster_job", job="train_model")
    with pytest.raises(InvalidWorkflow, match="train_model"):
        squid_definitions(workflows=[training])
    assert names.EXTERNAL_SENSOR in sensors_of(squid_definitions(workflows=[training], external_jobs=JOBS))


def test_an_external_step_whose_assets_the_project_lacks_fails_when_it_loads() -> None:
    defs = squid_definitions(workflows=[with_external("dagster_assets", assets=["report"])])
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="squid_external_training_train"):
        dg.Definitions.validate_loadable(defs)
    dg.Definitions.validate_loadable(dg.Definitions.merge(defs, dg.Definitions(assets=ASSETS)))


def test_a_password_in_clear_is_refused_and_not_repeated() -> None:
    resource = SquidResource(url="postgresql://u:hunter2@db/journal")
    with pytest.raises(InvalidArgument, match="credential") as caught:
        squid_definitions(workflows=[drain_workflows.quick], resource=resource).get_repository_def()
    assert "hunter2" not in str(caught.value)


# --- what it gives --------------------------------------------------------------------------------------------------


def test_one_call_gives_every_part_by_its_name() -> None:
    nightly = Workflow("nightly", version="1", triggers=[Cron("0 2 * * *", name="two")])
    nightly.step(drain_workflows.say)
    defs = squid_definitions(workflows=[drain_workflows.quick, nightly])
    dg.Definitions.validate_loadable(defs)
    assert jobs_of(defs) == {names.DISPATCH_JOB, names.RECOVERY_JOB, *(f"squid_{command}" for command in COMMANDS)}
    assert sensors_of(defs) == {names.DISPATCH_SENSOR, names.ATTENTION_SENSOR}
    assert schedules_of(defs) == {names.RECOVERY_SCHEDULE, "squid_cron_nightly_two"}
    assert set(defs.resources or {}) == {names.RESOURCE}
    assert defs.executor is None
    assert not defs.loggers
    assert not defs.assets


def test_everything_runs_by_itself_on_an_instance_that_knows_nothing() -> None:
    repository = squid_definitions(workflows=[drain_workflows.quick]).get_repository_def()
    assert {sensor.default_status for sensor in repository.sensor_defs} == {dg.DefaultSensorStatus.RUNNING}
    assert {schedule.default_status for schedule in repository.schedule_defs} == {dg.DefaultScheduleStatus.RUNNING}


@pytest.mark.parametrize(
    "given",
    [
        drain_workflows,
        "tests.plugin.drain_workflows",
        [drain_workflows],
        ["tests.plugin.drain_workflows"],
        iter([drain_workflows]),
    ],
    ids=["module", "name", "modules", "names", "iterator"],
)
def test_workflows_may_be_given_by_module_or_name(given: Any) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="greeter"):  # of drain_workflows.greeting: it was found
        dg.Definitions.validate_loadable(squid_definitions(workflows=given))


def test_modules_of_the_resource_count_too_and_a_workflow_given_twice_is_there_once() -> None:
    resource = SquidResource(workflow_modules=["tests.plugin.drain_workflows"])
    greeter = dg.Definitions(resources={"greeter": dg.ResourceDefinition.hardcoded_resource(drain_workflows.Greeter())})
    defs = dg.Definitions.merge(squid_definitions(workflows=[drain_workflows.quick], resource=resource), greeter)
    drain: Any = defs.get_job_def(names.DISPATCH_JOB).graph.node_named(DRAIN_OP).definition
    assert drain.required_resource_keys == {"squid", "greeter"}


def test_the_first_queue_is_the_default_where_there_is_no_queue_of_that_name() -> None:
    defs = squid_definitions(workflows=[drain_workflows.quick], queues=["mail", "bulk"])
    resource: Any = (defs.resources or {})[names.RESOURCE]
    assert resource.queue == "mail"


def test_how_drain_runs_work_is_what_the_launchpad_and_the_sensor_begin_with() -> None:
    drain = DrainConfig(concurrency=3, linger_seconds=1)
    config = drain_config(squid_definitions(workflows=[drain_workflows.quick], drain=drain, events="all"))
    assert (config["concurrency"], config["linger_seconds"], config["events"]) == (3, 1, "all")
    assert drain_config(squid_definitions(workflows=[drain_workflows.quick]))["events"] == "notable"


# --- in a project ---------------------------------------------------------------------------------------------------


def test_it_merges_into_a_project_that_has_an_executor_and_resources_and_runs_there(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid
) -> None:
    greeter = dg.ResourceDefinition.hardcoded_resource(drain_workflows.Greeter("from the project"))
    project = dg.Definitions(
        assets=ASSETS, jobs=JOBS, executor=dg.multiprocess_executor, resources={"greeter": greeter, "other": greeter}
    )
    ours = squid_definitions(
        workflows=[drain_workflows.greeting], resource=resource, drain=DrainConfig(linger_seconds=0), events="none"
    )
    defs = dg.Definitions.merge(project, ours)
    dg.Definitions.validate_loadable(defs)
    assert defs.executor is dg.multiprocess_executor
    started = defs.get_job_def(names.START_JOB).execute_in_process(
        instance=instance, run_config={"ops": {"squid_start_run": {"config": {"workflow": "greeting"}}}}
    )
    assert started.success
    assert defs.get_job_def(names.DISPATCH_JOB).execute_in_process(instance=instance).success
    squid = make_squid([drain_workflows.greeting], resources={"greeter": drain_workflows.Greeter()})
    (run,) = squid.list_runs().runs
    assert run.status == "completed"
    assert "from the project" in str(squid.inspect_run(run.run_id).outputs)


def test_a_location_names_actors_and_hears_messages(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid
) -> None:
    heard: list[str] = []
    review = Workflow("review", version="1")
    review.approval("decide")
    review.route("decide", on="ok", to="complete")
    review.route("decide", on="error", to="fail")
    defs = squid_definitions(
        workflows=[review],
        resource=resource,
        actor=lambda context: "ada",
        on_message=lambda item: heard.append(item.kind),
    )
    config = {"ops": {"squid_start_run": {"config": {"workflow": "review"}}}}
    assert defs.get_job_def(names.START_JOB).execute_in_process(instance=instance, run_config=config).success
    (run,) = make_squid([review]).list_runs().runs
    assert make_squid([review]).inspect_run(run.run_id).command_history[0].actor == "ada"
    attention = defs.get_repository_def().get_sensor_def(names.ATTENTION_SENSOR)
    attention(dg.build_sensor_context(instance=instance, resources={"squid": resource}))
    assert heard == [WAITING]
