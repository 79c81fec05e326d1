"""`squid_definitions`: all definitions of a code location, in one call.

It brings jobs, sensors, schedules and the resource `squid`, with a warehouse its assets too, and nothing else: no
executor, no logger. So it merges into any project. The `build_*` functions give fewer definitions, or other settings.
"""

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, cast, get_args

import dagster as dg

from squid_dagster.plugin.attention.sensor import OnMessage, build_attention_sensor
from squid_dagster.plugin.builders import builds
from squid_dagster.plugin.commands.jobs import ActorHook, build_command_jobs
from squid_dagster.plugin.crons import build_cron_schedules
from squid_dagster.plugin.dispatch.job import DrainConfig, build_dispatch_job
from squid_dagster.plugin.dispatch.sensor import build_dispatch_sensor
from squid_dagster.plugin.dispatch.step_events import Policy
from squid_dagster.plugin.external.sensor import build_external_sensor
from squid_dagster.plugin.names import RESOURCE, START_JOB
from squid_dagster.plugin.projections import SparkResource, WarehouseResource, projection_definitions
from squid_dagster.plugin.recovery import build_recovery_job, build_recovery_schedule
from squid_dagster.plugin.resource import SquidResource
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.threads import check_part
from squid_dagster.runtime.adapters import definitions
from squid_dagster.workflow import Workflow, load_workflows
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.planner.schedule import DEFAULT_QUEUE

Given = Workflow | Definition | ModuleType | str
MAX_IN_FLIGHT = 2
ATTEMPTS_PER_RUN = 1000
LAUNCH_GRACE_SECONDS = 60.0
MINIMUM_INTERVAL_SECONDS = 1


@builds
def squid_definitions(
    *,
    workflows: Given | Iterable[Given] = (),
    queues: Sequence[str] = (DEFAULT_QUEUE,),
    resource: SquidResource | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    attempts_per_run: int = ATTEMPTS_PER_RUN,
    launch_grace_seconds: float = LAUNCH_GRACE_SECONDS,
    minimum_interval_seconds: int = MINIMUM_INTERVAL_SECONDS,
    events: Policy | None = None,
    drain: DrainConfig | None = None,
    actor: ActorHook | None = None,
    on_message: OnMessage | None = None,
    external_jobs: Sequence[Any] = (),
    external_assets: Sequence[Any] | None = None,
    code_version: str | None = None,
    warehouse: WarehouseResource | None = None,
    spark: SparkResource | None = None,
) -> dg.Definitions:
    """Build jobs, sensors and schedules for these workflows, and the resource `squid`, to be merged into a project.

    `workflows` are workflows, modules or names of modules; those of `resource.workflow_modules` come in addition.
    `resource` is the journal; None: the one that the environment names, else the embedded server. `drain` says how
    drain runs work, `events` what they log of it. `external_jobs` and `external_assets` are what steps that are done in
    Dagster may name. With a `warehouse`, or with `spark`, the assets that Spark makes of the journal come in addition
    (`projection_definitions`). The other parameters are those of the `build_*` functions.

    The project must have the resources that steps ask for by annotation: one that is missing fails when it loads.

    Example:
        `defs = dg.Definitions.merge(my_defs, squid_definitions(workflows=[orders], queues=["default", "mail"]))`

    Raises:
        InvalidWorkflow, WorkflowsNotLoaded: a workflow that cannot be used; all problems of it at once.
        InvalidArgument: no workflow or no queue, a value out of range, or a default queue that is not among the queues.
            When the location loads, also for a credential in clear.
        InvalidThread: a name that no queue can have.
    """
    served = _queues(queues)
    journal = _resource(resource, served)
    known = (*journal.workflow_modules, *_listed(workflows))
    if not known:
        raise InvalidArgument(
            "a location needs at least one workflow: give workflows=[orders], or the names of their modules, such as "
            "workflows=['orders.workflows']"
        )
    config = _drain(drain or DrainConfig(), events)
    dispatch = build_dispatch_job(workflows=known, queues=served, drain=config, code_version=code_version)
    recovery = build_recovery_job(workflows=known)
    commands = build_command_jobs(workflows=known, actor=actor, queues=served)
    start = next(job for job in commands if job.name == START_JOB)
    sensors = [
        build_dispatch_sensor(
            job=dispatch,
            queues=served,
            workflows=known,
            max_in_flight=max_in_flight,
            attempts_per_run=attempts_per_run,
            launch_grace_seconds=launch_grace_seconds,
            minimum_interval_seconds=minimum_interval_seconds,
            drain=config,
            code_version=code_version,
        ),
        build_attention_sensor(workflows=known, on_message=on_message),
    ]
    # Without external steps, the sensor would only cost its ticks.
    if any(step.external for definition in definitions(list(known)) for step in definition.steps.values()):
        sensors.append(
            build_external_sensor(workflows=known, jobs=external_jobs, assets=external_assets, queues=served)
        )
    defs = dg.Definitions(
        jobs=[dispatch, recovery, *commands],
        sensors=sensors,
        schedules=[build_recovery_schedule(job=recovery), *build_cron_schedules(workflows=known, job=start)],
        resources={RESOURCE: journal},
    )
    if warehouse is None and spark is None:
        return defs
    return dg.Definitions.merge(defs, projection_definitions(spark=spark, warehouse=warehouse))


def _listed(workflows: Given | Iterable[Given]) -> tuple[Workflow | Definition | str, ...]:
    """Return the argument as a tuple: an iterator is read once, and a name is not a list of letters."""
    single = isinstance(workflows, Workflow | Definition | ModuleType | str)
    items = cast("Iterable[Given]", [workflows] if single else workflows)
    return tuple(w for item in items for w in (load_workflows(item) if isinstance(item, ModuleType) else [item]))


def _queues(queues: Sequence[str]) -> tuple[str, ...]:
    if isinstance(queues, str):
        raise InvalidArgument(f"queues is a list of names, not one name: give queues=[{queues!r}]")
    if not queues:
        raise InvalidArgument("a location needs at least one queue: give queues=['default']")
    return tuple(dict.fromkeys(check_part(queue, "queue") for queue in queues))


def _drain(config: DrainConfig, events: Policy | None) -> DrainConfig:
    if events is None:
        return config
    if events not in get_args(Policy):
        raise InvalidArgument(f"events is {events!r}: give one of {', '.join(get_args(Policy))}")
    return DrainConfig(**{**config.model_dump(), "events": events})


def _resource(given: SquidResource | None, queues: tuple[str, ...]) -> SquidResource:
    """Return the resource, with a default queue that this location serves."""
    if given is None:
        return SquidResource(queue=DEFAULT_QUEUE if DEFAULT_QUEUE in queues else queues[0])
    if given.queue not in queues and not isinstance(given.queue, dg.EnvVar):
        raise InvalidArgument(
            f"the resource's queue {given.queue!r} is none of the location's ({', '.join(queues)}), so what is started "
            f"there would wait for ever: give SquidResource(queue={queues[0]!r}), or add it to queues=[...]"
        )
    return given
