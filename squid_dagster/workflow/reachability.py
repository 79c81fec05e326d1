"""A graph of names: what can be reached, its circles, and what is certain on arrival at a step."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

Edges = Mapping[str, Iterable[str]]


class Arrival(NamedTuple):
    """An edge into a step: the step before it, and the output that exists once the edge was taken."""

    source: str
    gained: str | None


def reachable(starts: Iterable[str], edges: Edges) -> set[str]:
    """Return all names that can be reached from `starts`, `starts` included."""
    seen = set(starts)
    todo = list(seen)
    while todo:
        for target in edges.get(todo.pop(), ()):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


def reversed_edges(edges: Edges) -> dict[str, list[str]]:
    """Return the edges, each in the other direction."""
    turned: dict[str, list[str]] = {}
    for source, targets in edges.items():
        for target in targets:
            turned.setdefault(target, []).append(source)
    return turned


def cycles(edges: Edges) -> list[list[str]]:
    """Return circles, each as names in the direction of its edges, until no edge is left that closes another one.

    Every circle begins with the name that comes first in `edges`. No edge is part of two of them.
    """
    order = {name: place for place, name in enumerate(edges)}
    left = {
        source: [target for target in dict.fromkeys(targets) if target in order] for source, targets in edges.items()
    }
    circles = []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            # graphlib reads edges as "depends on" and gives the circle against that direction
            circle = list(reversed(error.args[1]))[:-1]
            first = circle.index(min(circle, key=order.__getitem__))
            circle = circle[first:] + circle[:first]
            circles.append(circle)
            for source, target in zip(circle, circle[1:] + circle[:1], strict=True):
                left[source].remove(target)
        else:
            return circles


def certain_on_routes(entries: Sequence[str], arrivals: Mapping[str, Sequence[Arrival]]) -> dict[str, frozenset[str]]:
    """Return, for each step, the outputs that exist whenever it begins, whichever routes were taken.

    Entries begin without outputs. A step that no entry leads to has all of them: it never begins.
    """
    everything = frozenset(way.gained for ways in arrivals.values() for way in ways if way.gained is not None)
    certain = {**dict.fromkeys(arrivals, everything), **dict.fromkeys(entries, frozenset[str]())}
    following: dict[str, list[tuple[str, str | None]]] = {}
    for step, ways in arrivals.items():
        for source, gained in ways:
            following.setdefault(source, []).append((step, gained))
    todo = deque(entries)
    while todo:  # the sets only shrink, so that this ends
        source = todo.popleft()
        for step, gained in following.get(source, ()):
            known = certain[step] & (certain[source] if gained is None else certain[source] | {gained})
            if known != certain[step]:
                certain[step] = known
                todo.append(step)
    return certain


def certain_after(after: Edges, outputs: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return, for each step, the outputs of all steps that it comes after, directly or not."""
    return {
        step: frozenset(outputs[done] for done in reachable([step], after) if done != step and done in outputs)
        for step in after
    }
