"""`Squid`: the one object to start, run, control and look at workflows with."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from pydantic import JsonValue

from squid_dagster.agents import ClaimResult, DispatchAgent, WorkflowAgent
from squid_dagster.backlog.backlog import Backlog
from squid_dagster.inspection.inspection import ALIVE_WITHIN, Inspection
from squid_dagster.inspection.snapshot.snapshot import RunSnapshot
from squid_dagster.journal import PostgresStorage, Storage, open_journal
from squid_dagster.journal.contract.dispatch_store import DEFAULT_LEASE
from squid_dagster.journal.contract.notifier import Notifier
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import InvalidArgument, StaleClaim
from squid_dagster.runtime.adapters import adapters, definitions
from squid_dagster.runtime.commands import cron_starts, run_commands, signal_router
from squid_dagster.runtime.commands.child_runs import ChildStarter, start_child_run
from squid_dagster.runtime.commands.cloudevents import SOURCE, check_sources, from_cloudevent, signal_from_json
from squid_dagster.runtime.commands.run_start import (
    Payload,
    WorkflowRef,
    prepare_start,
    start_run,
    start_runs,
    with_keys,
)
from squid_dagster.runtime.commands.signals import Actor, Receipt, Signal, SignalType, check_signal, signal_options
from squid_dagster.runtime.execution.single_attempt import execute_one
from squid_dagster.runtime.recovery import recovery
from squid_dagster.runtime.recovery.recovery import RecoveryReport
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.runtime.worker.report import WorkerReport
from squid_dagster.runtime.worker.worker import Worker
from squid_dagster.workflow import MissingResource, StepContext, Workflow
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.planner.schedule import DEFAULT_QUEUE
from squid_dagster.workflow.registry import Registry

__all__ = ["ALIVE_WITHIN", "Squid"]


@checks_arguments
class Squid(Inspection):
    """A journal with the workflows that this process knows. Safe between threads; close it, or use it in a `with`.

    Commands take `actor`, `comment`, `metadata` and `idempotency_key`, and answer with a `Receipt`: using the key
    again, whenever, gives the first receipt. The receipt's `snapshot` is the run as it is now.
    """

    def __init__(
        self,
        storage: Storage,
        workflows: Iterable[Workflow | Definition] | Workflow | str | None = None,
        *,
        resources: Mapping[str, object] | None = None,
        queue: str = DEFAULT_QUEUE,
        lease: timedelta = DEFAULT_LEASE,
        listen_url: str | None = None,
        notifier: Notifier | None = None,
        record_wakeups: bool = True,
        event_sources: Collection[str] = (SOURCE,),
        new_run_id: Callable[[], str] | None = None,
        random_unit: Callable[[], float] | None = None,
    ) -> None:
        """Take a storage and workflows: objects, modules or names of modules. Of one name, the last is used for starts.

        `notifier` replaces the storage's own way to wake workers (NOTIFY, or within the process); it stays the
        caller's, and is not closed here. `record_wakeups` decides whether `DispatchAgent.schedule_attempts` writes
        `live_wakeup_emitted`. `event_sources` are the sources whose CloudEvents `apply_signal` takes; by default those
        of `to_cloudevent`.

        Raises:
            InvalidArgument: `event_sources` is no list of sources, or `notifier` has not the methods of one.
            InvalidWorkflow: a workflow that does not make sense; all problems at once, with paths.
            WorkflowsNotLoaded: something that is no workflow, or two with the same name and version.
            MissingResource: a step asks for a resource that was not given.
        """
        registry = Registry(definitions(() if workflows is None else workflows))
        given = dict(resources or {})
        missing = {key: each.name for each in registry for key in each.resources if key not in given}
        if missing:
            wanted = ", ".join(f"{key!r} (workflow {name!r})" for key, name in sorted(missing.items()))
            raise MissingResource(f"steps ask for resources that were not given: {wanted}; pass resources={{...}}")
        more: dict[str, Any] = {"new_run_id": new_run_id, "random_unit": random_unit}
        self._opened: PostgresStorage | None = None
        self._event_sources, self._record_wakeups = check_sources(event_sources), record_wakeups
        self.backlog = Backlog(storage)  # the cards that are kept in the same storage
        self.runtime = Runtime(
            storage=storage,
            **adapters(storage, listen_url, notifier)._asdict(),
            registry=registry,
            resources=given,
            queue=queue,
            lease=lease,
            **{name: value for name, value in more.items() if value is not None},
        )
        known = None if workflows is None else registry
        super().__init__(storage, self.runtime.queries, self.runtime.liveness, known)

    @classmethod
    def connect(
        cls,
        url: str | None = None,
        workflows: Iterable[Workflow | Definition] | Workflow | str | None = None,
        *,
        schema: str | None = None,
        wait: timedelta | None = timedelta(0),
        **options: Any,
    ) -> Self:
        """Open the journal at `url`, else the one that the configuration names, else an embedded one.

        A database that is not there is waited for as long as `wait` says; None: without end. `options` are those of
        `Squid(...)`. Raises what that and `open_journal` raise.
        """
        storage = open_journal(url, schema=schema, wait=wait)
        try:
            squid = cls(storage, workflows, **options)
        except BaseException:
            storage.close()
            raise
        squid._opened = storage
        return squid

    def close(self) -> None:
        """Give back what is held: notifications are sent, and the connections of a journal that `connect` opened."""
        self.runtime.notifier.close()
        if self._opened is not None:
            self._opened.close()

    def __enter__(self) -> Self:
        """Use it in a `with` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    # --- starting ---------------------------------------------------------------------------------------------------

    def start(
        self,
        workflow: WorkflowRef,
        payload: Payload = None,
        *,
        trigger: str | None = None,
        queue: str | None = None,
        run_id: str | None = None,
        priority: int = 0,
        version: str | None = None,
        actor: Actor | None = None,
        comment: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Start a run. With an `idempotency_key`, scoped to workflow and trigger, it is started once.

        Raises:
            NotFound: the workflow, or that version of it, is not registered.
            InvalidPayload, InvalidInput, InvalidArgument, InvalidThread, InvalidFact: what was given does not fit.
            ConflictingCommand: the key, or the run id, was used with another payload.
        """
        options = signal_options(actor=actor, comment=comment, metadata=metadata, idempotency_key=idempotency_key)
        start = prepare_start(
            self.runtime,
            workflow,
            payload,
            trigger=trigger,
            queue=queue,
            run_id=run_id,
            priority=priority,
            version=version,
            options=options,
        )
        return self._receipt(start_run(self.runtime, start))

    def start_many(
        self,
        workflow: WorkflowRef,
        payloads: Iterable[Payload],
        *,
        trigger: str | None = None,
        queue: str | None = None,
        priority: int = 0,
        version: str | None = None,
        actor: Actor | None = None,
        comment: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        idempotency_keys: Sequence[str] | None = None,
    ) -> list[Receipt]:
        """Start one run for each payload, hundreds in one commit. Raises as `start`."""
        options = signal_options(actor=actor, comment=comment, metadata=metadata)
        starts = [
            prepare_start(
                self.runtime,
                workflow,
                payload,
                trigger=trigger,
                queue=queue,
                priority=priority,
                version=version,
                options=options,
            )
            for payload in payloads
        ]
        return [self._receipt(each) for each in start_runs(self.runtime, list(with_keys(starts, idempotency_keys)))]

    def start_cron(
        self,
        workflow: WorkflowRef,
        trigger: str,
        *,
        signal_id: str | None = None,
        intended_window: Mapping[str, str] | None = None,
        queue: str | None = None,
        actor: Actor | None = None,
        comment: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Receipt:
        """Start the run of one window, or of one signal of another scheduler, once.

        Raises as `cron_starts.start_cron`.
        """
        options = signal_options(actor=actor, comment=comment, metadata=metadata)
        return self._receipt(
            cron_starts.start_cron(
                self.runtime,
                workflow,
                trigger,
                options,
                signal_id=signal_id,
                intended_window=intended_window,
                queue=queue,
            )
        )

    def start_due_crons(
        self, now: datetime | None = None, *, only: tuple[WorkflowRef, str] | None = None
    ) -> list[Receipt]:
        """Start every window of every cron trigger that is due and not started. Any number may call it at once.

        With `only`, a workflow and its trigger's name, just that one's. Raises as `cron_starts.start_due_crons`.
        """
        return [self._receipt(each) for each in cron_starts.start_due_crons(self.runtime, now, only=only)]

    def start_child_run(
        self,
        parent: StepContext | ClaimResult,
        workflow: WorkflowRef,
        payload: Payload = None,
        *,
        child_key: str,
        trigger: str | None = None,
        queue: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Receipt:
        """Start a child of the run that a step belongs to, once for the step and `child_key`, while its claim holds.

        `parent` is the context that a worker gave to the step, or what `DispatchAgent.claim_next` gave.

        Raises:
            StaleClaim: the step was taken over or is settled, or the context is none that a worker has made.
            ExpiredClaim, TerminalRun: the lease ran out, or the parent has ended.
            ConflictingCommand: the key was used for another workflow or payload.
            NotFound, InvalidPayload, InvalidInput, InvalidArgument, InvalidThread: as `start`.
        """
        options: dict[str, Any] = {"child_key": child_key, "trigger": trigger, "queue": queue, "metadata": metadata}
        if isinstance(parent, ClaimResult):
            return self._receipt(start_child_run(self.runtime, parent.claim, workflow, payload, **options))
        if not isinstance(parent, StepContext):
            raise InvalidArgument(f"parent must be a StepContext or a ClaimResult, not a {type(parent).__name__}")
        if not isinstance(parent.child_starter, ChildStarter):
            raise StaleClaim(
                f"the context of {parent.runnable_key!r} holds no claim: use the one that a worker gave to the step"
            )
        return self._receipt(parent.child_starter.start(self.runtime, parent, workflow, payload, **options))

    # --- controlling ------------------------------------------------------------------------------------------------

    def approve(self, run_id: str, *, actor: Actor, step: str | None = None, **options: Any) -> Receipt:
        """Approve what the run waits for; with `step`, only if that is the step that it waits at.

        Name the step that was looked at: another person may have decided on it, and the run waits at the next one.

        Raises:
            NotFound: no such run.
            InvalidTransition: the run does not wait for an approval, or at another step.
            IncompatibleDefinition: the run's definition is not registered here.
            ConflictingCommand: the idempotency key was used with another content.
        """
        return self._resolve(run_id, SignalType.APPROVE_RUN, step, actor=actor, **options)

    def reject(self, run_id: str, *, actor: Actor, step: str | None = None, **options: Any) -> Receipt:
        """Reject what the run waits for; `step` and raises as `approve`."""
        return self._resolve(run_id, SignalType.REJECT_RUN, step, actor=actor, **options)

    def resume(self, run_id: str, *, step: str | None = None, **options: Any) -> Receipt:
        """Let a paused run go on; `step` and raises as `approve`."""
        return self._resolve(run_id, SignalType.RESUME_RUN, step, **options)

    def _resolve(self, run_id: str, command: SignalType, step: str | None, **options: Any) -> Receipt:
        return self._receipt(run_commands.resolve(self.runtime, run_id, command, signal_options(**options), step=step))

    def cancel(self, run_id: str, *, cascade: bool = False, **options: Any) -> Receipt:
        """End a run as cancelled, with `cascade` its open children too. Results that come later are refused.

        Raises:
            NotFound: no such run.
            InvalidTransition: it has ended.
            ConflictingCommand: the idempotency key was used with another content.
        """
        return self._receipt(run_commands.cancel(self.runtime, run_id, signal_options(**options), cascade=cascade))

    def replay(self, run_id: str, *, allow_irreversible: bool = False, **options: Any) -> Receipt:
        """Start a new run with the workflow, trigger and payload of an earlier one.

        Raises:
            NotFound: no such run.
            UnsafeReplay: steps that cannot be repeated were completed, and `allow_irreversible` is not True.
            IncompatibleDefinition: the definition that it ran with is not registered here.
        """
        return self._receipt(
            run_commands.replay(self.runtime, run_id, signal_options(**options), allow_irreversible=allow_irreversible)
        )

    def retry_attempt(self, run_id: str, runnable_key: str | None = None, **options: Any) -> Receipt:
        """Put a dead letter back: the one named, or the only one that the run waits for.

        Raises:
            NotFound: no such run or attempt.
            InvalidTransition: there is no such dead letter, or the run has gone on.
        """
        return self._receipt(run_commands.retry_attempt(self.runtime, run_id, runnable_key, signal_options(**options)))

    def pause_queue(self, queue: str, **options: Any) -> bool:
        """Let nobody claim from a queue until it is resumed; tell whether this is new, not a repeat of the key."""
        return run_commands.set_queue_paused(self.runtime, queue, True, signal_options(**options))

    def resume_queue(self, queue: str, **options: Any) -> bool:
        """Allow claims from a queue again; tell whether this is new, not a repeat of the key."""
        return run_commands.set_queue_paused(self.runtime, queue, False, signal_options(**options))

    def apply_signal(self, signal: Signal | Mapping[str, Any]) -> Receipt:
        """Do what a signal asks for: a `Signal`, its JSON form, or a CloudEvent of one of the `event_sources`.

        A CloudEvent's source and id are its idempotency key, unless its data brings one: a repeat gives the first
        receipt. Its `time` is kept as `caller_time`, and decides nothing.

        Raises:
            InvalidArgument: it is none of these, of an unknown source, or asks for something that is not on the list.
            SquidError: whatever the command raises.
        """
        if isinstance(signal, Mapping):
            is_event = "specversion" in signal
            signal = from_cloudevent(signal, self._event_sources) if is_event else signal_from_json(signal)
        elif isinstance(signal, Signal):
            check_signal(signal)
        else:
            raise InvalidArgument(f"a signal is a Signal, its JSON form or a CloudEvent, not a {type(signal).__name__}")
        return self._receipt(signal_router.apply_signal(self.runtime, signal))

    # --- working ----------------------------------------------------------------------------------------------------

    def execute_next(
        self,
        queue: str | None = None,
        *,
        owner_id: str | None = None,
        lease: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> RunSnapshot | None:
        """Claim one attempt, run its step in this thread with heartbeats, write down what came of it.

        Gives the run as it is afterwards; None when nothing is due. A step that fails is no error here. `heartbeat` is
        how often the lease is extended, by default every third of it. Inside a running event loop it works too, and
        blocks that loop: an async step then runs on a loop of its own, in another thread.

        Raises:
            StaleClaim, ExpiredClaim, TerminalRun: the claim was lost while the step ran; its result was dropped.
            InvalidArgument, InvalidThread: a bad queue, owner, lease or heartbeat; nothing was claimed.
        """
        run_id = execute_one(self.runtime, queue, owner_id, lease, heartbeat)
        return None if run_id is None else self.inspect_run(run_id)

    def worker(self, queue: str | Sequence[str] | None = None, **options: Any) -> WorkerReport:
        """Run steps from one or more queues until stopped (SIGTERM), or with `until_idle` until nothing is due.

        `options` are those of `Worker`: concurrency, until_idle, lease, poll, grace, max_age, housekeeping. To stop it
        from another thread, make a `Worker(squid.runtime, [...])` and call its `run` and `stop`.
        """
        return self.new_worker(queue, **options).run()

    def new_worker(self, queue: str | Sequence[str] | None = None, **options: Any) -> Worker:
        """Give a worker that is not running yet, for whoever wants to stop it by himself. Raises as `Worker`."""
        queues = [self.runtime.queue] if queue is None else [queue] if isinstance(queue, str) else list(queue)
        return Worker(self.runtime, queues, **options)

    def recover(self, queue: str | None = None) -> RecoveryReport:
        """Close all crash windows, of all queues or one. Any number at once are as good as one."""
        return recovery.recover(self.runtime, queue)

    def dispatch_agent(self, queue: str | None = None) -> DispatchAgent:
        """Give the agent of a queue. What it completes is planned on, and it claims only what is registered here."""
        runtime = self.runtime
        return DispatchAgent(
            runtime.storage,
            runtime.dispatch,
            queue or runtime.queue,
            plan=runtime.plan,
            definitions=runtime.registry.keys,
            notifier=runtime.notifier,
            record_wakeups=self._record_wakeups,
        )

    def workflow_agent(self, run_id: str) -> WorkflowAgent:
        """Give the agent of a run."""
        return WorkflowAgent(self.runtime.storage, self.runtime.dispatch, run_id, self.runtime.definition_of)

    def _receipt(self, receipt: Receipt) -> Receipt:
        return replace(receipt, inspect=self.inspect_run)
