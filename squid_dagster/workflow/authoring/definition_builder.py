"""From a draft to a definition: run every check, then raise with all problems at once or build the definition."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from types import MappingProxyType

from pydantic import BaseModel

from squid_dagster.workflow.authoring.draft import Deadline, DeclaredStep, Draft, StepKind
from squid_dagster.workflow.authoring.signature import Source, Task, read_task
from squid_dagster.workflow.checks.dependencies import After, check_dependencies
from squid_dagster.workflow.checks.externals import read_external
from squid_dagster.workflow.checks.flow import check_flow
from squid_dagster.workflow.checks.parameters import StepTask, check_parameters, payload_of_parameters
from squid_dagster.workflow.checks.routes import RouteGroups, check_routes
from squid_dagster.workflow.checks.steps import check_outputs, check_steps
from squid_dagster.workflow.checks.workflow import check_cron_payloads, check_workflow
from squid_dagster.workflow.definition import Definition, Mode, StepDefinition
from squid_dagster.workflow.errors import Code, InvalidWorkflow, Path, Problems
from squid_dagster.workflow.fingerprint import fingerprint, former_fingerprints
from squid_dagster.workflow.payload import payload_fields
from squid_dagster.workflow.reachability import cycles, reachable, reversed_edges

Tasks = dict[str, Task | None]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The graph of the steps: edges or routes, entries, and the outputs that are certain for each step."""

    mode: Mode
    entries: list[str]
    groups: RouteGroups
    after: After
    certain: dict[str, frozenset[str]]


def freeze(draft: Draft) -> Definition:
    """Return the definition that a draft describes. Raises `InvalidWorkflow` with everything that is wrong with it."""
    problems = Problems()
    payload = check_workflow(draft, problems)
    steps = check_steps(draft.steps, problems)
    outputs = check_outputs(steps, payload_fields(payload), problems)
    is_known = payload is draft.payload  # else nothing is known of the fields, and one problem is recorded already
    before = len(problems.recorded())
    tasks, compensations = _read_functions(steps, problems)
    step_tasks = {name: _step_tasks(name, tasks[name], compensations[name]) for name in steps}
    if draft.payload is None:
        payload = payload_of_parameters(chain.from_iterable(step_tasks.values()), outputs, problems)
        is_known = len(problems.recorded()) == before
    if is_known:
        check_cron_payloads(draft, payload, problems)
    fields = payload_fields(payload)
    shape = _check_shape(draft, steps, tasks, outputs, payload if is_known else None, is_known, problems)
    gives = {name: output for output, name in outputs.items()}
    if is_known or draft.payload is None:
        for name in steps:
            certain = shape.certain.get(name, frozenset())
            own = frozenset({gives[name]} if name in gives else ())
            for step_task in step_tasks[name]:
                there = certain if step_task.task is tasks[name] else certain | own
                check_parameters(step_task, there, outputs, None if draft.payload is None else fields, problems)
    if recorded := problems.recorded():
        raise InvalidWorkflow(draft.name, recorded)
    provided = fields | frozenset(outputs)
    return _build(draft, payload, steps, _bound(tasks, provided), _bound(compensations, provided), shape)


def _step_tasks(step: str, task: Task | None, compensation: Task | None) -> list[StepTask]:
    """Return the functions of a step that were read."""
    path: Path = ("steps", step)
    both = [(task, path), (compensation, (*path, "compensate"))]
    return [StepTask(function, place) for function, place in both if function is not None]


def _read_functions(steps: Mapping[str, DeclaredStep], problems: Problems) -> tuple[Tasks, Tasks]:
    tasks: Tasks = {}
    compensations: Tasks = {}
    for name, step in steps.items():
        tasks[name] = compensations[name] = None
        if step.kind is StepKind.STEP:
            tasks[name] = read_task(step.function, f"step {name!r}", ("steps", name), problems)
        if step.external is not None:
            tasks[name] = read_external(step.external, f"step {name!r}", ("steps", name), problems)
        if step.compensate is not None:
            label, path = f"the compensation of step {name!r}", ("steps", name, "compensate")
            compensations[name] = read_task(step.compensate, label, path, problems)
    return tasks, compensations


def _check_shape(
    draft: Draft,
    steps: Mapping[str, DeclaredStep],
    tasks: Tasks,
    outputs: Mapping[str, str],
    payload: type[BaseModel] | None,
    is_known: bool,
    problems: Problems,
) -> _Shape:
    if not draft.routes:
        if draft.entry is not None:
            message = "without routes, all steps begin that come after none: remove entry=, or declare routes"
            problems.add(("entry",), Code.UNKNOWN_ENTRY, message)
        after, certain = check_dependencies(steps, tasks, outputs, problems)
        roots = [name for name in steps if not after[name]]
        return _Shape(Mode.DEPENDENCIES, roots, {}, after, certain)
    for name, step in steps.items():
        if step.after:
            message = "a workflow has routes or after=, not both: routes say here what comes next"
            problems.add(("steps", name, "after"), Code.ROUTES_AND_AFTER, message)
    is_open = not is_known or (payload is not None and payload.model_config.get("extra") == "allow")
    known = None if is_open else payload_fields(payload) | frozenset(outputs)
    groups = check_routes(draft.routes, steps, known, problems)
    entries, certain = check_flow(steps, groups, draft.entry, outputs, problems)
    return _Shape(Mode.ROUTES, entries, groups, {}, certain)


def _bound(tasks: Tasks, provided: frozenset[str]) -> Tasks:
    """Remove the parameters that nothing ever provides: their defaults are all there is."""
    return {
        name: task
        and replace(
            task,
            parameters=tuple(
                parameter
                for parameter in task.parameters
                if parameter.source is not Source.STATE or parameter.name in provided
            ),
        )
        for name, task in tasks.items()
    }


def _build(
    draft: Draft,
    payload: type[BaseModel] | None,
    steps: Mapping[str, DeclaredStep],
    tasks: Tasks,
    compensations: Tasks,
    shape: _Shape,
) -> Definition:
    built = {
        name: _build_step(step, tasks[name], compensations[name], shape.after.get(name, ()))
        for name, step in steps.items()
    }
    callees = [task for task in (*tasks.values(), *compensations.values()) if task is not None]
    following = reversed_edges(shape.after)
    dependents = {name: tuple(following.get(name, ())) for name in built}
    producers = {step.output: step.name for step in built.values() if step.output is not None}
    return Definition(
        name=draft.name,
        version=draft.version,
        mode=shape.mode,
        payload=payload,
        triggers=MappingProxyType({trigger.name: trigger for trigger in draft.triggers}),
        steps=MappingProxyType(built),
        entry_steps=tuple(shape.entries),
        routes=MappingProxyType(shape.groups),
        dependents=MappingProxyType(dependents),
        producers=MappingProxyType(producers),
        narrow=MappingProxyType(_narrow_steps(built, shape)),
        resources=frozenset[str]().union(*(task.resources for task in callees)),
        fingerprint=fingerprint(shape.mode, built, shape.entries, shape.groups, payload),
        former_fingerprints=former_fingerprints(shape.mode, built, shape.entries, shape.groups, payload),
    )


def _narrow_steps(steps: Mapping[str, StepDefinition], shape: _Shape) -> dict[str, frozenset[str]]:
    """Return the steps beside which nothing else can be under way, with those that are done when they begin."""
    if shape.mode is Mode.DEPENDENCIES:
        following = reversed_edges(shape.after)
        before = {name: frozenset(reachable([name], shape.after)) - {name} for name in steps}
        return {name: before[name] for name in steps if len(before[name] | reachable([name], following)) == len(steps)}
    edges: dict[str, list[str]] = {name: [] for name in steps}
    for (source, _), routes in shape.groups.items():
        edges[source] += [route.to for route in routes if route.to in steps]
    return {} if len(shape.entries) != 1 or cycles(edges) else dict.fromkeys(steps, frozenset[str]())


def _build_step(
    step: DeclaredStep, task: Task | None, compensation: Task | None, after: tuple[str, ...]
) -> StepDefinition:
    return StepDefinition(
        name=step.name,
        kind=step.kind,
        output=step.output_name,
        task=task,
        compensation=compensation,
        after=after,
        retry=step.retry,
        irreversible=step.irreversible,
        transactional=step.transactional,
        isolate=step.isolate,
        deadline=Deadline(step.deadline) if isinstance(step.deadline, timedelta) else step.deadline,
        priority=step.priority,
        max_deliveries=step.max_deliveries,
        max_visits=step.max_visits,
        duration=step.duration,
        message=step.message,
        level=step.level,
        external=step.external,
    )
