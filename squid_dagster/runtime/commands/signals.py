"""Signals: commands as data, with actor and idempotency key; and receipts, the same for every repeat of a command."""

import functools
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypedDict

from pydantic import JsonValue

from squid_dagster.journal.contract.command_target import CommandedRun, SignalKey
from squid_dagster.protocol.argument_checks import Check, check_of, checked
from squid_dagster.protocol.errors import ConflictingCommand, InvalidArgument, shown
from squid_dagster.protocol.facts import RunSignalReceived
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.workflow.values import canonical

Actor = str | dict[str, JsonValue]


class SignalOptions(TypedDict, total=False):
    """What is recorded with a command: who asked for it, why, and more as a JSON object."""

    actor: Actor | None
    comment: str | None
    metadata: Mapping[str, JsonValue] | None


class CommandOptions(SignalOptions, total=False):
    """What every command takes. A repeat under the same `idempotency_key` returns the first receipt."""

    idempotency_key: str | None


class DecisionOptions(TypedDict, total=False):
    """`CommandOptions` of a command whose actor must be named."""

    comment: str | None
    metadata: Mapping[str, JsonValue] | None
    idempotency_key: str | None


class SignalType(StrEnum):
    """The commands for a run."""

    START_RUN = "start_run"
    START_CRON = "start_cron"
    START_CHILD_RUN = "start_child_run"
    REPLAY_RUN = "replay_run"
    APPROVE_RUN = "approve_run"
    REJECT_RUN = "reject_run"
    RESUME_RUN = "resume_run"
    CANCEL_RUN = "cancel_run"
    RETRY_ATTEMPT = "retry_attempt"
    EXTERNAL_REQUESTED = "external_requested"
    EXTERNAL_STARTED = "external_started"
    EXTERNAL_COMPLETED = "external_completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One command, as it is recorded with its effect. `actor` is a name, or a JSON object about the actor.

    `caller_time` is the time by the caller's clock. It is recorded and decides nothing: `occurred_at` of the fact is
    the journal's time.
    """

    type: str
    payload: JsonObject = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)
    idempotency_key: str | None = None
    actor: Actor | None = None
    comment: str | None = None
    caller_time: datetime | None = None

    def fact(self, run_id: str, now: datetime) -> RunSignalReceived:
        """Return the fact that records it on the run's thread.

        Raises:
            InvalidFact: an actor, a comment, a key or metadata that cannot be written down.
        """
        return RunSignalReceived.model_construct(
            run_id=run_id,
            signal_type=self.type,
            payload=self.payload,
            metadata=self.metadata,
            idempotency_key=self.idempotency_key,
            actor=self.actor,
            comment=self.comment,
            caller_time=self.caller_time,
            occurred_at=now,
        )

    @property
    def key(self) -> SignalKey | None:
        """The key by which its repeats are found, if it has an idempotency key."""
        return None if self.idempotency_key is None else SignalKey(self.type, self.idempotency_key)

    def first(self, run: CommandedRun) -> RunSignalReceived | None:
        """Return the fact that recorded this command the first time, if its key was used on the run before.

        Raises:
            ConflictingCommand: the key was used for another payload.
        """
        if run.first is not None and not same_json(run.first.payload, self.payload):
            raise ConflictingCommand(
                f"idempotency key {self.idempotency_key!r} was used for another {self.type} of run "
                f"{run.first.run_id!r}: use a new key for a new command"
            )
        return run.first


def check_signal(signal: Signal) -> Signal:
    """Return the signal if each field is of its type, and holds nothing that facts cannot hold.

    Raises:
        InvalidArgument: names the field.
    """
    for name, check in _checks().items():
        value = getattr(signal, name)
        if (problem := check(value)) is not None:
            raise bad_field(name, value, f"it must be {problem}")
    return signal


@functools.cache
def _checks() -> dict[str, Check]:
    checks = {name: check_of(hint) for name, hint in typing.get_type_hints(Signal).items()}
    return {name: check for name, check in checks.items() if check is not None}


def bad_field(name: str, value: object, remedy: str) -> InvalidArgument:
    """Return the error for a field of a signal; it shows the value, but not that of a container."""
    description = type(value).__name__ if isinstance(value, Mapping | list | tuple) else shown(value, 120)
    return InvalidArgument(f"field {name} of a signal is {description}: {remedy}")


def _no_inspection(run_id: str) -> Any:
    raise InvalidArgument(f"this receipt cannot look up run {run_id!r}: use Squid.inspect_run")


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to a command: the first time, and with `repeated` whenever its key is used again."""

    run_id: str
    signal_type: str
    received_at: datetime
    idempotency_key: str | None = None
    repeated: bool = False
    skipped: bool = False
    inspect: Callable[[str], Any] = field(default=_no_inspection, repr=False, compare=False)

    @classmethod
    def of(cls, fact: RunSignalReceived, *, repeated: bool = False) -> "Receipt":
        """Return the receipt of a recorded command."""
        return cls(fact.run_id, fact.signal_type, fact.occurred_at, fact.idempotency_key, repeated)

    @property
    def snapshot(self) -> Any:
        """The run as it is now, read at each access."""
        return self.inspect(self.run_id)


@checked
def signal_options(
    *,
    actor: Actor | None = None,
    comment: str | None = None,
    metadata: Mapping[str, JsonValue] | None = None,
    idempotency_key: str | None = None,
) -> dict[str, Any]:
    """Check the arguments that every command takes and return them as arguments of `Signal`.

    Raises:
        InvalidArgument: an empty key, or metadata that is no mapping.
    """
    if idempotency_key is not None:
        check_key(idempotency_key)
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidArgument(f"metadata must be a mapping, not a {type(metadata).__name__}")
    return {
        "actor": actor,
        "comment": comment,
        "metadata": dict(metadata or {}),
        "idempotency_key": idempotency_key,
    }


def same_json(left: JsonValue, right: JsonValue) -> bool:
    """Return whether two values are the same as JSON: 1 is 1.0, and not true. What is not JSON equals nothing."""
    try:
        return canonical(left) == canonical(right)
    except ValueError:
        return False


def zoned_time(value: object) -> datetime | None:
    """Return the UTC time of an ISO 8601 text with a timezone; None if it is none."""
    try:
        time = datetime.fromisoformat(value if isinstance(value, str) else "")
        return None if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


_SURROGATE = re.compile("[\ud800-\udfff]")


def check_key(idempotency_key: str) -> str:
    """Return the key; raise `InvalidArgument` if it is no text, empty, or not UTF-8."""
    # A lone surrogate is a valid text in Python, and not in UTF-8.
    if not isinstance(idempotency_key, str) or not idempotency_key or _SURROGATE.search(idempotency_key):
        raise InvalidArgument(f"idempotency_key must be a non-empty text in UTF-8, not {idempotency_key!r:.80}")
    return idempotency_key
