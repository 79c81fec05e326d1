"""A workflow as its author declared it: steps and routes in the order of declaration, not checked yet."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel

from squid_dagster.protocol import DEFAULT_MAX_DELIVERIES
from squid_dagster.protocol.folds.plan_state import FAIL
from squid_dagster.workflow.authoring.conditions import Condition
from squid_dagster.workflow.authoring.retry import Retry
from squid_dagster.workflow.cron.triggers import Trigger
from squid_dagster.workflow.external_step import External
from squid_dagster.workflow.values import is_duration, shown

COMPLETE = "complete"
ENDS = frozenset({COMPLETE, FAIL})

Outcome = Literal["ok", "error"]
Recovery = Literal["compensation", "undo"]
LogLevel = Literal["debug", "info", "warning", "error"]
Function = Callable[..., Any]
StepRef = str | Function


class StepKind(StrEnum):
    """Whether a step is a function of the author's, an external step, or which of the built-ins."""

    STEP = "step"
    WAIT = "wait"
    LOG = "log"
    PAUSE = "pause"
    APPROVAL = "approval"
    EXTERNAL = "external"  # done by another system


MANUAL_KINDS = frozenset({StepKind.PAUSE, StepKind.APPROVAL})
SILENT_KINDS = frozenset({StepKind.WAIT, StepKind.LOG})  # built-ins that give no output


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a step should be done, counted from its start. Shown by inspection; it fires nothing."""

    within: timedelta
    due_soon: timedelta | None = None
    escalate_after: timedelta | None = None

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield the fields that are wrong, each with a sentence that says why."""
        if not is_duration(self.within):
            yield "within", f"must be a positive timedelta, not {shown(self.within)}"
        if self.due_soon is not None:
            if not is_duration(self.due_soon):
                yield "due_soon", f"must be a positive timedelta, not {shown(self.due_soon)}"
            elif is_duration(self.within) and self.due_soon >= self.within:
                yield "due_soon", f"{self.due_soon} before the end must be less than the whole time, {self.within}"
        if self.escalate_after is not None and not is_duration(self.escalate_after, at_least=timedelta(0)):
            yield "escalate_after", f"must be a timedelta of at least 0, not {shown(self.escalate_after)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredStep:
    """One step with its options, as given."""

    name: str
    kind: StepKind
    function: Function | None = None
    output: str | None = None
    after: tuple[StepRef, ...] = ()
    retry: Retry | None = None
    compensate: Function | None = None
    irreversible: bool = False
    transactional: bool = False
    isolate: bool = False
    deadline: Deadline | timedelta | None = None
    priority: int | None = None
    max_deliveries: int = DEFAULT_MAX_DELIVERIES
    max_visits: int | None = None
    duration: timedelta | None = None
    message: str | None = None
    level: LogLevel = "info"
    external: External | None = None

    @property
    def output_name(self) -> str | None:
        """The name under which its result is known: as declared, else the step's own; None for waits and logs."""
        if self.kind in SILENT_KINDS:
            return None
        return self.name if self.output is None else self.output


@dataclass(frozen=True, slots=True)
class DeclaredRoute:
    """One route, as given."""

    source: StepRef
    to: StepRef
    on: Outcome = "ok"
    when: Condition | None = None
    recovery: Recovery | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything that was declared, at one moment."""

    name: str
    version: str | None
    payload: type[BaseModel] | None
    triggers: tuple[Trigger, ...]
    entry: StepRef | None
    steps: tuple[DeclaredStep, ...]
    routes: tuple[DeclaredRoute, ...]
