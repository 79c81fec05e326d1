"""`Definition`: a workflow that was checked and will not change. What planner, workers and inspection read, by name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType

from pydantic import BaseModel

from squid_dagster.protocol import DEFAULT_MAX_DELIVERIES
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.attempt import definition_key
from squid_dagster.workflow.authoring.conditions import Condition
from squid_dagster.workflow.authoring.draft import (
    ENDS,
    MANUAL_KINDS,
    Deadline,
    LogLevel,
    Outcome,
    Recovery,
    StepKind,
)
from squid_dagster.workflow.authoring.retry import Retry
from squid_dagster.workflow.authoring.signature import Task
from squid_dagster.workflow.cron.triggers import Manual, Trigger
from squid_dagster.workflow.external_step import External, external_lane
from squid_dagster.workflow.payload import accept_payload


class Mode(StrEnum):
    """How a workflow says what comes next."""

    ROUTES = "routes"
    DEPENDENCIES = "dependencies"


@dataclass(frozen=True, slots=True)
class Route:
    """What follows one outcome of a step: the step `to`, or one of the ends "complete" and "fail"."""

    source: str
    outcome: Outcome
    to: str
    when: Condition | None = None
    recovery: Recovery | None = None

    @property
    def ends_run(self) -> bool:
        """Tell whether the run ends here."""
        return self.to in ENDS

    def decision(self) -> JsonObject:
        """Give the record of having taken this route, as `runnable_applied` stores it."""
        record: JsonObject = {"from": self.source, "on": self.outcome, "to": self.to}
        if self.when is not None:
            record["condition"] = self.when.to_json()
        if self.recovery is not None:
            record["recovery"] = self.recovery
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDefinition:
    """One step. `task` is None for built-ins, `output` for waits and logs; `after` is empty in a workflow of routes.

    The task of an external step makes the run config; no worker calls it.
    """

    name: str
    kind: StepKind
    output: str | None = None
    task: Task | None = None
    compensation: Task | None = None
    after: tuple[str, ...] = ()
    retry: Retry | None = None
    irreversible: bool = False
    transactional: bool = False
    isolate: bool = False
    deadline: Deadline | None = None
    priority: int | None = None
    max_deliveries: int = DEFAULT_MAX_DELIVERIES
    max_visits: int | None = None
    duration: timedelta | None = None
    message: str | None = None
    level: LogLevel = "info"
    external: External | None = None

    @property
    def is_manual(self) -> bool:
        """Tell whether the run stands still here until somebody acts."""
        return self.kind in MANUAL_KINDS

    def recovery(self) -> JsonObject:
        """Give what a `Runnable` carries about replaying and undoing this step."""
        return {
            "irreversible": self.irreversible,
            "compensated": self.compensation is not None,
            "replay": "manual_review_required" if self.irreversible else "allowed",
            "recovery": "manual_intervention" if self.irreversible else "automatic",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A checked workflow. Mappings are read-only and in order of declaration.

    `routes` holds, by step and outcome, the conditional routes in their order and then the fallback. `dependents`
    holds, by step, the steps that come after it; `producers`, by the name of an output, the step that gives it.
    `narrow` holds the steps that are visited once, and beside which nothing else of a run can be under way, each with
    the steps that are done for certain when it begins.
    `resources` are the keys that a worker must provide. `former_fingerprints` are those that earlier releases computed
    for the same definition: runs that carry one are runs of this definition.
    """

    name: str
    version: str | None
    mode: Mode
    payload: type[BaseModel] | None
    triggers: Mapping[str, Trigger]
    steps: Mapping[str, StepDefinition]
    entry_steps: tuple[str, ...]
    routes: Mapping[tuple[str, Outcome], tuple[Route, ...]]
    dependents: Mapping[str, tuple[str, ...]]
    producers: Mapping[str, str]
    narrow: Mapping[str, frozenset[str]]
    resources: frozenset[str]
    fingerprint: str
    former_fingerprints: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The one string by which a worker says that it can execute this definition."""
        return definition_key(self.name, self.fingerprint)

    @property
    def keys(self) -> tuple[str, ...]:
        """The strings by which a worker says that it can execute this definition's runs, those of old code included."""
        return tuple(definition_key(self.name, each) for each in (self.fingerprint, *self.former_fingerprints))

    @property
    def external_keys(self) -> tuple[str, ...]:
        """The strings by which a launcher finds what waits in this definition's external steps; none without any."""
        if not any(step.external is not None for step in self.steps.values()):
            return ()
        prints = (self.fingerprint, *self.former_fingerprints)
        return tuple(definition_key(self.name, external_lane(each)) for each in prints)

    @property
    def default_trigger(self) -> Trigger:
        """The trigger of a start that names none: the first manual one."""
        return next(trigger for trigger in self.triggers.values() if isinstance(trigger, Manual))

    def taking(self, step: str, place: int) -> "Definition":
        """Return this definition for where it is known which of its routes a step's success takes."""
        route = self.routes[step, "ok"][place]
        met = replace(route, when=None if route.when is None else route.when.met())
        return replace(self, routes=MappingProxyType({**self.routes, (step, "ok"): (met,)}))

    def accept_payload(self, values: Mapping[str, object] | BaseModel | None) -> JsonObject:
        """Check a payload against the contract and give it as JSON, with defaults, by the names of its fields.

        Raises:
            InvalidPayload: it does not fit; says where and why, and shows types but no values.
        """
        return accept_payload(self.name, self.payload, values)
