"""The results of journal checks. Imports no Spark, so that showing a result does not load it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

NAMED = 20  # the maximum of runs that a result names; the others are counted


class Check(StrEnum):
    """The checks."""

    VIEWS = "live_views_equal_rebuild"
    LISTED = "runs_are_indexed_and_cataloged"
    SEQUENCES = "sequences_without_gaps"
    ANOMALIES = "no_new_anomalies"


class RunProblem(NamedTuple):
    """A run that a result names (without a run id: a thread or a view), and what is wrong with it."""

    run_id: str | None
    what: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check: the first runs by name, counts of all, and a remedy."""

    passed: bool
    runs: tuple[RunProblem, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    remedy: str = ""

    @property
    def unnamed(self) -> int:
        """How many runs are counted and not named."""
        return max(0, self.counts.get("found", 0) - len(self.runs))


REMEDIES = {
    Check.VIEWS: "launch squid_rebuild_views: it makes the live views anew from the journal",
    Check.LISTED: "launch squid_recovery: it writes the index and catalog facts that are missing. A listed run that "
    "never started stays listed: find out who wrote that fact",
    Check.SEQUENCES: "entries are gone or doubled: restore these threads from a backup. Where there is none, launch "
    "squid_rebuild_views, so that the views fit what is left",
    Check.ANOMALIES: "look at these runs (inspect_run, explain_run). Where an entry cannot be read, launch "
    "squid_recovery: it quarantines the run. From the next check on, these anomalies are known",
}


def make_check_result(check: Check, names: Sequence[RunProblem], total: int, counts: Mapping[str, int]) -> CheckResult:
    """Build a result; the check has passed if the total is 0."""
    passed = not total
    return CheckResult(passed, tuple(names[:NAMED]), {"found": total, **counts}, "" if passed else REMEDIES[check])
