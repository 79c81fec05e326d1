"""Checks of a workflow of routes as a whole: where it begins, what it reaches, and that it ends."""

from collections.abc import Mapping, Sequence

from squid_dagster.workflow.authoring.draft import DeclaredStep, StepKind, StepRef
from squid_dagster.workflow.checks.references import References, Unknown
from squid_dagster.workflow.checks.routes import RouteGroups
from squid_dagster.workflow.errors import Code, Problems
from squid_dagster.workflow.reachability import Arrival, certain_on_routes, cycles, reachable, reversed_edges


def check_flow(
    steps: Mapping[str, DeclaredStep],
    groups: RouteGroups,
    entry: StepRef | None,
    outputs: Mapping[str, str],
    problems: Problems,
) -> tuple[list[str], dict[str, frozenset[str]]]:
    """Check the flow. Return the entries, one if nothing is wrong, and the outputs that are certain for each step."""
    routes = [route for group in groups.values() for route in group]
    edges: dict[str, list[str]] = {name: [] for name in steps}
    for route in routes:
        edges[route.source].append(route.to)
    entries = _entries(steps, edges, entry, problems)
    reached = reachable(entries, edges)
    for name in steps:
        if name not in reached:
            message = f"no route leads here from {' or '.join(entries)}: add one, or remove the step"
            problems.add(("steps", name), Code.UNREACHABLE_STEP, message)
    _check_end(edges, reached, problems)
    _check_loops(steps, edges, problems)
    gives = {name: output for output, name in outputs.items()}
    arrivals: dict[str, list[Arrival]] = {name: [] for name in steps}
    for route in routes:
        if route.to in steps:
            gives_output = route.outcome == "ok" or steps[route.source].kind is StepKind.APPROVAL
            arrivals[route.to].append(Arrival(route.source, gives.get(route.source) if gives_output else None))
    return entries, certain_on_routes(entries, arrivals)


def _entries(
    steps: Mapping[str, DeclaredStep], edges: Mapping[str, Sequence[str]], entry: StepRef | None, problems: Problems
) -> list[str]:
    if entry is not None:
        try:
            return [References(steps).name_of(entry)]
        except Unknown as unknown:
            problems.add(("entry",), Code.UNKNOWN_ENTRY, str(unknown))
    targets = {target for source, following in edges.items() for target in following if target != source}
    roots = [name for name in steps if name not in targets]
    if entry is None and steps and not roots:
        message = "every step is the target of a route: say which one begins, with Workflow(..., entry=...)"
        problems.add(("entry",), Code.MISSING_ENTRY, message)
    elif entry is None and len(roots) > 1:
        message = f"no route leads to {', '.join(roots)}: let one step begin, and route to the others"
        problems.add(("entry",), Code.SEVERAL_ENTRIES, message)
    return roots or list(steps)[:1]


def _check_end(edges: Mapping[str, Sequence[str]], reached: set[str], problems: Problems) -> None:
    # a step without any route is another problem, recorded already
    ends = {target for following in edges.values() for target in following if target not in edges}
    ends |= {name for name, following in edges.items() if not following}
    ending = reachable(ends, reversed_edges(edges))
    for name in edges:
        if name in reached and name not in ending:
            message = "no route from here ever reaches 'complete' or 'fail': a run that comes here cannot end"
            problems.add(("steps", name), Code.CANNOT_END, message)


def _check_loops(steps: Mapping[str, DeclaredStep], edges: Mapping[str, Sequence[str]], problems: Problems) -> None:
    unbounded = {name: following for name, following in edges.items() if steps[name].max_visits is None}
    for circle in cycles(unbounded):
        message = f"{' -> '.join([*circle, circle[0]])} may turn for ever: give one of these steps max_visits="
        problems.add(("steps", circle[0], "max_visits"), Code.LOOP_WITHOUT_MAX_VISITS, message)
