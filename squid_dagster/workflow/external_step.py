"""`External`: what a step requests of another system, and the lane in which it waits. Pure, without Dagster.

A lane is a queue's attempts of one definition. External attempts have one of their own, beside that of the workers, so
that no worker claims them: they wait there, without a claim, until a signal has the outcome.
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

_LANE = ":external"  # a fingerprint is hex: this is part of none


@dataclass(frozen=True, slots=True)
class External:
    """One external step's request, as declared. `run_config` is a mapping, a function that returns one, or None."""

    kind: ExternalKind
    job: str | None
    assets: tuple[str, ...]
    run_config: Mapping[str, Any] | Callable[..., Any] | None
    partition_key_from: str | None
    tags: Mapping[str, str]
    on_lost: OnLost

    def to_json(self) -> JsonObject:
        """Return the target as a `Runnable` has it, so that it can be shown without the definition."""
        return {"kind": self.kind, **self._target(), "on_lost": self.on_lost}

    def meaning(self) -> JsonObject:
        """Return what the fingerprint covers: the target and its partition, not its configuration or `on_lost`."""
        return {"kind": self.kind, **self._target(), "partition_key_from": self.partition_key_from}

    def _target(self) -> JsonObject:
        return {"job": self.job} if self.kind == "dagster_job" else {"assets": [*sorted(self.assets)]}


def target_of(external: Mapping[str, Any]) -> str:
    """Name the target of a runnable's `external` in words."""
    if external.get("job") is not None:
        return f"Dagster job {external['job']!r}"
    return f"Dagster assets {', '.join(repr(asset) for asset in external.get('assets') or ())}"


def external_lane(fingerprint: str | None) -> str:
    """Return the fingerprint under which external attempts of a definition are scheduled."""
    return f"{fingerprint or ''}{_LANE}"


def is_external(attempt: Attempt) -> bool:
    """Return whether another system, not a worker, executes this attempt."""
    return (attempt.definition_fingerprint or "").endswith(_LANE)


def plain_fingerprint(attempt: Attempt) -> str | None:
    """Return the fingerprint of the definition that an attempt belongs to, in either lane."""
    lane = attempt.definition_fingerprint
    return lane.removesuffix(_LANE) or None if lane is not None else None
