"""What may start a workflow: a command (`Manual`), or the clock (`Cron`). Only declared here, never fired."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import JsonValue

from squid_dagster.protocol.errors import shown
from squid_dagster.workflow.cron.expression import CronFields, parse_cron

CatchUp = Literal["latest", "all", "none"]
CronIdempotency = Literal["return_existing_run", "skip_duplicate"]
CATCH_UPS: tuple[str, ...] = get_args(CatchUp)
CRON_IDEMPOTENCIES: tuple[str, ...] = get_args(CronIdempotency)


@dataclass(frozen=True, slots=True)
class Manual:
    """Started by a command. Every workflow has such a trigger, declared or not."""

    name: str = "manual"


@dataclass(frozen=True, slots=True)
class Cron:
    """Started by the clock, with `payload`, at the times that the expression names in the timezone.

    `catch_up` says which windows are started that were missed while no process ran: the latest, all, or none.
    `idempotency` says what a second start for the same window gives: the existing run, or a note that it was skipped.
    Everything is checked when the workflow is frozen.
    """

    expression: str
    timezone: str = "UTC"
    catch_up: CatchUp = "latest"
    name: str = "cron"
    idempotency: CronIdempotency = "return_existing_run"
    payload: Mapping[str, JsonValue] = field(default_factory=dict)

    def fields(self) -> CronFields:
        """Return the values at which it fires. Raises `ValueError` for a bad expression."""
        if not isinstance(self.expression, str):
            raise ValueError(f"{shown(self.expression)} is not a text")
        return parse_cron(self.expression)

    def zone(self) -> ZoneInfo:
        """Return the timezone. Raises `ValueError` for one that this machine does not know."""
        try:
            return ZoneInfo(self.timezone if isinstance(self.timezone, str) else "")
        except (KeyError, ValueError, OSError, TypeError, AttributeError):
            raise ValueError(
                f"{shown(self.timezone)} is not a timezone here: use a name such as 'Europe/Berlin' "
                "(on a machine without a timezone database, install the package tzdata)"
            ) from None


Trigger = Manual | Cron


def with_manual(triggers: tuple[Trigger, ...]) -> tuple[Trigger, ...]:
    """Return the triggers with a `Manual` one among them, so that a workflow can always be started by hand."""
    return triggers if any(isinstance(trigger, Manual) for trigger in triggers) else (*triggers, Manual())
