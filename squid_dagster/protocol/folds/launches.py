"""Launches of external attempts, folded from a run's commands: by which launcher, how often, and what was started."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from squid_dagster.protocol.facts import RunSignalReceived

EXTERNAL_REQUESTED, EXTERNAL_STARTED = "external_requested", "external_started"


@dataclass(frozen=True, slots=True)
class Launch:
    """The latest request for an external attempt: its launcher, its number, and the external run's id once known."""

    launcher: str
    requested_at: datetime
    count: int
    external_run_id: str | None = None


def launched_key(signal: RunSignalReceived) -> str | None:
    """Return the runnable key of the attempt that a command has launched; None for every other command."""
    key = signal.payload.get("runnable_key")
    is_launch = signal.signal_type in (EXTERNAL_REQUESTED, EXTERNAL_STARTED)
    return key if is_launch and isinstance(key, str) else None


def next_launch(known: Launch | None, signal: RunSignalReceived) -> Launch:
    """Return the launch of an attempt after a command about it, given the latest one before."""
    launcher = str(signal.payload.get("launcher"))
    if signal.signal_type == EXTERNAL_REQUESTED:
        return Launch(launcher, signal.occurred_at, 1 if known is None else known.count + 1)
    request = known or Launch(launcher, signal.occurred_at, 1)
    return Launch(launcher, request.requested_at, request.count, str(signal.payload.get("external_run_id")))


def latest_launches(history: Iterable[RunSignalReceived]) -> dict[str, Launch]:
    """Fold a run's commands to the latest launch of each attempt, by its runnable key."""
    launches: dict[str, Launch] = {}
    for signal in history:
        key = launched_key(signal)
        if key is not None:
            launches[key] = next_launch(launches.get(key), signal)
    return launches
