"""Questions about a graph of names: what can be reached, where it turns in circles, what is certain on arrival."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

Edges = Mapping[str, Iterable[str]]


class Arrival(NamedTuple):
    """A way into a step: the step before it, and the output that is there once this way was taken."""

    source: str
    gained: str | None


def reachable(starts: Iterable[str], edges: Edges) -> set[str]:
    """Give all names that can be reached from `starts`, these included."""
    seen = set(starts)
    todo = list(seen)
    while todo:
        for target in edges.get(todo.pop(), ()):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


def reversed_edges(edges: Edges) -> dict[str, list[str]]:
    """Give the same edges, each in the other direction."""
    turned: dict[str, list[str]] = {}
    for source, targets in edges.items():
        for target in targets:
            turned.setdefault(target, []).append(source)
    return turned


def cycles(edges: Edges) -> list[list[str]]:
    """Give circles, each as names in the direction of its edges, until no edge is left that closes another.

    Every circle begins with the name that comes first in `edges`. No edge is part of two of them.
    """
    order = {name: place for place, name in enumerate(edges)}
    left = {
        source: [target for target in dict.fromkeys(targets) if target in order] for source, targets in edges.items()
    }
    found = []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            # graphlib reads edges as "depends on" and gives the circle against that direction
            circle = list(reversed(error.args[1]))[:-1]
            first = circle.index(min(circle, key=order.__getitem__))
            circle = circle[first:] + circle[:first]
            found.append(circle)
            for source, target in zip(circle, circle[1:] + circle[:1], strict=True):
                left[source].remove(target)
        else:
            return found


def certain_on_routes(entries: Sequence[str], arrivals: Mapping[str, Sequence[Arrival]]) -> dict[str, frozenset[str]]:
    """Give, for each step, the outputs that exist whenever it begins, whichever way a run came.

    The entries begin with nothing. What no entry leads to is said to have everything: it never begins.
    """
    everything = frozenset(way.gained for ways in arrivals.values() for way in ways if way.gained is not None)
    certain = {**dict.fromkeys(arrivals, everything), **dict.fromkeys(entries, frozenset[str]())}
    following: dict[str, list[tuple[str, str | None]]] = {}
    for step, ways in arrivals.items():
        for source, gained in ways:
            following.setdefault(source, []).append((step, gained))
    todo = deque(entries)
    while todo:  # what is certain only ever shrinks, so that this ends
        source = todo.popleft()
        for step, gained in following.get(source, ()):
            known = certain[step] & (certain[source] if gained is None else certain[source] | {gained})
            if known != certain[step]:
                certain[step] = known
                todo.append(step)
    return certain


def certain_after(after: Edges, outputs: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Give, for each step, the outputs of all steps that it comes after, directly or not."""
    return {
        step: frozenset(outputs[done] for done in reachable([step], after) if done != step and done in outputs)
        for step in after
    }
