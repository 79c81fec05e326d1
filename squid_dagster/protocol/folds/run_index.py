"""The folds that list runs: one index per workflow, one catalog of all runs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Self

from squid_dagster.protocol.anomalies import Anomaly, Reason, anomaly, unreadable
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.facts import RunCataloged, RunIndexed
from squid_dagster.protocol.threads import CATALOG_THREAD, run_index_thread

_INDEX_PREFIX = run_index_thread("")


class RunSummary(NamedTuple):
    """The place of a run: its workflow and queue."""

    run_id: str
    workflow: str
    queue: str
    indexed_at: datetime

    def same_place(self, other: "RunSummary") -> bool:
        """Return whether both name the same place; a repair at another time does not conflict."""
        return (self.workflow, self.queue) == (other.workflow, other.queue)


def summary(fact: RunIndexed | RunCataloged) -> RunSummary:
    """Read the place from the fact."""
    return RunSummary(fact.run_id, fact.workflow, fact.queue, fact.occurred_at)


def is_index_entry(entry: Entry) -> bool:
    """Return whether an entry stands on an index thread."""
    return entry.thread.startswith(_INDEX_PREFIX)


def is_catalog_entry(entry: Entry) -> bool:
    """Return whether an entry stands on the catalog thread."""
    return entry.thread == CATALOG_THREAD


def judge_listing(known: RunSummary | None, entry: Entry, conflict: Reason) -> RunSummary | Reason | None:
    """Return what an index or catalog entry does: the run's place, the reason why it is refused, or None."""
    if (reason := unreadable(entry)) is not None:
        return reason
    fact: Any = entry.fact
    place = summary(fact)
    if known is None:
        return place
    return None if known.same_place(place) else conflict


@dataclass(frozen=True, slots=True)
class _Listing:
    by_run_id: dict[str, RunSummary] = field(default_factory=dict)
    anomalies: tuple[Anomaly, ...] = ()

    @property
    def runs(self) -> list[RunSummary]:
        """All runs, oldest first."""
        return sorted(self.by_run_id.values(), key=lambda run: (run.indexed_at, run.run_id))

    @property
    def run_ids(self) -> frozenset[str]:
        """All run ids."""
        return frozenset(self.by_run_id)


@dataclass(frozen=True, slots=True)
class RunIndexProjection(_Listing):
    """The runs of one workflow, which is given, or that of the first entry."""

    workflow: str | None = None

    @classmethod
    def fold(
        cls, entries: Iterable[Entry], onto: "RunIndexProjection | None" = None, workflow: str | None = None
    ) -> Self:
        """Fold entries in order, onto an earlier projection if given; neither is changed. Never raises."""
        base = onto if onto is not None else RunIndexProjection(workflow=workflow)
        runs, anomalies, own_workflow = dict(base.by_run_id), list(base.anomalies), base.workflow
        for entry in entries:
            if not is_index_entry(entry):
                continue
            fact: Any = entry.fact
            verdict: RunSummary | Reason | None = unreadable(entry)
            if verdict is None and own_workflow is not None and fact.workflow != own_workflow:
                verdict = Reason.CONFLICTING_WORKFLOW
            verdict = verdict or judge_listing(runs.get(fact.run_id), entry, Reason.CONFLICTING_RUN_INDEX)
            if isinstance(verdict, Reason):
                anomalies.append(anomaly(verdict, entry))
            elif verdict is not None:
                own_workflow, runs[verdict.run_id] = verdict.workflow, verdict
        return cls(runs, tuple(anomalies), own_workflow)


@dataclass(frozen=True, slots=True)
class RunCatalogProjection(_Listing):
    """All runs."""

    @classmethod
    def fold(cls, entries: Iterable[Entry], onto: "RunCatalogProjection | None" = None) -> Self:
        """Fold entries in order, onto an earlier projection if given; neither is changed. Never raises."""
        base = onto if onto is not None else RunCatalogProjection()
        runs, anomalies = dict(base.by_run_id), list(base.anomalies)
        for entry in filter(is_catalog_entry, entries):
            fact: Any = entry.fact
            verdict = judge_listing(runs.get(fact.run_id), entry, Reason.CONFLICTING_RUN_CATALOG)
            if isinstance(verdict, Reason):
                anomalies.append(anomaly(verdict, entry))
            elif verdict is not None:
                runs[verdict.run_id] = verdict
        return cls(runs, tuple(anomalies))
