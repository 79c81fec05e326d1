"""`External`: what a step asks of another system, and the lane in which it waits. Pure, and no Dagster in it.

A lane is a queue's attempts of one definition. External attempts have one of their own, beside that of the workers, so
that nobody claims them who could not execute them: they wait there, claimed by nobody, until a signal has the outcome.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.attempt import Attempt

ExternalKind = Literal["dagster_job", "dagster_assets"]
OnLost = Literal["relaunch", "fail"]
EXTERNAL_KINDS: tuple[str, ...] = get_args(ExternalKind)
ON_LOST: tuple[str, ...] = get_args(OnLost)

_LANE = ":external"  # a fingerprint is hex, so that no definition is taken for this


@dataclass(frozen=True, slots=True)
class External:
    """One external step's request, as declared. `run_config` is a mapping, a function that gives one, or None."""

    kind: ExternalKind
    job: str | None
    assets: tuple[str, ...]
    run_config: Mapping[str, Any] | Callable[..., Any] | None
    partition_key_from: str | None
    tags: Mapping[str, str]
    on_lost: OnLost

    def to_json(self) -> JsonObject:
        """Give what a `Runnable` carries: what is asked for, for people to see without the definition."""
        return {"kind": self.kind, **self._target(), "on_lost": self.on_lost}

    def meaning(self) -> JsonObject:
        """Give what belongs into the fingerprint: what is done, not how it is configured or what a loss means."""
        return {"kind": self.kind, **self._target(), "partition_key_from": self.partition_key_from}

    def _target(self) -> JsonObject:
        return {"job": self.job} if self.kind == "dagster_job" else {"assets": [*sorted(self.assets)]}


def target_of(external: Mapping[str, Any]) -> str:
    """Name in words what a runnable's `external` asks for."""
    if external.get("job") is not None:
        return f"Dagster job {external['job']!r}"
    return f"Dagster assets {', '.join(repr(each) for each in external.get('assets') or ())}"


def external_lane(fingerprint: str | None) -> str:
    """Give the fingerprint under which external attempts of a definition are scheduled."""
    return f"{fingerprint or ''}{_LANE}"


def is_external(attempt: Attempt) -> bool:
    """Tell whether another system does this attempt: no worker can."""
    return (attempt.definition_fingerprint or "").endswith(_LANE)


def plain_fingerprint(attempt: Attempt) -> str | None:
    """Give the fingerprint of the definition that an attempt belongs to, whichever its lane is."""
    found = attempt.definition_fingerprint
    return found.removesuffix(_LANE) or None if found is not None else None
