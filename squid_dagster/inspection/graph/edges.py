"""The edges of a run's graph: routes and dependencies, and which of them the run has taken."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from squid_dagster.inspection.display import asks_for_secret, brief
from squid_dagster.inspection.explain.case import Case
from squid_dagster.inspection.graph.nodes import GraphNode, NodeStatus, StepHistory
from squid_dagster.protocol.folds.visits import COMPENSATE
from squid_dagster.protocol.redaction import REDACTED
from squid_dagster.workflow.authoring.conditions import Condition, Operator
from squid_dagster.workflow.authoring.draft import Outcome
from squid_dagster.workflow.definition import Definition, Mode, Route
from squid_dagster.workflow.values import canonical

_ACTIONS: dict[str, Outcome] = {"resumed": "ok", "approved": "ok", "rejected": "error"}


class EdgeStatus(StrEnum):
    """What the run has made of an edge."""

    CHOSEN = "chosen"
    SKIPPED = "skipped"
    PENDING = "pending"
    BLOCKED = "blocked"  # nothing comes along here until the step before it is put right


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEdge:
    """A way between two nodes. `type` is route, dependency or compensation; `times` says how often it was taken."""

    id: str
    source: str
    target: str
    type: str
    status: EdgeStatus
    times: int
    outcome: str | None = None
    condition: str | None = None
    recovery: str | None = None


class Decision(NamedTuple):
    """A route that was taken, by what tells it from others."""

    source: str
    outcome: str
    to: str
    condition: str | None


def make_edges(case: Case, nodes: Mapping[str, GraphNode], seen: Mapping[str, StepHistory]) -> list[GraphEdge]:
    """Return all edges: as declared, as taken beside that, and to compensations."""
    taken = Counter(_decisions(case))
    edges: list[GraphEdge] = []
    if case.definition is not None:
        if case.definition.mode is Mode.ROUTES:
            edges += _routes(case.definition, taken, nodes, ended=case.run.terminal)
        else:
            edges += _dependencies(case.definition, nodes)
    edges += [_taken(decision, times, place) for place, (decision, times) in enumerate(taken.items())]
    edges += [
        GraphEdge(
            id=f"{step.removeprefix(COMPENSATE)}:compensation:{step}",
            source=step.removeprefix(COMPENSATE),
            target=step,
            type="compensation",
            status=EdgeStatus.CHOSEN,
            times=story.visit_count,
        )
        for step, story in seen.items()
        if step.startswith(COMPENSATE) and step.removeprefix(COMPENSATE) in nodes
    ]
    return edges


def condition_text(condition: Condition) -> str:
    """Format a condition; what a secret is compared with is not shown."""
    if asks_for_secret(condition.segments) and "value" in condition.to_json():
        return f"{'.'.join(condition.segments)} {condition.operator} {REDACTED}"
    return brief(str(condition), 100)


def _decisions(case: Case) -> Iterator[Decision]:
    """Yield the routes that were taken, in their order, as the facts have them."""
    for key, applied in case.run.applied.items():
        planned = case.run.planned.get(key)
        if planned is None or planned.runnable is None or planned.runnable.step.startswith(COMPENSATE):
            continue
        if applied.fact is not None and applied.fact.transition is not None:
            yield from _decision(applied.fact.transition)
    for resolution in case.run.resolutions:
        if resolution.transition is not None:
            yield from _decision(resolution.transition)
        elif case.definition is not None:
            outcome = _ACTIONS[resolution.action]
            routes = case.definition.routes.get((resolution.step, outcome), ())
            if len(routes) == 1:  # an older fact that does not say so, and no other way
                yield _of_route(routes[0])


def _decision(transition: Mapping[str, Any]) -> Iterator[Decision]:
    source, outcome, to = transition.get("from"), transition.get("on"), transition.get("to")
    if isinstance(source, str) and isinstance(outcome, str) and isinstance(to, str):
        condition = transition.get("condition")
        yield Decision(source, outcome, to, None if condition is None else canonical(condition))


def _of_route(route: Route) -> Decision:
    return Decision(route.source, route.outcome, route.to, route.when.canonical() if route.when is not None else None)


def _routes(
    definition: Definition, taken: "Counter[Decision]", nodes: Mapping[str, GraphNode], *, ended: bool
) -> Iterator[GraphEdge]:
    """Yield the declared routes; what was taken along them is removed from `taken`."""
    decided = Counter[str]()
    for decision, times in taken.items():
        decided[decision.source] += times
    for (source, outcome), routes in definition.routes.items():
        for place, route in enumerate(routes):
            times = taken.pop(_of_route(route), 0)
            node = nodes[source]
            status = EdgeStatus.PENDING
            if times:
                status = EdgeStatus.CHOSEN
            elif ended or (node.visits and decided[source] >= node.visits):
                status = EdgeStatus.SKIPPED
            elif node.status is NodeStatus.DEAD_LETTER:
                status = EdgeStatus.BLOCKED
            yield GraphEdge(
                id=f"{source}:{outcome}:{route.to}" + (f":condition:{place}" if route.when is not None else ""),
                source=source,
                target=route.to,
                type="route",
                status=status,
                times=times,
                outcome=outcome,
                condition=condition_text(route.when) if route.when is not None else None,
                recovery=route.recovery,
            )


def _dependencies(definition: Definition, nodes: Mapping[str, GraphNode]) -> Iterator[GraphEdge]:
    for name, step in definition.steps.items():
        for source in step.after:
            match nodes[source].status:
                case NodeStatus.COMPLETED:
                    status = EdgeStatus.CHOSEN
                case NodeStatus.FAILED | NodeStatus.DEAD_LETTER | NodeStatus.CANCELLED:
                    status = EdgeStatus.BLOCKED
                case NodeStatus.SKIPPED:
                    status = EdgeStatus.SKIPPED
                case _:
                    status = EdgeStatus.PENDING
            yield GraphEdge(
                id=f"{source}:dependency:{name}",
                source=source,
                target=name,
                type="dependency",
                status=status,
                times=int(status is EdgeStatus.CHOSEN),
            )


def _taken(decision: Decision, times: int, place: int) -> GraphEdge:
    """Return an edge that no route declares: an error without a route, or a run whose definition is not known."""
    return GraphEdge(
        id=f"{decision.source}:{decision.outcome}:{decision.to}:taken:{place}",
        source=decision.source,
        target=decision.to,
        type="route",
        status=EdgeStatus.CHOSEN,
        times=times,
        outcome=decision.outcome,
        condition=_recorded(decision.condition),
    )


def _recorded(condition: str | None) -> str | None:
    """Format a condition as a fact has recorded it; return None for anything else."""
    recorded: Any = json.loads(condition) if condition is not None else {}
    try:
        return condition_text(
            Condition(tuple(map(str, recorded["path"])), Operator(recorded["operator"]), recorded.get("value"))
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        return None
