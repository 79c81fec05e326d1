"""Commands from the launchpad: jobs that start, approve, reject, resume, cancel, replay and retry.

A job records one signal in the journal, once for each Dagster run however often that is retried, and shows the run as
it is then. A command that is refused fails the Dagster run with the error's text, and writes nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

from squid_dagster.api import Squid
from squid_dagster.plugin import names
from squid_dagster.plugin.builders import builds
from squid_dagster.plugin.commands.launchpad import (
    CancelConfig,
    CommandConfig,
    DecisionConfig,
    ReplayConfig,
    RetryConfig,
    start_config,
)
from squid_dagster.plugin.commands.payloads import with_values
from squid_dagster.plugin.failures import dagster_failures
from squid_dagster.plugin.resource import SquidResource, Workflows
from squid_dagster.plugin.run_metadata import run_metadata
from squid_dagster.protocol.errors import InvalidArgument, NotFound, SquidError
from squid_dagster.protocol.threads import check_part, dispatch_thread
from squid_dagster.redaction import redacted_text
from squid_dagster.runtime.adapters import definitions
from squid_dagster.runtime.commands.signals import Actor, Receipt
from squid_dagster.workflow.registry import Registry

ACTOR_SOURCE = "dagster_launchpad"
ActorHook = Callable[[dg.OpExecutionContext], str | dict[str, Any]]
_Act = Callable[[Squid, Any, dict[str, Any]], Receipt]


@builds
def build_command_jobs(
    *, workflows: Workflows, actor: ActorHook | None = None, queues: Sequence[str] | None = None
) -> list[dg.JobDefinition]:
    """Build the jobs `squid_start`, `squid_approve`, `squid_reject`, `squid_resume`, `squid_cancel`, `squid_replay`
    and `squid_retry`. Each has one op, which needs the resource `squid`.

    `actor` returns who gives the command, from the run's tags for instance; without it, the launchpad's field counts.
    Every signal has `actor_source: dagster_launchpad` and the Dagster run. `queues` are those that the location serves:
    a start on another one is refused, unless a worker serves that queue or it has been used before.

    Raises:
        InvalidWorkflow, WorkflowsNotLoaded: as `Squid`.
    """
    registry = Registry(definitions(list(workflows)) if workflows else ())
    current = [definition for definition in registry if registry.current(definition.name) is definition]

    def start(squid: Squid, config: Any, options: dict[str, Any]) -> Receipt:
        if config.queue is not None:
            _check_queue(squid, config.queue, queues or ())
        return squid.start(
            config.workflow,
            with_values(config.payload),
            trigger=config.trigger,
            queue=config.queue,
            priority=config.priority,
            version=config.version,
            **options,
        )

    jobs = _JobBuilder(workflows, actor)
    return [
        jobs.job(names.START_JOB, "squid_start_run", "Start a run of a workflow.", start_config(current), start),
        jobs.job(
            names.APPROVE_JOB,
            "squid_approve_run",
            "Approve what a run waits for.",
            DecisionConfig,
            lambda squid, config, options: squid.approve(config.run_id, step=config.step, **options),
        ),
        jobs.job(
            names.REJECT_JOB,
            "squid_reject_run",
            "Reject what a run waits for.",
            DecisionConfig,
            lambda squid, config, options: squid.reject(config.run_id, step=config.step, **options),
        ),
        jobs.job(
            names.RESUME_JOB,
            "squid_resume_run",
            "Let a paused run go on.",
            DecisionConfig,
            lambda squid, config, options: squid.resume(config.run_id, step=config.step, **options),
        ),
        jobs.job(
            names.CANCEL_JOB,
            "squid_cancel_run",
            "End a run as cancelled. Results that come later are refused.",
            CancelConfig,
            lambda squid, config, options: squid.cancel(config.run_id, cascade=config.cascade, **options),
        ),
        jobs.job(
            names.REPLAY_JOB,
            "squid_replay_run",
            "Start a new run with the workflow, trigger and payload of an earlier one.",
            ReplayConfig,
            lambda squid, config, options: squid.replay(
                config.run_id, allow_irreversible=config.allow_irreversible, **options
            ),
        ),
        jobs.job(
            names.RETRY_JOB,
            "squid_retry_attempt",
            "Put a dead letter back on its queue.",
            RetryConfig,
            lambda squid, config, options: squid.retry_attempt(config.run_id, config.runnable_key, **options),
        ),
    ]


class _JobBuilder:
    """Builds the job of a command."""

    def __init__(self, workflows: Workflows, actor: ActorHook | None) -> None:
        self._workflows = workflows
        self._actor = actor

    def job(
        self, name: str, op_name: str, description: str, config_type: type[CommandConfig], act: _Act
    ) -> dg.JobDefinition:
        workflows, actor = self._workflows, self._actor

        @dg.op(
            name=op_name,
            out=dg.Out(dg.Nothing),
            config_schema=config_type.to_fields_dict(),
            description=description,
        )
        def command(context: dg.OpExecutionContext, squid: SquidResource) -> None:
            with dagster_failures():
                config = config_type(**context.op_config)
                app = squid.squid_for(workflows)
                receipt = act(app, config, _options(context, config, actor))
            _show(context, app, receipt)

        # One short op: a process of its own for it would cost ten times what it does.
        @dg.job(
            name=name,
            tags=names.job_tags(names.AGENT_COMMAND),
            description=description,
            executor_def=dg.in_process_executor,
        )
        def job() -> None:
            command()

        return job


def _options(context: dg.OpExecutionContext, config: CommandConfig, hook: ActorHook | None) -> dict[str, Any]:
    # Of a re-execution the first run's id: a second click, or a retry of Dagster's, repeats nothing.
    first = context.run.root_run_id or context.run_id
    return {
        "actor": _actor(context, config, hook),
        "comment": config.comment,
        "metadata": {
            "actor_source": ACTOR_SOURCE,
            "actor_named_by": "location" if hook is not None else "launchpad" if config.actor else "nobody",
            "dagster_run_id": context.run_id,
            "dagster_job": context.job_name,
        },
        "idempotency_key": config.idempotency_key or first,
    }


def _actor(context: dg.OpExecutionContext, config: CommandConfig, hook: ActorHook | None) -> Actor:
    if hook is None:
        return config.actor or ACTOR_SOURCE
    named = hook(context)
    if not named or not isinstance(named, str | dict):
        raise InvalidArgument(f"the hook `actor` must give a name or an object about who asks, not {named!r:.80}")
    return named


def _check_queue(squid: Squid, queue: str, served: Sequence[str]) -> None:
    """Raise `NotFound` for a queue without workers that was never used: the run would wait for ever."""
    check_part(queue, "queue")
    if queue == squid.runtime.queue or queue in served or squid.journal.revision(dispatch_thread(queue)) > 0:
        return
    alive = {name for worker in squid.live_workers() for name in worker.queues}
    if queue not in alive:
        known = ", ".join(sorted({squid.runtime.queue, *served, *alive}))
        raise NotFound(
            f"queue {queue!r} does not exist: nobody serves it, and nothing was ever put on it. Take one of {known}, "
            "or give it to the location in queues=[...]"
        )


def _show(context: dg.OpExecutionContext, squid: Squid, receipt: Receipt) -> None:
    """Log the command and show the run. The command is done by now: a run that cannot be shown is no failure."""
    done = "was done before, by the same key" if receipt.repeated else "done"
    context.log.info(f"{receipt.signal_type} {done}: run {receipt.run_id}")
    context.instance.add_run_tags(context.run_id, {names.RUN_ID_TAG: receipt.run_id})
    shown: dict[str, dg.MetadataValue] = {"run_id": dg.MetadataValue.text(receipt.run_id)}
    try:
        shown |= run_metadata(squid, receipt.run_id)
    except SquidError as error:
        context.log.warning(f"run {receipt.run_id} cannot be shown now: {redacted_text(str(error))}")
    shown |= {
        "command": dg.MetadataValue.text(receipt.signal_type),
        "repeated": dg.MetadataValue.bool(receipt.repeated),
    }
    context.add_output_metadata(shown)
