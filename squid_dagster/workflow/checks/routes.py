"""Checks of routes: each by itself, then those for one outcome of a step together."""

from collections.abc import Iterable, Mapping
from typing import get_args

from squid_dagster.workflow.authoring.conditions import Condition
from squid_dagster.workflow.authoring.draft import (
    ENDS,
    MANUAL_KINDS,
    DeclaredRoute,
    DeclaredStep,
    Outcome,
    Recovery,
    StepKind,
)
from squid_dagster.workflow.checks.references import References, Unknown
from squid_dagster.workflow.definition import Route
from squid_dagster.workflow.errors import Code, Path, Problems
from squid_dagster.workflow.values import is_one_of, shown

_OUTCOMES, _RECOVERIES = get_args(Outcome), get_args(Recovery)
RouteGroups = dict[tuple[str, Outcome], tuple[Route, ...]]


def check_routes(
    declared: Iterable[DeclaredRoute],
    steps: Mapping[str, DeclaredStep],
    known: frozenset[str] | None,
    problems: Problems,
) -> RouteGroups:
    """Check all routes. Return those that lead from a step to a step or an end, conditional ones first.

    `known` are the names that a condition may begin with; None where any name may be in the payload.
    """
    references = References(steps)
    groups: dict[tuple[str, Outcome], list[Route]] = {}
    begun: set[tuple[str, Outcome]] = set()  # also by routes that lead nowhere: one mistake, one problem
    for index, route in enumerate(declared):
        path: Path = ("routes", index)
        source = _source(route, references, path, problems)
        target = _target(route, references, path, problems)
        if not is_one_of(route.on, _OUTCOMES):
            message = f"{shown(route.on)} is no outcome: use 'ok' or 'error'"
            problems.add((*path, "on"), Code.INVALID_OUTCOME, message)
            continue
        _check_recovery(route, path, problems)
        when = _condition(route, None if source is None else steps[source], known, path, problems)
        if source is None:
            continue
        begun.add((source, route.on))
        if steps[source].kind is StepKind.PAUSE and route.on == "error":
            message = f"{source!r} is a pause: it can only be resumed, so this route is never taken"
            problems.add(path, Code.IMPOSSIBLE_ROUTE, message)
        if target is not None:
            accepted = Route(source, route.on, target, when, route.recovery)
            group = groups.setdefault((source, route.on), [])
            _check_duplicate(accepted, group, path, problems)
            group.append(accepted)
    _check_groups(groups, begun, steps, problems)
    return {
        (name, outcome): tuple(sorted(groups[name, outcome], key=lambda route: route.when is None))
        for name in steps
        for outcome in _OUTCOMES
        if (name, outcome) in groups
    }


def _source(route: DeclaredRoute, references: References, path: Path, problems: Problems) -> str | None:
    try:
        return references.name_of(route.source)
    except Unknown as unknown:
        problems.add((*path, "source"), Code.UNKNOWN_ROUTE_SOURCE, str(unknown))
        return None


def _target(route: DeclaredRoute, references: References, path: Path, problems: Problems) -> str | None:
    if isinstance(route.to, str) and route.to in ENDS:
        return route.to
    try:
        return references.name_of(route.to)
    except Unknown as unknown:
        problems.add((*path, "to"), Code.UNKNOWN_ROUTE_TARGET, f"{unknown} (the ends are 'complete' and 'fail')")
        return None


def _check_recovery(route: DeclaredRoute, path: Path, problems: Problems) -> None:
    if route.recovery is None:
        return
    if not is_one_of(route.recovery, _RECOVERIES):
        message = f"must be one of {', '.join(_RECOVERIES)}, not {shown(route.recovery)}"
        problems.add((*path, "recovery"), Code.INVALID_RECOVERY, message)
    elif route.on != "error":
        problems.add((*path, "recovery"), Code.INVALID_RECOVERY, "only a route on='error' recovers from something")


def _condition(
    route: DeclaredRoute, step: DeclaredStep | None, known: frozenset[str] | None, path: Path, problems: Problems
) -> Condition | None:
    place = (*path, "when")
    if route.when is None:
        return None
    if not isinstance(route.when, Condition):
        message = f"{shown(route.when)} is no condition: compare a path, such as path('invoice.total') > 100"
        problems.add(place, Code.INVALID_CONDITION, message)
        return None
    if step is not None and step.kind in MANUAL_KINDS:
        message = f"{step.name!r} waits for a person, whose decision alone chooses the route: route on a later step"
        problems.add(place, Code.MANUAL_STEP_CONDITION, message)
    root = route.when.segments[0]
    of_error = root == "error" and route.on == "error"  # a route from a failure may compare the error
    if known is not None and root not in known and not of_error:
        message = f"({route.when}) can never hold: {root!r} is neither a payload field nor an output"
        problems.add(place, Code.UNKNOWN_CONDITION_PATH, message)
    return route.when


def _check_duplicate(route: Route, group: list[Route], path: Path, problems: Problems) -> None:
    for other in group:
        if route.when is None and other.when is None:
            message = f"{route.source!r} on {route.outcome!r} already leads to {other.to!r} without a condition"
        elif route.when is not None and other.when is not None and route.when.canonical() == other.when.canonical():
            message = f"({route.when}) already leads from {route.source!r} to {other.to!r}"
        else:
            continue
        problems.add(path, Code.DUPLICATE_ROUTE, f"{message}: this route is never taken")
        return


def _check_groups(
    groups: Mapping[tuple[str, Outcome], list[Route]],
    begun: set[tuple[str, Outcome]],
    steps: Mapping[str, DeclaredStep],
    problems: Problems,
) -> None:
    for name, step in steps.items():
        path: Path = ("steps", name)
        missing = [outcome for outcome in _OUTCOMES if (name, outcome) not in begun]
        if step.kind is StepKind.APPROVAL and missing:
            message = f"an approval needs routes for both decisions: declare one on={missing[0]!r}"
            problems.add(path, Code.MISSING_APPROVAL_ROUTES, message)
        elif step.kind is not StepKind.APPROVAL and "ok" in missing:
            message = f"nothing follows it: declare route({name!r}, to='complete') or another target"
            problems.add(path, Code.MISSING_OK_ROUTE, message)
        for outcome in _OUTCOMES:
            group = groups.get((name, outcome), [])
            if group and all(route.when is not None for route in group):
                message = f"none of its routes on={outcome!r} may hold: declare one without a condition, as a fallback"
                problems.add(path, Code.MISSING_FALLBACK, message)
