"""The dispatch job: one op that claims, executes and completes attempts in one process, and lingers for more.

Tokens never leave the process. The op's main thread only waits and writes logs, because a termination arrives there.
Dagster sees few runs, each of which works off queues; how many are alive is told by the presence table, not by Dagster.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Literal, TypeVar

import dagster as dg
from pydantic import Field

from squid_dagster.api import Squid
from squid_dagster.journal.availability import when_available
from squid_dagster.limits import MAX_LEASE
from squid_dagster.logs import redacting_logger
from squid_dagster.plugin.builders import builds
from squid_dagster.plugin.dispatch.code_version import code_version as code_version_of
from squid_dagster.plugin.dispatch.code_version import is_superseded, location_of_run
from squid_dagster.plugin.dispatch.drain import Drain, Limits
from squid_dagster.plugin.dispatch.step_events import Outbox, Outcomes, Policy, Row, Write, step_logs
from squid_dagster.plugin.failures import explained
from squid_dagster.plugin.names import AGENT_DISPATCH, DISPATCH_JOB, RESOURCE, job_tags
from squid_dagster.plugin.resource import SquidResource, Workflows
from squid_dagster.protocol.errors import InvalidArgument, SquidError
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.redaction import redacted_text
from squid_dagster.runtime.adapters import definitions
from squid_dagster.runtime.worker.report import WorkerReport
from squid_dagster.runtime.worker.worker import Worker
from squid_dagster.workflow.planner.schedule import DEFAULT_QUEUE

DRAIN_OP = "drain"
RUN_KIND = "dagster_run"  # in the presence table
_LONGEST_SECONDS = MAX_LEASE.total_seconds()  # of anything that a drain run waits for

logger = redacting_logger(__name__)

T = TypeVar("T")

_KNOWN_DEAD = 1000  # dead letters that are compared, of each queue


class DrainConfig(dg.Config):
    """How a drain run works: where, how much at a time, for how long, and what of it is shown."""

    queues: list[str] = Field(default=[], description="Queues to work off. None named: all queues of this location.")
    concurrency: int = Field(default=10, ge=1, le=1000, description="How many steps run at a time.")
    linger_seconds: float = Field(
        default=20.0,
        ge=0,
        le=_LONGEST_SECONDS,
        description="How long to stay when nothing is due; work that comes meanwhile starts at once.",
    )
    max_age_seconds: float = Field(
        default=3600.0,
        gt=0,
        le=86_400,
        description="After how long to claim nothing more and hand over to another run.",
    )
    finish_seconds: float = Field(
        default=3600.0,
        ge=0,
        le=_LONGEST_SECONDS,
        description="How long running steps may take to finish after the last claim.",
    )
    grace_seconds: float = Field(
        default=10.0,
        ge=0,
        le=_LONGEST_SECONDS,
        description="How long running steps have when the run is terminated; then they are given back.",
    )
    wait_seconds: float = Field(
        default=60.0,
        ge=0,
        le=_LONGEST_SECONDS,
        description="How long to wait for a database that is away when the run begins; then it fails.",
    )
    events: Literal["notable", "all", "none"] = Field(
        default="notable",
        description="What is logged: failures, retries, dead letters and slow steps; every attempt; or nothing.",
    )
    slow_seconds: float = Field(
        default=30.0, ge=0, le=_LONGEST_SECONDS, description="From which duration on a step is slow."
    )
    step_log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="From which level on `ctx.log` of steps is written to this run's log."
    )


@builds
def build_dispatch_job(
    *,
    workflows: Workflows = (),
    queues: Sequence[str] = (DEFAULT_QUEUE,),
    drain: DrainConfig | None = None,
    code_version: str | None = None,
    executor_def: dg.ExecutorDefinition | None = dg.in_process_executor,
    name: str = DISPATCH_JOB,
) -> dg.JobDefinition:
    """Give the job that works off queues, for a location with a resource `squid`.

    The op requires the resources that the workflows' steps ask for: one that the location does not have fails when the
    location loads. `drain` is the configuration that the launchpad begins with. One op needs no process of its own,
    so the job runs in its run worker; `executor_def=None` takes the location's executor. Dagster's retries are off.

    Raises:
        InvalidWorkflow, WorkflowsNotLoaded: a workflow that cannot be used; all problems at once.
        InvalidArgument: no queue is given.
    """
    known = definitions(list(workflows)) if workflows else []
    served = list(dict.fromkeys(queues))
    if not served:
        raise InvalidArgument("a dispatch job needs at least one queue: give queues=['default']")
    version = code_version if code_version is not None else code_version_of(known)
    keys = frozenset(key for each in known for key in each.resources)

    @dg.op(
        name=DRAIN_OP,
        description="Claims, executes and completes attempts until nothing is due for a while.",
        required_resource_keys={RESOURCE, *keys},
    )
    def drain_op(context: dg.OpExecutionContext, config: DrainConfig) -> None:
        resource: SquidResource = getattr(context.resources, RESOURCE)
        with explained():
            chosen = _chosen(config.queues, served)
            given = {key: getattr(context.resources, key) for key in keys}
            squid = _patiently(config, lambda: resource.squid_running(workflows, given))
            try:
                _drain(context, config, squid, resource, chosen, version)
            finally:
                squid.close()

    @dg.job(
        name=name,
        description=f"Works off the queues {', '.join(served)}. Launched by a sensor; may be launched by hand.",
        tags=job_tags(AGENT_DISPATCH),
        executor_def=executor_def,
        config=dg.RunConfig(ops={DRAIN_OP: drain or DrainConfig()}),
    )
    def job() -> None:
        drain_op()

    return job


def worker_id_of(run_id: str) -> str:
    """Name the worker of a Dagster run, in claims and in the presence table."""
    return f"dagster:{run_id}"


def _patiently(config: DrainConfig, attempt: Callable[[], T]) -> T:
    """Wait for a database that is away when a run begins, but not for long: a run that cannot work is to be seen."""
    until = time.monotonic() + config.wait_seconds
    return when_available(attempt, "the drain run", seconds_left=lambda: until - time.monotonic())


def _chosen(wanted: Sequence[str], served: Sequence[str]) -> list[str]:
    unknown = [queue for queue in wanted if queue not in served]
    if unknown:
        raise InvalidArgument(
            f"queue {unknown[0]!r} is none of this location's ({', '.join(served)}): name one of these, or give the "
            f"location queues=[{unknown[0]!r}, ...]"
        )
    return list(dict.fromkeys(wanted)) or list(served)


def _drain(
    context: dg.OpExecutionContext,
    config: DrainConfig,
    squid: Squid,
    resource: SquidResource,
    queues: list[str],
    version: str,
) -> None:
    location, write = location_of_run(context.run), _careful(context.log.log)
    outbox = Outbox()
    policy: Policy = config.events
    outcomes = Outcomes(outbox, policy, config.slow_seconds)
    letters = _patiently(config, lambda: DeadLetters(squid, queues, outcomes))
    worker = squid.new_worker(
        queues,
        concurrency=config.concurrency,
        grace=timedelta(seconds=config.finish_seconds),
        heartbeat=resource.heartbeat,
        worker_id=worker_id_of(context.run_id),
        kind=RUN_KIND,
        details={"dagster_run_id": context.run_id, "location": location, "code_version": version},
        on_settled=outcomes.settled,
    )

    def summarize() -> None:
        letters.look()
        outcomes.summarize()

    drain = Drain(
        worker,
        Limits(
            linger_seconds=config.linger_seconds,
            max_age_seconds=config.max_age_seconds,
            grace_seconds=config.grace_seconds,
        ),
        outbox=outbox,
        write=write,
        superseded=lambda: is_superseded(squid.runtime.liveness, worker.worker_id, location, version),
        summarize=summarize,
    )
    write(logging.INFO, f"drains {', '.join(queues)} as {worker.worker_id}, {config.concurrency} steps at a time")
    with step_logs(outbox, logging.getLevelNamesMapping()[config.step_log_level]):
        try:
            reason = drain.run()
        except BaseException:
            write(logging.INFO, f"interrupted: {worker.report}")
            raise
    letters.look()
    outbox.forward(write)
    write(logging.INFO, f"ends, {reason}: {worker.report}")
    context.add_output_metadata(_metadata(worker, outcomes, outbox, reason))


def _metadata(worker: Worker, outcomes: Outcomes, outbox: Outbox, reason: str) -> dict[str, dg.MetadataValue]:
    report: WorkerReport = worker.report
    counts = ("claimed", "completed", "failed", "retried", "deferred", "released", "refused")
    found: dict[str, dg.MetadataValue] = {
        f"squid/{name}": dg.MetadataValue.int(getattr(report, name)) for name in counts
    }
    found["squid/dead_lettered"] = dg.MetadataValue.int(outcomes.counts["dead_lettered"])
    found["squid/ended_because"] = dg.MetadataValue.text(reason)
    found["squid/seconds"] = dg.MetadataValue.float(round(report.seconds, 3))
    found["squid/attempts"] = dg.MetadataValue.md(outcomes.markdown())
    if outbox.dropped:
        found["squid/dropped_log_lines"] = dg.MetadataValue.int(outbox.dropped)
    return found


def _careful(write: Write) -> Write:
    """Write lines to Dagster; that it cannot take them, its storage being gone perhaps, must not end the work."""

    def careful(level: int, text: str) -> None:
        try:
            write(level, redacted_text(text))
        except Exception as error:  # noqa: BLE001  whatever Dagster's storage raises
            logger.info("a line could not be written to Dagster: %s: %s", type(error).__name__, text)

    return careful


class DeadLetters:
    """Finds attempts that were given up while this run was there. A claim gives them up, and tells nobody which."""

    def __init__(self, squid: Squid, queues: Sequence[str], outcomes: Outcomes) -> None:
        """Look at what is dead already: that is no news."""
        self._squid, self._queues, self._outcomes = squid, queues, outcomes
        self._known: set[str] | None = None  # until the first look that finds a database
        self.look()

    def look(self) -> None:
        """Note those that are new. That the database cannot be reached is no error: the next look finds them."""
        try:
            found = self._all()
        except SquidError as error:
            logger.warning("could not look for dead letters, will be tried again: %s", error)
            return
        known = {row.runnable_key for row in found} if self._known is None else self._known
        new = [row for row in found if row.runnable_key not in known]
        self._known = known
        for row in new:
            known.add(row.runnable_key)
            note = f"delivered {row.deliveries} times without an outcome: `squid_retry` puts it back"
            shown = Row(row.run_id, f"{row.workflow}.{row.step}", row.attempt_number, "dead_lettered", 0.0, note)
            self._outcomes.note(shown, logging.ERROR)

    def _all(self) -> list[Attempt]:
        return [row for queue in self._queues for row in self._squid.dead_letters(queue, _KNOWN_DEAD)]
