"""External steps: attempts that wait for another system, the record of their launch, and their outcome as a signal.

An external attempt has no claim while it waits. The signal with its outcome claims and settles it in one commit, with
everything that follows: the same facts as of any step, so that no fold and no recovery needs a new rule.
"""

import secrets
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from squid_dagster.journal.contract.command_target import CommandedRun, CommandTarget
from squid_dagster.journal.contract.dispatch_store import Completed, Failed, hash_token
from squid_dagster.journal.lanes import Waiting, waiting_in_lanes
from squid_dagster.journal.plan_state.checkpoints import load_state
from squid_dagster.journal.settlement.member_facts import preview
from squid_dagster.protocol.errors import InvalidArgument, InvalidTransition, NotFound
from squid_dagster.protocol.facts import AttemptClaimed, AttemptCompleted, AttemptFailed, Fact
from squid_dagster.protocol.facts.base import MAX_TEXT, JsonObject
from squid_dagster.protocol.folds.attempt import OPEN, Attempt, AttemptStatus
from squid_dagster.protocol.folds.launches import Launch
from squid_dagster.redaction import redacted_error
from squid_dagster.runtime.commands.run_commands import record_command, recorded_signal
from squid_dagster.runtime.commands.signals import Receipt, Signal, SignalType
from squid_dagster.runtime.execution.step_execution import completed, error_map, failure
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.workflow.definition import Definition, StepDefinition
from squid_dagster.workflow.external_step import is_external, plain_fingerprint
from squid_dagster.workflow.planner.planner import plan_settled

_LEASE = timedelta(minutes=1)  # begins and ends in one commit


def waiting_externals(
    runtime: Runtime, queues: Collection[str], *, after: int = 0, limit: int = 1000
) -> list[tuple[Waiting, StepDefinition]]:
    """Show due external attempts that wait for their outcome, by position, after `after`.

    Raises:
        InvalidArgument, InvalidThread: a bad limit, position or queue.
    """
    keys = {key for definition in runtime.registry for key in definition.external_keys}
    waiting = waiting_in_lanes(runtime.storage, queues, keys, after=after, limit=limit)
    return [(one, _definition(runtime, one.attempt).steps[one.attempt.step]) for one in waiting]


def _definition(runtime: Runtime, attempt: Attempt) -> Definition:
    definition = runtime.registry.find(attempt.workflow, plain_fingerprint(attempt), attempt.definition_version)
    assert definition is not None  # noqa: S101  its lane was selected by its key
    return definition


def launch_of(runtime: Runtime, attempt: Attempt) -> Launch | None:
    """Return the latest recorded launch of an open attempt; None before it was requested."""
    return load_state(runtime.storage, attempt.run_id).state.launches.get(attempt.runnable_key)


def note_external(
    runtime: Runtime, command: SignalType, payload: Mapping[str, Any], options: Mapping[str, Any]
) -> Receipt:
    """Record that an external attempt will be launched, or that its run has begun. Nothing follows from it.

    Raises:
        NotFound: no such run or attempt.
        InvalidTransition: the attempt does not wait for another system any more, or never did.
        InvalidArgument: a start without the id of what was started.
        ConflictingCommand: the idempotency key was used with another content.
    """
    if command is SignalType.EXTERNAL_STARTED and not payload.get("external_run_id"):
        raise InvalidArgument(f"{command} needs external_run_id, the id of what was started")
    _owner(payload.get("external_run_id"))
    run_id, key = payload["run_id"], payload["runnable_key"]
    signal = Signal(type=command, payload=_given(payload), **options)

    def effect(runs: Mapping[str, CommandedRun], now: datetime) -> list[Fact]:
        _waiting(runs[run_id], run_id, key, now)
        return []

    return record_command(runtime, [CommandTarget(run_id, key, signal=signal.key)], signal, effect)


def complete_external(runtime: Runtime, payload: Mapping[str, Any], options: Mapping[str, Any]) -> Receipt:
    """Record the outcome of an external attempt, and what follows from it; only the first outcome counts.

    `succeeded` with the `result`; or not, with the `error`: then the step's retry policy decides, unless it is `final`.

    Raises:
        NotFound: no such run or attempt.
        InvalidTransition: the run has ended, or the attempt has its outcome, is not due, or is a worker's.
        IncompatibleDefinition: the run's definition is not registered here.
        ConflictingCommand: the idempotency key was used with another content.
        InvalidArgument: an external_run_id that is too long.
        InvalidFact: the outcome cannot be written down.
    """
    run_id, key = payload["run_id"], payload["runnable_key"]
    owner_id = _owner(payload.get("external_run_id"))
    given = _given(payload)
    if isinstance(given.get("error"), dict):
        given["error"] = redacted_error(given["error"])
    signal = Signal(type=SignalType.EXTERNAL_COMPLETED, payload=given, **options)
    # With a key, the claim id is derived from it: a repeat after a crash between two commits recognizes its own claim.
    named = f"{key}\n{signal.idempotency_key}"
    claim_id = secrets.token_urlsafe(16) if signal.idempotency_key is None else sha256(named.encode()).hexdigest()[:32]
    token_hash, unit_drawn = hash_token(secrets.token_urlsafe(32)), runtime.random_unit()
    target = CommandTarget(run_id, key, signal=signal.key)

    def settle(runs: Mapping[str, CommandedRun], now: datetime) -> list[Fact]:
        """Return the facts that settle the attempt; none if this signal has settled it before."""
        run = runs[run_id]
        known = run.dispatch.attempts.get(key)
        if known is not None and not run.state.stopped and known.status not in OPEN and known.claim_id == claim_id:
            return []
        attempt = _waiting(run, run_id, key, now)
        step = runtime.definition_of(run_id, run.state).steps[attempt.step]
        claim = (owner_id, claim_id, token_hash)
        return _settle(run, attempt, step, given, claim, unit_drawn, max(now, attempt.last_at))

    def effect(runs: Mapping[str, CommandedRun], now: datetime) -> list[Fact]:
        run, facts = runs[run_id], settle(runs, now)
        after = preview(run.dispatch, facts).attempts
        definition = runtime.definition_of(run_id, run.state)
        room = runtime.storage.max_fact_bytes
        plan = plan_settled(definition, run.state, [after[key]], after, now, max_fact_bytes=room)
        return [*facts, *plan]

    if not runtime.storage.atomic_across_threads:
        # The outcome is committed first, by itself: after a crash, recovery applies it. It is on the queue's thread
        # alone and fenced by that thread's revision: of two outcomes at once, one is written.
        runtime.command(
            [target], lambda runs, now: settle(runs, now) if recorded_signal(signal, run_id, runs) is None else []
        )
    return record_command(runtime, [target], signal, effect)


def _settle(
    run: CommandedRun,
    attempt: Attempt,
    step: StepDefinition,
    given: JsonObject,
    claim: tuple[str, str, str],
    random_unit: float,
    at: datetime,
) -> list[Fact]:
    owner_id, claim_id, token_hash = claim
    fence: dict[str, Any] = {
        "run_id": attempt.run_id,
        "runnable_key": attempt.runnable_key,
        "queue": attempt.queue,
        "claim_id": claim_id,
        "claim_token_hash": token_hash,
        "occurred_at": at,
    }
    claimed = AttemptClaimed(
        **fence,
        owner_id=owner_id,
        lease_until=at + _LEASE,
        fencing_token=run.dispatch.next_token(attempt.idempotency_key),
    )
    outcome = _outcome(given, step, attempt, random_unit)
    if isinstance(outcome, Completed):
        return [claimed, AttemptCompleted(**fence, result=outcome.result)]
    key, after = outcome.retry or (None, None)
    visible_at = None if after is None else at + after
    return [claimed, AttemptFailed(**fence, error=outcome.error, retry_runnable_key=key, retry_visible_at=visible_at)]


def _outcome(given: JsonObject, step: StepDefinition, attempt: Attempt, random_unit: float) -> Completed | Failed:
    if given["succeeded"] is True:
        outcome = completed(given.get("result"))
        assert isinstance(outcome, Completed | Failed)  # noqa: S101  a result is never a deferral
        return outcome
    error = given.get("error")
    described = error if isinstance(error, dict) else error_map("external_failed", "it failed; nothing more was said")
    return failure(described, given.get("final") is True, step, attempt, lambda: random_unit)


def _waiting(run: CommandedRun, run_id: str, key: str, now: datetime) -> Attempt:
    """Return the external attempt with this key; raise unless it waits."""
    if run.state.stopped:
        raise InvalidTransition(f"run {run_id!r} is {run.state.status}: nothing is wanted for {key!r} any more")
    attempt = run.dispatch.attempts.get(key)
    if attempt is None:
        raise NotFound(f"run {run_id!r} has no attempt {key!r}")
    if not is_external(attempt):
        raise InvalidTransition(f"{key!r} is the work of a worker, not of another system: it takes no signal")
    if attempt.status not in OPEN or attempt.status is AttemptStatus.CLAIMED:
        raise InvalidTransition(f"{key!r} is {attempt.status}: it has its outcome, and the first one stands")
    if attempt.visible_at > now:
        raise InvalidTransition(f"{key!r} is not due before {attempt.visible_at.isoformat()}: nobody can have begun it")
    return attempt


def _owner(external_run_id: str | None) -> str:
    """Return the owner of the claim that settles the attempt; raise `InvalidArgument` for an id too long for that."""
    owner_id = f"external:{external_run_id or ''}".rstrip(":")
    if len(owner_id) > MAX_TEXT:
        most = MAX_TEXT - len("external:")
        raise InvalidArgument(f"external_run_id has {len(external_run_id or ''):,} characters: {most} are allowed")
    return owner_id


def _given(payload: Mapping[str, Any]) -> JsonObject:
    """Drop fields that are None, so that a repeat without them has the same content."""
    return {name: value for name, value in payload.items() if value is not None}
