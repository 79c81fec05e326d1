"""`Squid`: the one object to start, run, control and look at workflows with.

The command and the Dagster plugin go through it. What can be looked at is in `Inspection`, what commands do is in
`runtime.commands`. It owns only what `connect` opened.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Self, Unpack

from squid_dagster.agents import ClaimResult, DispatchAgent, WorkflowAgent
from squid_dagster.backlog.backlog import Backlog
from squid_dagster.inspection.inspection import Inspection
from squid_dagster.inspection.snapshot.snapshot import RunSnapshot
from squid_dagster.journal import PostgresStorage, Storage, open_journal
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.runtime.adapters import RuntimeOptions, SquidOptions, Workflows, make_runtime
from squid_dagster.runtime.commands import child_runs, cron_starts, run_commands, run_start, signal_router, signals
from squid_dagster.runtime.commands.cloudevents import SOURCE, check_sources
from squid_dagster.runtime.commands.run_start import Payload, RunOptions, StartOptions, WorkflowRef
from squid_dagster.runtime.commands.signals import Actor, CommandOptions, DecisionOptions, Receipt, SignalOptions
from squid_dagster.runtime.execution.single_attempt import execute_one
from squid_dagster.runtime.recovery import recovery
from squid_dagster.runtime.worker.options import WorkerOptions
from squid_dagster.runtime.worker.report import WorkerReport
from squid_dagster.runtime.worker.worker import Worker
from squid_dagster.workflow import StepContext


@checks_arguments
class Squid(Inspection):
    """A journal with the workflows that this process knows. Safe between threads; close it, or use it in a `with`.

    Without `workflows` it looks and takes the commands that need no definition. Nothing is said of definitions then: an
    unknown one is not a missing one, and no run is shown as held. What needs a definition (starts, decisions, replays)
    raises `NotFound` or `IncompatibleDefinition`, and no step is executed. An empty list says that there are none.
    Looking writes nothing: where only reading is possible (a standby, a role), other calls raise `StorageUnavailable`.

    Commands take `actor`, `comment`, `metadata` and `idempotency_key`, and answer with a `Receipt`: using the key
    again, whenever, gives the first receipt. The receipt's `snapshot` is the run as it is now.
    """

    def __init__(
        self,
        storage: Storage,
        workflows: Workflows | None = None,
        *,
        record_wakeups: bool = True,
        event_sources: Collection[str] = (SOURCE,),
        **options: Unpack[RuntimeOptions],
    ) -> None:
        """Bind to a storage and workflows: objects, modules or names of modules. Of one name, starts use the last.

        `record_wakeups` decides whether `DispatchAgent.schedule_attempts` writes `live_wakeup_emitted`. `event_sources`
        are the sources whose CloudEvents `apply_signal` takes; by default those of `to_cloudevent`.

        >>> Squid(MemoryStorage(), [orders]).start("orders", {"item": "tea"}).snapshot.status
        'running'

        Raises:
            InvalidArgument: `event_sources` is no list of sources.
            InvalidArgument, InvalidWorkflow, WorkflowsNotLoaded, MissingResource: as `make_runtime`.
        """
        self.runtime = make_runtime(storage, () if workflows is None else workflows, **options)
        definitions = None if workflows is None else self.runtime.registry
        super().__init__(storage, self.runtime.queries, self.runtime.liveness, definitions)
        self._event_sources, self._record_wakeups = check_sources(event_sources), record_wakeups
        self._opened: PostgresStorage | None = None  # by `connect`
        self.backlog = Backlog(storage)  # the cards in the same storage

    @classmethod
    def connect(
        cls,
        url: str | None = None,
        workflows: Workflows | None = None,
        *,
        schema: str | None = None,
        wait: timedelta | None = timedelta(0),
        **options: Unpack[SquidOptions],
    ) -> Self:
        """Open the journal at `url`, else the one that the configuration names, else an embedded one.

        A database that does not answer is waited for as long as `wait` says; None: without end. `options` are those of
        `Squid(...)`. Raises what that and `open_journal` raise.

        >>> with Squid.connect(url, [orders], schema=schema) as squid:
        ...     squid.start("orders", {"item": "tea"}).signal_type
        'start_run'
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
        """Release what it holds: wakeups are sent, and connections that `connect` opened are closed."""
        self.runtime.notifier.close()
        if self._opened is not None:
            self._opened.close()

    def __enter__(self) -> Self:
        """Use it in a `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    # --- starting ---------------------------------------------------------------------------------------------------

    def start(self, workflow: WorkflowRef, payload: Payload = None, **options: Unpack[StartOptions]) -> Receipt:
        """Start a run. With an `idempotency_key`, scoped to workflow and trigger, it is started once.

        >>> squid.start("orders", {"item": "tea"}, queue="slow", priority=5, actor="ada").snapshot.queue
        'slow'

        Raises:
            NotFound: the workflow, or that version of it, is not registered.
            InvalidPayload, InvalidInput, InvalidArgument, InvalidThread, InvalidFact: an argument does not fit.
            ConflictingCommand: the key, or the run id, was used with another payload.
        """
        start = run_start.prepare_start(self.runtime, workflow, payload, **run_start.start_options(**options))
        return self._receipt(run_start.start_run(self.runtime, start))

    def start_many(
        self,
        workflow: WorkflowRef,
        payloads: Iterable[Payload],
        *,
        idempotency_keys: Sequence[str] | None = None,
        **options: Unpack[RunOptions],
    ) -> list[Receipt]:
        """Start one run for each payload, hundreds in one commit. Raises as `start`.

        >>> len(squid.start_many("orders", [{"item": "tea"}, {"item": "milk"}]))
        2
        """
        given = run_start.start_options(**options)
        starts = [run_start.prepare_start(self.runtime, workflow, payload, **given) for payload in payloads]
        keyed = list(run_start.with_keys(starts, idempotency_keys))
        return [self._receipt(receipt) for receipt in run_start.start_runs(self.runtime, keyed)]

    def start_cron(
        self,
        workflow: WorkflowRef,
        trigger: str,
        *,
        signal_id: str | None = None,
        intended_window: Mapping[str, str] | None = None,
        queue: str | None = None,
        **options: Unpack[SignalOptions],
    ) -> Receipt:
        """Start the run of one window, or of one signal of another scheduler, once. Raises as `cron_starts.start_cron`.

        >>> squid.start_cron("nightly", "night", signal_id="2026-11-16").snapshot.trigger
        'night'
        """
        given: dict[str, Any] = {"signal_id": signal_id, "intended_window": intended_window, "queue": queue}
        signal = signals.signal_options(**options)
        return self._receipt(cron_starts.start_cron(self.runtime, workflow, trigger, signal, **given))

    def start_due_crons(
        self, now: datetime | None = None, *, only: tuple[WorkflowRef, str] | None = None
    ) -> list[Receipt]:
        """Start every due window of every cron trigger, or `only` of a workflow and its trigger's name, once.

        Any number may call it at once. Raises as `cron_starts.start_due_crons`.

        >>> squid.start_due_crons()
        []
        """
        return [self._receipt(receipt) for receipt in cron_starts.start_due_crons(self.runtime, now, only=only)]

    def start_child_run(
        self,
        parent: StepContext | ClaimResult,
        workflow: WorkflowRef,
        payload: Payload = None,
        *,
        child_key: str,
        **options: Unpack[child_runs.ChildOptions],
    ) -> Receipt:
        """Start a child of a step's run, once for the step and `child_key`, while the step's claim holds.

        `parent` is the context that a worker gave to the step, or what `DispatchAgent.claim_next` returned.

        >>> claim = squid.dispatch_agent().claim_next("ada")
        >>> squid.start_child_run(claim, "orders", {"item": "milk"}, child_key="milk").repeated
        False

        Raises:
            StaleClaim: the step was taken over or is settled, or the context is none that a worker has made.
            ExpiredClaim, TerminalRun: the lease ran out, or the parent has ended.
            ConflictingCommand: the key was used for another workflow or payload.
            NotFound, InvalidPayload, InvalidInput, InvalidArgument, InvalidThread: as `start`.
        """
        return self._receipt(child_runs.start_child_of(self.runtime, parent, workflow, payload, child_key, **options))

    # --- controlling ------------------------------------------------------------------------------------------------

    def approve(
        self, run_id: str, *, actor: Actor, step: str | None = None, **options: Unpack[DecisionOptions]
    ) -> Receipt:
        """Approve what the run waits for; with `step`, only if that is the step that it waits at.

        Name the step that was looked at: another person may have decided on it, and the run waits at the next one.

        >>> squid.approve(run_id, actor="ada", step="review", comment="looks good").snapshot.status
        'completed'

        Raises:
            NotFound: no such run.
            InvalidTransition: the run does not wait for an approval, or at another step.
            IncompatibleDefinition: the run's definition is not registered here.
            ConflictingCommand: the idempotency key was used with another content.
        """
        return self._resolve(run_id, signals.SignalType.APPROVE_RUN, step, actor=actor, **options)

    def reject(
        self, run_id: str, *, actor: Actor, step: str | None = None, **options: Unpack[DecisionOptions]
    ) -> Receipt:
        """Reject what the run waits for; `step` and raises as `approve`.

        >>> squid.reject(run_id, actor="ada").snapshot.status
        'failed'
        """
        return self._resolve(run_id, signals.SignalType.REJECT_RUN, step, actor=actor, **options)

    def resume(self, run_id: str, *, step: str | None = None, **options: Unpack[CommandOptions]) -> Receipt:
        """Resume a paused run; `step` and raises as `approve`.

        >>> squid.resume(paused_run_id).snapshot.status
        'completed'
        """
        return self._resolve(run_id, signals.SignalType.RESUME_RUN, step, **options)

    def _resolve(self, run_id: str, command: signals.SignalType, step: str | None, **options: Any) -> Receipt:
        signal = signals.signal_options(**options)
        return self._receipt(run_commands.resolve(self.runtime, run_id, command, signal, step=step))

    def cancel(self, run_id: str, *, cascade: bool = False, **options: Unpack[CommandOptions]) -> Receipt:
        """End a run as cancelled, with `cascade` its open children too. Results that come later are refused.

        >>> squid.cancel(run_id, actor="ada", idempotency_key="ticket-7").snapshot.status
        'cancelled'

        Raises:
            NotFound: no such run.
            InvalidTransition: it has ended.
            ConflictingCommand: the idempotency key was used with another content.
        """
        return self._receipt(
            run_commands.cancel(self.runtime, run_id, signals.signal_options(**options), cascade=cascade)
        )

    def replay(self, run_id: str, *, allow_irreversible: bool = False, **options: Unpack[CommandOptions]) -> Receipt:
        """Start a new run with the workflow, trigger and payload of an earlier one.

        >>> squid.replay(run_id).snapshot.replayed_from_run_id == run_id
        True

        Raises:
            NotFound: no such run.
            UnsafeReplay: steps that cannot be repeated were completed, and `allow_irreversible` is not True.
            IncompatibleDefinition: the definition that it ran with is not registered here.
        """
        signal = signals.signal_options(**options)
        return self._receipt(run_commands.replay(self.runtime, run_id, signal, allow_irreversible=allow_irreversible))

    def retry_attempt(self, run_id: str, runnable_key: str | None = None, **options: Unpack[CommandOptions]) -> Receipt:
        """Put a dead letter back: the one named, or the only one that the run waits for.

        >>> squid.retry_attempt(dead_letter.run_id).snapshot.dead_letters
        ()

        Raises:
            NotFound: no such run or attempt.
            InvalidTransition: there is no such dead letter, or the run has gone on.
        """
        return self._receipt(
            run_commands.retry_attempt(self.runtime, run_id, runnable_key, signals.signal_options(**options))
        )

    def pause_queue(self, queue: str, **options: Unpack[CommandOptions]) -> bool:
        """Pause a queue: it gives no claims until it is resumed. Return False for a repeat of the key.

        >>> squid.pause_queue("default", actor="ada", comment="the bank is closed")
        True
        """
        return run_commands.set_queue_paused(self.runtime, queue, True, signals.signal_options(**options))

    def resume_queue(self, queue: str, **options: Unpack[CommandOptions]) -> bool:
        """Allow claims from a queue again. Return False for a repeat of the key.

        >>> squid.resume_queue("default")
        True
        """
        return run_commands.set_queue_paused(self.runtime, queue, False, signals.signal_options(**options))

    def apply_signal(self, signal: signals.Signal | Mapping[str, Any]) -> Receipt:
        """Execute the command of a `Signal`, its JSON form, or a CloudEvent of one of the `event_sources`.

        A CloudEvent's source and id are its idempotency key, unless its data brings one: a repeat gives the first
        receipt. Its `time` is kept as `caller_time`, and decides nothing.

        >>> squid.apply_signal({"type": "cancel_run", "payload": {"run_id": run_id}}).signal_type
        'cancel_run'

        Raises:
            InvalidArgument: it is none of these, of an unknown source, or asks for something that is not on the list.
            SquidError: whatever the command raises.
        """
        checked = signal_router.read_signal(signal, self._event_sources)
        return self._receipt(signal_router.apply_signal(self.runtime, checked))

    # --- working ----------------------------------------------------------------------------------------------------

    def execute_next(
        self,
        queue: str | None = None,
        *,
        owner_id: str | None = None,
        lease: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> RunSnapshot | None:
        """Claim one attempt, run its step in this thread with heartbeats, and record its outcome.

        Returns the run as it is afterwards; None when nothing is due. A step that fails is no error here. `heartbeat`
        is how often the lease is extended, by default every third of it. Inside a running event loop it works too, and
        blocks that loop: an async step then runs on a loop of its own, in another thread.

        >>> squid.execute_next().status
        'paused'

        Raises:
            StaleClaim, ExpiredClaim, TerminalRun: the claim was lost while the step ran; its result was dropped.
            InvalidArgument, InvalidThread: a bad queue, owner, lease or heartbeat; nothing was claimed.
        """
        run_id = execute_one(self.runtime, queue, owner_id, lease, heartbeat)
        return None if run_id is None else self.inspect_run(run_id)

    def worker(self, queue: str | Sequence[str] | None = None, **options: Unpack[WorkerOptions]) -> WorkerReport:
        """Run steps from one or more queues until stopped (SIGTERM), or with `until_idle` until nothing is due.

        To stop it from another thread, use `new_worker`. Raises as `Worker`.

        >>> squid.worker(until_idle=True, concurrency=2).completed
        1
        """
        return self.new_worker(queue, **options).run()

    def new_worker(self, queue: str | Sequence[str] | None = None, **options: Unpack[WorkerOptions]) -> Worker:
        """Return a worker that does not run yet: call its `run`, and `stop` from another thread. Raises as `Worker`.

        >>> squid.new_worker(["fast", "slow"], max_age=timedelta(hours=8)).stop()
        """
        queues = [self.runtime.queue] if queue is None else [queue] if isinstance(queue, str) else list(queue)
        return Worker(self.runtime, queues, **options)

    def recover(self, queue: str | None = None) -> recovery.RecoveryReport:
        """Close all crash windows, of all queues or one. Any number at once are as good as one.

        >>> squid.recover().scheduled
        0
        """
        return recovery.recover(self.runtime, queue)

    def dispatch_agent(self, queue: str | None = None) -> DispatchAgent:
        """Return the agent of a queue. What it completes is planned on, and it claims only what is registered here.

        >>> squid.dispatch_agent().claim_next("ada").attempt.step
        'check'
        """
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
        """Return the agent of a run.

        >>> squid.workflow_agent(run_id).apply_pending_results()
        []
        """
        return WorkflowAgent(self.runtime.storage, self.runtime.dispatch, run_id, self.runtime.definition_of)

    def _receipt(self, receipt: Receipt) -> Receipt:
        return replace(receipt, inspect=self.inspect_run)
