"""Which steps can only end a run once they succeed, whatever the run has been through. Pure."""

from collections.abc import Mapping, Sequence

from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.workflow.declared import COMPLETE, Outcome
from squid_dagster.workflow.definition import Mode, Route


def certain_ends(
    mode: Mode,
    steps: Sequence[str],
    entries: Sequence[str],
    routes: Mapping[tuple[str, Outcome], tuple[Route, ...]],
    after: Mapping[str, tuple[str, ...]],
) -> dict[str, JsonObject | None]:
    """Give these steps, each with the transition that its application records; provided that nothing else is under way.

    Among dependencies, such a step comes after all others: when it was entered, they had succeeded. By routes, it leads
    to the end unconditionally; a run that began with one step is at one step at a time, and so not about to fail.
    """
    if mode is Mode.DEPENDENCIES:
        return {name: None for name in steps if len(_before(name, after)) == len(steps) - 1}
    found: dict[str, JsonObject | None] = {}
    for name in steps:
        first = next(iter(routes.get((name, "ok"), ())), None)
        if len(entries) == 1 and first is not None and first.when is None and first.to == COMPLETE:
            found[name] = first.decision()
    return found


def _before(name: str, after: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Give all steps that a step comes after, near or far."""
    found: set[str] = set()
    waiting = list(after.get(name, ()))
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += after.get(each, ())
    return found
