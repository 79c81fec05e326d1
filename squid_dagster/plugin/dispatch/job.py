"""The dispatch job: one op that claims, executes and completes attempts in one process, and lingers for more.

Tokens never leave the process. The op's main thread only waits and writes logs, because a termination arrives there.
Dagster sees few runs, each of which drains queues; how many are alive is counted by liveness rows, not by Dagster.
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
from squid_dagster.plugin.dispatch.step_events import LineBuffer, Outcomes, Policy, Row, Write, step_logs
from squid_dagster.plugin.failures import dagster_failures
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
RUN_KIND = "dagster_run"  # of liveness rows
_LONGEST_SECONDS = MAX_LEASE.total_seconds()  # the longest wait of a drain run

logger = redacting_logger(__name__)

T = TypeVar("T")

_KNOWN_DEAD = 1000  # dead letters that are compared, of each queue


class DrainConfig(dg.Config):
    """Config of a drain run: queues, concurrency, times, and what it logs."""

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
    """Build the job that drains queues, for a location with a resource `squid`.

    The op requires the resources that the workflows' steps ask for: one that the location does not have fails when the
    location loads. `drain` is the default configuration in the launchpad. One op needs no process of its own,
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
    keys = frozenset(key for definition in known for key in definition.resources)

    @dg.op(
        name=DRAIN_OP,
        description="Claims, executes and completes attempts until nothing is due for a while.",
        required_resource_keys={RESOURCE, *keys},
    )
    def drain_op(context: dg.OpExecutionContext, config: DrainConfig) -> None:
        resource: SquidResource = getattr(context.resources, RESOURCE)
        with dagster_failures():
            chosen = _chosen(config.queues, served)
            step_resources = {key: getattr(context.resources, key) for key in keys}
            squid = _wait_for_database(config, lambda: resource.squid_running(workflows, step_resources))
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
    """Return the worker id of a Dagster run, for claims and liveness rows."""
    return f"dagster:{run_id}"


def _wait_for_database(config: DrainConfig, attempt: Callable[[], T]) -> T:
    """Wait for a database that is away when a run begins, up to `wait_seconds`: then the run fails visibly."""
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
    location, write = location_of_run(context.run), _without_errors(context.log.log)
    buffer = LineBuffer()
    policy: Policy = config.events
    outcomes = Outcomes(buffer, policy, config.slow_seconds)
    letters = _wait_for_database(config, lambda: DeadLetters(squid, queues, outcomes))
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
        letters.note_new()
        outcomes.summarize()

    drain = Drain(
        worker,
        Limits(
            linger_seconds=config.linger_seconds,
            max_age_seconds=config.max_age_seconds,
            grace_seconds=config.grace_seconds,
        ),
        buffer=buffer,
        write=write,
        superseded=lambda: is_superseded(squid.runtime.liveness, worker.worker_id, location, version),
        summarize=summarize,
    )
    write(logging.INFO, f"drains {', '.join(queues)} as {worker.worker_id}, {config.concurrency} steps at a time")
    with step_logs(buffer, logging.getLevelNamesMapping()[config.step_log_level]):
        try:
            reason = drain.run()
        except BaseException:
            write(logging.INFO, f"interrupted: {worker.report}")
            raise
    letters.note_new()
    buffer.flush(write)
    write(logging.INFO, f"ends, {reason}: {worker.report}")
    context.add_output_metadata(_metadata(worker, outcomes, buffer, reason))


def _metadata(worker: Worker, outcomes: Outcomes, buffer: LineBuffer, reason: str) -> dict[str, dg.MetadataValue]:
    report: WorkerReport = worker.report
    counts = ("claimed", "completed", "failed", "retried", "deferred", "released", "refused")
    metadata: dict[str, dg.MetadataValue] = {
        f"squid/{name}": dg.MetadataValue.int(getattr(report, name)) for name in counts
    }
    metadata["squid/dead_lettered"] = dg.MetadataValue.int(outcomes.counts["dead_lettered"])
    metadata["squid/ended_because"] = dg.MetadataValue.text(reason)
    metadata["squid/seconds"] = dg.MetadataValue.float(round(report.seconds, 3))
    metadata["squid/attempts"] = dg.MetadataValue.md(outcomes.markdown())
    if buffer.dropped:
        metadata["squid/dropped_log_lines"] = dg.MetadataValue.int(buffer.dropped)
    return metadata


def _without_errors(write: Write) -> Write:
    """Wrap a function that writes lines to Dagster: its errors, as when its storage is gone, do not end the drain."""

    def try_write(level: int, text: str) -> None:
        try:
            write(level, redacted_text(text))
        except Exception as error:  # noqa: BLE001  whatever Dagster's storage raises
            logger.info("a line could not be written to Dagster: %s: %s", type(error).__name__, text)

    return try_write


class DeadLetters:
    """The dead letters that appear during a drain run. A claim that makes one does not report which."""

    def __init__(self, squid: Squid, queues: Sequence[str], outcomes: Outcomes) -> None:
        """Read the present dead letters: they are not reported."""
        self._squid, self._queues, self._outcomes = squid, queues, outcomes
        self._known: set[str] | None = None  # until the database has been read
        self.note_new()

    def note_new(self) -> None:
        """Add new dead letters to the outcomes. If the database is away, the next call finds them."""
        try:
            attempts = self._all()
        except SquidError as error:
            logger.warning("could not look for dead letters, will be tried again: %s", error)
            return
        known = {row.runnable_key for row in attempts} if self._known is None else self._known
        new = [row for row in attempts if row.runnable_key not in known]
        self._known = known
        for row in new:
            known.add(row.runnable_key)
            note = f"delivered {row.deliveries} times without an outcome: `squid_retry` puts it back"
            outcome = Row(row.run_id, f"{row.workflow}.{row.step}", row.attempt_number, "dead_lettered", 0.0, note)
            self._outcomes.add(outcome, logging.ERROR)

    def _all(self) -> list[Attempt]:
        return [row for queue in self._queues for row in self._squid.dead_letters(queue, _KNOWN_DEAD)]
