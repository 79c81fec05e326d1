"""`Workflow`: the declaration of steps and routes. Nothing is checked before `freeze`, which checks all at once."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, overload

from pydantic import BaseModel

from squid_dagster.protocol import DEFAULT_MAX_DELIVERIES
from squid_dagster.workflow.authoring.conditions import Condition
from squid_dagster.workflow.authoring.definition_builder import freeze
from squid_dagster.workflow.authoring.draft import (
    Deadline,
    DeclaredRoute,
    DeclaredStep,
    Draft,
    Function,
    LogLevel,
    Outcome,
    Recovery,
    StepKind,
    StepRef,
)
from squid_dagster.workflow.authoring.retry import Retry
from squid_dagster.workflow.cron.triggers import Trigger, with_manual
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.external_step import External, ExternalKind, OnLost

F = TypeVar("F", bound=Function)


class Workflow:
    """The declaration of a workflow.

    With routes, one step begins and routes say what follows. Without routes, a step runs once those are done whose
    outputs its parameters name, and those that it comes `after`.
    """

    def __init__(
        self,
        name: str,
        *,
        payload: type[BaseModel] | None = None,
        version: str | None = None,
        triggers: Iterable[Trigger] | Trigger = (),
        entry: StepRef | None = None,
    ) -> None:
        """Set the workflow's name, its payload's contract and its triggers.

        Without `payload`, runs are started with what the steps' parameters name that is no step's output, with their
        annotations and defaults. `version` is shown to people and changes nothing. `entry` names the step that begins,
        for workflows with routes in which every step, the first one too, is the target of a route.
        """
        self.name = name
        self.payload = payload
        self.version = version
        self.triggers = with_manual(_tuple(triggers))
        self.entry = entry
        self._steps: list[DeclaredStep] = []
        self._routes: list[DeclaredRoute] = []

    def __repr__(self) -> str:
        """Format the name, with the version if there is one."""
        version = "" if self.version is None else f", version={self.version!r}"
        return f"Workflow({self.name!r}{version})"

    @overload
    def step(self, function: F, /) -> F: ...

    @overload
    def step(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        output: str | None = None,
        after: Iterable[StepRef] | StepRef = (),
        retry: Retry | None = None,
        compensate: Function | None = None,
        irreversible: bool = False,
        transactional: bool = False,
        isolate: bool = False,
        deadline: Deadline | timedelta | None = None,
        priority: int | None = None,
        max_deliveries: int = DEFAULT_MAX_DELIVERIES,
        max_visits: int | None = None,
    ) -> Callable[[F], F]: ...

    def step(
        self,
        function: F | None = None,
        /,
        *,
        name: str | None = None,
        output: str | None = None,
        after: Iterable[StepRef] | StepRef = (),
        retry: Retry | None = None,
        compensate: Function | None = None,
        irreversible: bool = False,
        transactional: bool = False,
        isolate: bool = False,
        deadline: Deadline | timedelta | None = None,
        priority: int | None = None,
        max_deliveries: int = DEFAULT_MAX_DELIVERIES,
        max_visits: int | None = None,
    ) -> F | Callable[[F], F]:
        """Declare a function, sync or async, as a step; used as a decorator, it returns the plain function.

        `name` defaults to the function's, `output` to the step's name. `compensate` undoes the step when the run fails
        later; its parameters are bound like the step's, and it may take the step's own output. `irreversible` forbids
        a replay. `transactional` commits what the step writes to the journal's database with its completion. `isolate`
        runs it in a process of its own. `deadline` is shown, not enforced. `priority` is the run's unless given.
        `max_deliveries` caps how often a crashed attempt is handed out, `max_visits` how often a loop comes here.

        Raises:
            TypeError: it is given a name instead of a function.
        """
        if isinstance(function, str):
            raise TypeError(f"step() takes options by keyword: write step(name={function!r})")

        def declare(function: F) -> F:
            self._steps.append(
                DeclaredStep(
                    name=getattr(function, "__name__", repr(function)) if name is None else name,
                    kind=StepKind.STEP,
                    function=function,
                    output=output,
                    after=_tuple(after),
                    retry=retry,
                    compensate=compensate,
                    irreversible=irreversible,
                    transactional=transactional,
                    isolate=isolate,
                    deadline=deadline,
                    priority=priority,
                    max_deliveries=max_deliveries,
                    max_visits=max_visits,
                )
            )
            return function

        return declare if function is None else declare(function)

    def wait(
        self,
        name: str,
        duration: timedelta,
        *,
        after: Iterable[StepRef] | StepRef = (),
        max_visits: int | None = None,
    ) -> None:
        """Declare a step that ends after that time. It occupies no worker."""
        self._steps.append(
            DeclaredStep(name=name, kind=StepKind.WAIT, duration=duration, after=_tuple(after), max_visits=max_visits)
        )

    def log(
        self,
        name: str,
        message: str,
        level: LogLevel = "info",
        *,
        after: Iterable[StepRef] | StepRef = (),
        max_visits: int | None = None,
    ) -> None:
        """Declare a step that writes one line to the log."""
        self._steps.append(
            DeclaredStep(
                name=name,
                kind=StepKind.LOG,
                message=message,
                level=level,
                after=_tuple(after),
                max_visits=max_visits,
            )
        )

    def pause(
        self,
        name: str,
        *,
        output: str | None = None,
        deadline: Deadline | timedelta | None = None,
        max_visits: int | None = None,
    ) -> None:
        """Declare a step at which the run waits until a person resumes it."""
        self._manual(StepKind.PAUSE, name, output, deadline, max_visits)

    def approval(
        self,
        name: str,
        *,
        output: str | None = None,
        deadline: Deadline | timedelta | None = None,
        max_visits: int | None = None,
    ) -> None:
        """Declare a step at which a person approves (outcome `ok`) or rejects (`error`); both give the output."""
        self._manual(StepKind.APPROVAL, name, output, deadline, max_visits)

    def external(
        self,
        name: str,
        kind: ExternalKind,
        *,
        job: str | None = None,
        assets: Iterable[str] | str = (),
        run_config: Mapping[str, Any] | Function | None = None,
        partition_key_from: str | None = None,
        tags: Mapping[str, str] | None = None,
        on_lost: OnLost = "relaunch",
        output: str | None = None,
        after: Iterable[StepRef] | StepRef = (),
        retry: Retry | None = None,
        compensate: Function | None = None,
        irreversible: bool = False,
        deadline: Deadline | timedelta | None = None,
        priority: int | None = None,
        max_visits: int | None = None,
    ) -> None:
        """Declare a step that another system does: a Dagster job, or a run that materializes Dagster assets.

        It occupies no worker: it waits on its queue until the outcome comes back as a signal, which the plugin's
        sensor sends. `kind` is "dagster_job" with the `job`'s name, or "dagster_assets" with keys such as "raw/orders".
        `run_config` is a mapping, or a function that returns one; its parameters are bound by name, as a step's are.
        `partition_key_from` names the payload field or output that holds the partition key. `retry` governs runs that
        fail. `on_lost` says what happens when Dagster does not know a requested run any more: "relaunch"
        requests it again, "fail" lets the step fail for good. The output is what the signal reports, for Dagster a
        dict with the run's id. Everything else is as `step` has it.
        """
        self._steps.append(
            DeclaredStep(
                name=name,
                kind=StepKind.EXTERNAL,
                external=External(
                    kind, job, _tuple(assets), run_config, partition_key_from, {} if tags is None else tags, on_lost
                ),
                output=output,
                after=_tuple(after),
                retry=retry,
                compensate=compensate,
                irreversible=irreversible,
                deadline=deadline,
                priority=priority,
                max_visits=max_visits,
            )
        )

    def route(
        self,
        source: StepRef,
        *,
        to: StepRef,
        on: Outcome = "ok",
        when: Condition | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        """Declare what follows a step: another step, or the run's end ("complete" or "fail").

        Of the routes for one outcome, those with a condition are tried in order of declaration; the one without is
        the fallback, wherever it stands. Conditions of an error route may ask about the `error`, as in
        `path("error.type") == "Timeout"`. `recovery` marks an error route that repairs what went wrong.
        """
        self._routes.append(DeclaredRoute(source, to, on, when, recovery))

    def draft(self) -> Draft:
        """Return what was declared so far."""
        return Draft(
            self.name,
            self.version,
            self.payload,
            self.triggers,
            self.entry,
            tuple(self._steps),
            tuple(self._routes),
        )

    def freeze(self) -> Definition:
        """Return the definition. Raises `InvalidWorkflow` with everything that is wrong with it."""
        return freeze(self.draft())

    def check(self) -> None:
        """Raise `InvalidWorkflow` if anything is wrong, for a unit test."""
        self.freeze()

    def _manual(
        self,
        kind: StepKind,
        name: str,
        output: str | None,
        deadline: Deadline | timedelta | None,
        max_visits: int | None,
    ) -> None:
        self._steps.append(DeclaredStep(name=name, kind=kind, output=output, deadline=deadline, max_visits=max_visits))


T = TypeVar("T")


def _tuple(value: Iterable[T] | T) -> tuple[T, ...]:
    """Return an iterable as a tuple, and a text or another single value as a tuple of one."""
    return (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
