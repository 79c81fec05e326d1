"""The dispatch sensor: launches drain runs when attempts are due and too few workers are alive.

The journal decides: due attempts and live workers are read from its database. Dagster's run records are read only for
launches so young that their runs have no liveness row yet, for runs that wait in Dagster's own queue, and for the end
of runs that were alive a moment ago.
No cursor, no run key: a tick that is repeated, lost or evaluated twice costs at most a run that has nothing to do.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from squid_dagster.inspection.inspection import ALIVE_WITHIN
from squid_dagster.journal.contract.worker_liveness import WorkerRow
from squid_dagster.limits import MAX_LEASE
from squid_dagster.plugin.builders import builds
from squid_dagster.plugin.dispatch.code_version import code_version as code_version_of
from squid_dagster.plugin.dispatch.code_version import location_of_tick, report_version
from squid_dagster.plugin.dispatch.job import DRAIN_OP, RUN_KIND, DrainConfig, worker_id_of
from squid_dagster.plugin.dispatch.scale import Scale, launches
from squid_dagster.plugin.failures import run_tick
from squid_dagster.plugin.names import (
    DISPATCH_SENSOR,
    LOCATION_TAG,
    MAX_RUNTIME_TAG,
    QUEUE_TAG,
    RESOURCE,
)
from squid_dagster.plugin.resource import SquidResource, Workflows
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.runtime.adapters import definitions
from squid_dagster.workflow.planner.schedule import DEFAULT_QUEUE

_ON_THE_WAY = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.FAILURE,  # one that fails at once is not launched again at once
]
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_RECORDS = 50
_MOST = 10_000
_ENDING_SECONDS = 600  # that a run may take for its start and its end


@builds
def build_dispatch_sensor(
    *,
    job: dg.JobDefinition,
    queues: Sequence[str] = (DEFAULT_QUEUE,),
    workflows: Workflows = (),
    max_in_flight: int = 2,
    attempts_per_run: int = 1000,
    launch_grace_seconds: float = 60.0,
    minimum_interval_seconds: int = 1,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
    drain: DrainConfig | None = None,
    code_version: str | None = None,
    name: str = DISPATCH_SENSOR,
) -> dg.SensorDefinition:
    """Build the sensor that launches `job`, which `build_dispatch_job` built for the same queues and workflows.

    At most `max_in_flight` runs are alive; there is one for every `attempts_per_run` that are due, and at least one
    while any attempt is. Dagster's daemon evaluates every 5 seconds; an interval as long as that would miss every other
    evaluation. A run that was launched counts for `launch_grace_seconds`, until its worker reports itself. A tick with
    nothing due costs one indexed query. While the database cannot be reached, ticks are skipped and say so.

    Raises:
        InvalidArgument: no queue, or a number out of range.
        InvalidWorkflow, WorkflowsNotLoaded: a workflow that cannot be used.
    """
    served = tuple(dict.fromkeys(queues))
    if not served:
        raise InvalidArgument("a dispatch sensor needs at least one queue: give queues=['default']")
    for what, number in (("max_in_flight", max_in_flight), ("attempts_per_run", attempts_per_run)):
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= _MOST:
            raise InvalidArgument(f"{what} must be a whole number from 1 to {_MOST}, not {number!r}")
    if not 0 < launch_grace_seconds <= MAX_LEASE.total_seconds():
        raise InvalidArgument(
            f"launch_grace_seconds must be above 0 and at most {MAX_LEASE.days} days, not {launch_grace_seconds!r}"
        )
    known = definitions(list(workflows)) if workflows else []
    version = code_version if code_version is not None else code_version_of(known)
    config = drain or DrainConfig()
    grace = timedelta(seconds=launch_grace_seconds)

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        return run_tick(lambda: launch(context))

    def launch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        resource: SquidResource = getattr(context.resources, RESOURCE)
        squid, location = resource.squid_for(workflows), location_of_tick(context)
        report_version(squid, location, version)
        keys = squid.runtime.registry.keys
        backlog = squid.runtime.queries.backlog(served, keys, min(_MOST, max_in_flight * attempts_per_run))
        if not backlog:
            return dg.SkipReason(f"nothing is due on {', '.join(served)}")
        workers = _without_ended(context.instance, squid.live_workers())
        scale = Scale(
            queues=served,
            definitions=keys,
            run_kind=RUN_KIND,
            location=location,
            code_version=version,
            max_in_flight=max_in_flight,
            attempts_per_run=attempts_per_run,
        )
        now = datetime.now(UTC)
        tags = {QUEUE_TAG: ",".join(served), LOCATION_TAG: location}
        reported = squid.runtime.liveness.workers(max(grace, ALIVE_WITHIN))
        launching = _launching(context.instance, job.name, tags, reported, now - grace)
        runs, reason = launches(scale, backlog, workers, launching, now)
        if runs == 0:
            return dg.SkipReason(reason)
        context.log.info(f"{reason}: launching {runs} more")
        return dg.SensorResult(run_requests=[_request(job.name, config, served, tags) for _ in range(runs)])

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=evaluate,
        job=job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={RESOURCE},
        description=f"Launches {job.name} when something is due on {', '.join(served)}.",
    )


def _request(job_name: str, config: DrainConfig, queues: Sequence[str], tags: dict[str, str]) -> dg.RunRequest:
    longest = int(config.max_age_seconds + config.finish_seconds + _ENDING_SECONDS)
    chosen = config.model_copy(update={"queues": list(config.queues) or list(queues)})
    return dg.RunRequest(
        job_name=job_name,
        run_config=dg.RunConfig(ops={DRAIN_OP: chosen}),
        tags={**tags, MAX_RUNTIME_TAG: str(longest)},  # by which Dagster's monitoring fails runs that were killed
    )


def _without_ended(instance: dg.DagsterInstance, workers: Sequence[WorkerRow]) -> list[WorkerRow]:
    """Filter out drain runs that have ended in Dagster, which often notices a kill before their rows expire.

    A hint: if it is wrong, or its storage is gone, the rows expire by themselves.
    """
    runs = {row.details.get("dagster_run_id"): row.worker_id for row in workers if row.kind == RUN_KIND}
    run_ids = [run_id for run_id in runs if isinstance(run_id, str)]
    if not run_ids:
        return list(workers)
    records = instance.get_run_records(dg.RunsFilter(run_ids=run_ids, statuses=_ENDED), limit=len(run_ids))
    ended = {runs[record.dagster_run.run_id] for record in records}
    return [row for row in workers if row.worker_id not in ended]


def _launching(
    instance: dg.DagsterInstance, job_name: str, tags: dict[str, str], reported: Sequence[WorkerRow], since: datetime
) -> int:
    """Count runs that were launched and have no liveness row; bounded, however long the history is.

    One with a row that is not alive any more was killed: it does not count.
    """
    seen = {row.worker_id for row in reported}
    young = instance.get_run_records(
        dg.RunsFilter(job_name=job_name, statuses=_ON_THE_WAY, created_after=since, updated_after=since), limit=_RECORDS
    )
    # One that waits in Dagster's queue will be launched, however old: another one would wait behind it.
    queued = instance.get_run_records(
        dg.RunsFilter(job_name=job_name, statuses=[dg.DagsterRunStatus.QUEUED]), limit=_RECORDS
    )
    runs = {record.dagster_run.run_id: record.dagster_run for record in (*young, *queued)}
    return sum(
        worker_id_of(run_id) not in seen and all(run.tags.get(key) == value for key, value in tags.items())
        for run_id, run in runs.items()
    )
