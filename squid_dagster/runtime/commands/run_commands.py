"""Commands of a person or program for a run (approve, reject, resume, cancel, replay, retry) and for a queue."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import NAMESPACE_URL, uuid5

from squid_dagster.journal import Append
from squid_dagster.journal.contract.command_target import CommandedRun, CommandTarget
from squid_dagster.protocol.errors import InvalidArgument, InvalidTransition, NotFound, UnsafeReplay
from squid_dagster.protocol.facts import Fact, QueuePaused, QueueResumed, RunSignalReceived
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.attempt import AttemptStatus
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.folds.visits import visits
from squid_dagster.protocol.redaction import redact, redact_object
from squid_dagster.protocol.threads import check_part, dispatch_thread
from squid_dagster.runtime.commands.derived_ids import derived_run_id
from squid_dagster.runtime.commands.run_start import Start, has_begun, start_run, started_before
from squid_dagster.runtime.commands.signals import Receipt, Signal, SignalType
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.workflow.planner.planner import plan_resolution
from squid_dagster.workflow.planner.schedule import plan_end, plan_retry

AnyRun = TypeVar("AnyRun", PlanState, RunProjection)
_ACTIONS = {
    SignalType.APPROVE_RUN: "approved",
    SignalType.REJECT_RUN: "rejected",
    SignalType.RESUME_RUN: "resumed",
}
Effect = Callable[[Mapping[str, CommandedRun], datetime], list[Fact]]


def resolve(
    runtime: Runtime, run_id: str, command: SignalType, options: Mapping[str, Any], *, step: str | None = None
) -> Receipt:
    """Approve, reject or resume a paused run; with `step`, only at that step.

    Raises:
        NotFound, InvalidTransition, IncompatibleDefinition, ConflictingCommand, InvalidArgument.
    """
    if command is not SignalType.RESUME_RUN and not options.get("actor"):
        raise InvalidArgument(f"{command} needs an actor: say who decides, such as actor='ada'")
    action = _ACTIONS[command]
    at_step: JsonObject = {} if step is None else {"step": step}
    signal = Signal(type=command, payload={"run_id": run_id, **at_step, **_actor_and_comment(options)}, **options)

    def effect(runs: Mapping[str, CommandedRun], now: datetime) -> list[Fact]:
        state = runs[run_id].state
        manual = state.manual_state
        if state.terminal:
            raise InvalidTransition(f"run {run_id!r} is {state.status}: there is nothing that could be {action}")
        if step is not None and manual is not None and manual.step != step:
            raise InvalidTransition(f"run {run_id!r} waits at {manual.step!r}, not at {step!r}: look at it again")
        definition = runtime.definition_of(run_id, state)
        result: JsonObject = {} if action == "resumed" else _review(action, signal, now)
        metadata: JsonObject = {"at": now.isoformat(), **_actor_and_comment(options)}
        room = runtime.storage.max_fact_bytes
        return plan_resolution(definition, state, action, result, metadata, now, max_fact_bytes=room)

    return record_command(runtime, [CommandTarget(run_id, signal=signal.key)], signal, effect)


def _actor_and_comment(options: Mapping[str, Any]) -> JsonObject:
    # Copies of fields of the signal, redacted as they are there.
    return {name: redact(options[name]) for name in ("actor", "comment") if options.get(name) is not None}


def _review(action: str, signal: Signal, now: datetime) -> JsonObject:
    review: JsonObject = {"decision": action, "actor": redact(signal.actor), "decided_at": now.isoformat()}
    if signal.comment is not None:
        review["comment"] = signal.comment
    if signal.metadata:
        review["metadata"] = redact_object(signal.metadata)
    return review


def cancel(runtime: Runtime, run_id: str, options: Mapping[str, Any], *, cascade: bool = False) -> Receipt:
    """End a run as cancelled; with `cascade`, its open children and theirs too. A running step's result is refused.

    Raises:
        NotFound, InvalidTransition (the run has ended), ConflictingCommand.
    """
    signal = Signal(type=SignalType.CANCEL_RUN, payload={"run_id": run_id, "cascade": cascade}, **options)
    # If a commit cannot span threads, the run itself is ended first and alone: after a conflict on a child's thread,
    # the repeat would find the run ended and be refused.
    family = family_of(runtime, run_id) if cascade and runtime.storage.atomic_across_threads else [run_id]

    def effect(runs: Mapping[str, CommandedRun], now: datetime) -> list[Fact]:
        state = runs[run_id].state
        if state.terminal:
            raise InvalidTransition(f"run {run_id!r} has ended as {state.terminal_status}: it cannot be cancelled")
        below = [fact for child in family[1:] for fact in _cancel_child(runs[child].state, child, run_id, now)]
        return [*plan_end(state, "cancelled", now), *below]

    targets = [CommandTarget(run_id, signal=signal.key), *map(CommandTarget, family[1:])]
    receipt = record_command(runtime, targets, signal, effect)
    if cascade:
        # Also children that were linked meanwhile; no more can come, since their parents have ended.
        for child in family_of(runtime, run_id)[1:]:
            cancel_orphan(runtime, child, run_id)
    return receipt


def cancel_orphan(runtime: Runtime, run_id: str, ancestor: str) -> bool:
    """Cancel a run because a run above it was cancelled with `cascade`; return whether it was still open."""

    def decision(runs: Mapping[str, CommandedRun], now: datetime) -> list[Fact]:
        return _cancel_child(runs[run_id].state, run_id, ancestor, now)

    return bool(runtime.command([CommandTarget(run_id)], decision))


def _cancel_child(state: PlanState, run_id: str, ancestor: str, now: datetime) -> list[Fact]:
    if state.start is None or state.terminal:
        return []
    signal = Signal(
        type=SignalType.CANCEL_RUN,
        payload={"run_id": run_id, "cascade": True, "cancelled_with": ancestor},
        idempotency_key=f"cascade:{ancestor}",
    )
    return [signal.fact(run_id, now), *plan_end(state, "cancelled", now)]


def family_of(runtime: Runtime, run_id: str) -> list[str]:
    """Return a run and all runs below it, parents before their children."""
    family, seen = [run_id], {run_id}
    for parent in family:
        children = [child for child in runtime.queries.children(parent) if child not in seen]
        family += children
        seen.update(children)
    return family


def retry_attempt(runtime: Runtime, run_id: str, runnable_key: str | None, options: Mapping[str, Any]) -> Receipt:
    """Schedule a dead letter again: the one named, or the only one that the run waits for.

    Raises:
        NotFound, InvalidTransition, ConflictingCommand.
    """
    signal = Signal(type=SignalType.RETRY_ATTEMPT, payload={"run_id": run_id, "runnable_key": runnable_key}, **options)

    def effect(runs: Mapping[str, CommandedRun], now: datetime) -> list[Fact]:
        run = runs[run_id]
        if run.state.terminal:
            raise InvalidTransition(f"run {run_id!r} has ended as {run.state.terminal_status}: replay it instead")
        if runnable_key is None:
            dead = run.dead_letters
            if len(dead) != 1:
                keys = ", ".join(sorted(attempt.runnable_key for attempt in dead)) or "none"
                raise InvalidTransition(f"run {run_id!r} waits for {len(dead)} dead letters ({keys}): name one")
            return plan_retry(run.state, dead[0], now)
        attempt = run.dispatch.attempts.get(runnable_key)
        if attempt is None:
            raise NotFound(f"run {run_id!r} has no attempt {runnable_key!r}")
        return plan_retry(run.state, attempt, now)

    target = CommandTarget(run_id, runnable_key, dead_letters=runnable_key is None, signal=signal.key)
    return record_command(runtime, [target], signal, effect)


def replay(runtime: Runtime, run_id: str, options: Mapping[str, Any], *, allow_irreversible: bool = False) -> Receipt:
    """Start a new run with the workflow, trigger and payload of an earlier one.

    Raises:
        NotFound: no such run.
        UnsafeReplay: steps that cannot be repeated were completed, and `allow_irreversible` is not set.
        IncompatibleDefinition: the definition that it ran with is not registered.
        ConflictingCommand: the idempotency key was used with another content.
    """
    signal = Signal(
        type=SignalType.REPLAY_RUN,
        payload={"run_id": run_id, "allow_irreversible": allow_irreversible is True},
        **options,
    )
    key = signal.idempotency_key
    new_id = runtime.new_run_id() if key is None else derived_run_id("replay_run", run_id, key)
    if has_begun(runtime, new_id, signal):
        return started_before(runtime, new_id, signal)
    unit = RunUnit.fold(runtime.storage.read_run(run_id))
    run = _existing(run_id, unit.run)
    assert run.start is not None  # noqa: S101  _existing refuses others
    done = [visit.runnable for visit in visits(run) if visit.succeeded]
    done += [
        planned.runnable
        for key, planned in run.planned.items()
        if planned.runnable is not None
        and key in unit.dispatch.attempts
        and unit.dispatch.attempts[key].status is AttemptStatus.COMPLETED
    ]
    unsafe = sorted(
        {runnable.step for runnable in done if (runnable.recovery or {}).get("replay") == "manual_review_required"}
    )
    if unsafe and allow_irreversible is not True:
        raise UnsafeReplay(
            f"run {run_id!r} has completed {', '.join(map(repr, unsafe))}, which cannot be undone: check by hand what "
            "they did, then replay with allow_irreversible=True"
        )
    schedule = run.start.context.get("schedule")
    context: JsonObject = {}
    if isinstance(schedule, dict):
        context["schedule"] = {k: v for k, v in schedule.items() if k not in ("idempotency_key", "intended_window")}
    return start_run(
        runtime,
        Start(
            definition=runtime.definition_of(run_id, run),
            run_id=new_id,
            trigger=run.start.trigger or "manual",
            queue=run.start.queue or runtime.queue,
            signal=signal,
            given=run.start.input,
            accepted=run.start.input,  # by the same contract, which need not accept its own JSON
            priority=run.start.priority,
            context=context,
            replayed_from=run_id,
        ),
    )


def set_queue_paused(runtime: Runtime, queue: str, paused: bool, options: Mapping[str, Any]) -> bool:
    """Pause or resume a queue; return whether the idempotency key was used for the first time.

    Raises:
        InvalidThread, InvalidFact: a bad queue, actor, comment or metadata.
    """
    check_part(queue, "queue")
    given = {name: value for name, value in options.items() if value}
    model = QueuePaused if paused else QueueResumed
    fact = model.model_construct(queue=queue, occurred_at=runtime.now(), **given)
    key = options.get("idempotency_key")
    commit_id = uuid5(NAMESPACE_URL, f"squid:{fact.type}:{queue}:{key}") if key is not None else None
    repeated = commit_id is not None and runtime.storage.find_commit(commit_id) is not None
    runtime.storage.commit([Append(dispatch_thread(queue), [fact])], commit_id)
    if not paused:
        runtime.notifier.notify([queue])
    return not repeated


def record_command(runtime: Runtime, targets: Sequence[CommandTarget], signal: Signal, effect: Effect) -> Receipt:
    """Record a command on its first target's run, with its effect, in one append.

    Returns the first receipt for a repeat of its key. Raises `NotFound`, `ConflictingCommand`, and as `effect`.
    """
    run_id = targets[0].run_id
    receipts: list[Receipt] = []

    def decision(runs: Mapping[str, CommandedRun], now: datetime) -> list[Fact]:
        receipts.clear()
        first = recorded_signal(signal, run_id, runs)
        if first is not None:
            receipts.append(Receipt.of(first, repeated=True))
            return []
        facts = effect(runs, now)
        fact = signal.fact(run_id, now)
        receipts.append(Receipt.of(fact))
        return [fact, *facts]

    runtime.command(targets, decision)
    return receipts[0]


def recorded_signal(signal: Signal, run_id: str, runs: Mapping[str, CommandedRun]) -> RunSignalReceived | None:
    """Return the fact of this command's first time, if there is one. Raises `NotFound` and `ConflictingCommand`."""
    _existing(run_id, runs[run_id].state)
    return signal.first(runs[run_id])


def _existing(run_id: str, run: AnyRun) -> AnyRun:
    if run.start is None:
        raise NotFound(f"there is no run {run_id!r}: list runs to find its id")
    return run
