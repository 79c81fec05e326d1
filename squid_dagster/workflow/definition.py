"""`Definition`: a workflow that was checked and does not change, as planner, workers and inspection read it."""

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
    """Whether routes or dependencies say what comes next."""

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
        """Whether the run ends here."""
        return self.to in ENDS

    def decision(self) -> JsonObject:
        """Return the decision for this route, as `runnable_applied` stores it."""
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
        """Whether the run waits here for a person."""
        return self.kind in MANUAL_KINDS

    def recovery(self) -> JsonObject:
        """Return what a `Runnable` says about replaying and undoing this step."""
        return {
            "irreversible": self.irreversible,
            "compensated": self.compensation is not None,
            "replay": "manual_review_required" if self.irreversible else "allowed",
            "recovery": "manual_intervention" if self.irreversible else "automatic",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A checked workflow. Mappings are read-only and in order of declaration.

    `payload` is the declared model, or the one made of what steps take; None if runs are started without values.
    `routes` holds, by step and outcome, the conditional routes in their order and then the fallback. `dependents`
    holds, by step, the steps that come after it; `producers`, by the name of an output, the step that gives it.
    `narrow` holds the steps that are visited once and beside which no other step of a run can be open, each with the
    steps that are certainly done when it begins.
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
        """The string by which a worker claims attempts of this definition."""
        return definition_key(self.name, self.fingerprint)

    @property
    def keys(self) -> tuple[str, ...]:
        """The strings by which a worker claims attempts of this definition, those of earlier releases included."""
        return tuple(definition_key(self.name, value) for value in (self.fingerprint, *self.former_fingerprints))

    @property
    def external_keys(self) -> tuple[str, ...]:
        """The strings by which a launcher finds attempts of this definition's external steps; empty without any."""
        if not any(step.external is not None for step in self.steps.values()):
            return ()
        values = (self.fingerprint, *self.former_fingerprints)
        return tuple(definition_key(self.name, external_lane(value)) for value in values)

    @property
    def default_trigger(self) -> Trigger:
        """The trigger of a start that names none: the first manual one."""
        return next(trigger for trigger in self.triggers.values() if isinstance(trigger, Manual))

    def taking(self, step: str, place: int) -> "Definition":
        """Return this definition with one route for a step's success, the one that is known to be taken."""
        route = self.routes[step, "ok"][place]
        met = replace(route, when=None if route.when is None else route.when.met())
        return replace(self, routes=MappingProxyType({**self.routes, (step, "ok"): (met,)}))

    def accept_payload(self, values: Mapping[str, object] | BaseModel | None) -> JsonObject:
        """Check a payload against the model, and return it as JSON with defaults, by the names of its fields.

        Raises:
            InvalidPayload: it does not fit; says where and why, and shows types but no values.
        """
        return accept_payload(self.name, self.payload, values)
