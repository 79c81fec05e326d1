"""What the checks of a journal say. Imports no Spark, so that whoever only shows findings need not wait for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

NAMED = 20  # so many are named; the others are counted


class Check(StrEnum):
    """The checks, by name."""

    VIEWS = "live_views_equal_rebuild"
    LISTED = "runs_are_indexed_and_cataloged"
    SEQUENCES = "sequences_without_gaps"
    ANOMALIES = "no_new_anomalies"


class Named(NamedTuple):
    """A run that a check names, or, without a run, a thread or a view; and what is wrong with it."""

    run_id: str | None
    what: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: the first runs by name, counts of everything, and what to do about it."""

    passed: bool
    runs: tuple[Named, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    remedy: str = ""

    @property
    def unnamed(self) -> int:
        """How many more there are that are not named."""
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


def make_finding(check: Check, names: Sequence[Named], found: int, counts: Mapping[str, int]) -> Finding:
    """Make a finding of what was found: nothing, and the check has passed."""
    passed = not found
    return Finding(passed, tuple(names[:NAMED]), {"found": found, **counts}, "" if passed else REMEDIES[check])
