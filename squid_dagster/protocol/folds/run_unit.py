"""The unit of folding is the run: all of its facts, from every thread, in the order of their positions.

Live views store one `RunUnit` per run as rows, Spark folds one per group, and inspection reads one. Only the pure
functions here join the run's own thread with its queue's.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from squid_dagster.protocol.anomalies import Anomaly, Reason, anomaly
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.facts import Runnable
from squid_dagster.protocol.folds.attempt import Attempt, AttemptStatus, claim_order
from squid_dagster.protocol.folds.dispatch import STOPS, RunDispatch, apply_dispatch
from squid_dagster.protocol.folds.run import RunProjection, apply_run
from squid_dagster.protocol.folds.run_index import RunSummary, is_catalog_entry, is_index_entry, judge_listing
from squid_dagster.protocol.threads import run_thread

_RUN_PREFIX = run_thread("")


@dataclass(slots=True)
class RunUnit:
    """One run, folded from all of its facts. A value: `fold` works on a copy."""

    run: RunProjection = field(default_factory=RunProjection)
    dispatch: RunDispatch = field(default_factory=RunDispatch)
    indexed: RunSummary | None = None
    cataloged: RunSummary | None = None
    listing_anomalies: list[Anomaly] = field(default_factory=list)

    @classmethod
    def fold(cls, entries: Iterable[Entry], onto: "RunUnit | None" = None) -> "RunUnit":
        """Fold a run's entries by position, onto an earlier unit if given; neither is changed. Never raises."""
        unit = onto.copy() if onto is not None else cls()
        for entry in entries:
            apply_unit(unit, entry)
        return unit

    def copy(self) -> "RunUnit":
        """Return an independent copy."""
        return RunUnit(
            self.run.copy(), self.dispatch.copy(), self.indexed, self.cataloged, list(self.listing_anomalies)
        )

    @property
    def anomalies(self) -> list[Anomaly]:
        """All anomalies of the run, in the order of the entries that caused them."""
        anomalies = [*self.run.anomalies, *self.dispatch.anomalies, *self.listing_anomalies]
        return sorted(anomalies, key=lambda a: (a.position, a.thread, a.seq))


def apply_unit(unit: RunUnit, entry: Entry) -> None:
    """Fold one entry of the run into `unit`, in place."""
    if entry.thread.startswith(_RUN_PREFIX):
        apply_run(unit.run, entry)
        if entry.fact.type in STOPS:
            apply_dispatch(unit.dispatch, entry)
    elif is_index_entry(entry):
        verdict = judge_listing(unit.indexed, entry, Reason.CONFLICTING_RUN_INDEX)
        unit.indexed = _listed(unit, entry, verdict) or unit.indexed
    elif is_catalog_entry(entry):
        verdict = judge_listing(unit.cataloged, entry, Reason.CONFLICTING_RUN_CATALOG)
        unit.cataloged = _listed(unit, entry, verdict) or unit.cataloged
    else:
        apply_dispatch(unit.dispatch, entry)


def _listed(unit: RunUnit, entry: Entry, verdict: RunSummary | Reason | None) -> RunSummary | None:
    if isinstance(verdict, Reason):
        unit.listing_anomalies.append(anomaly(verdict, entry))
        return None
    return verdict


def results_ready_to_apply(run: RunProjection, dispatch: RunDispatch) -> list[Attempt]:
    """Return completed attempts that the run planned and has not applied yet; none once the run has stopped."""
    if run.stopped:
        return []
    ready = (
        attempt
        for key, attempt in dispatch.attempts.items()
        if attempt.status is AttemptStatus.COMPLETED and key in run.planned and key not in run.applied
    )
    return sorted(ready, key=lambda a: (a.settled_at or a.last_at, a.runnable_key))


def planned_but_unscheduled(run: RunProjection, dispatch: RunDispatch) -> list[Runnable]:
    """Return planned runnables that are on no queue and were not applied; none once the run has stopped."""
    if run.stopped:
        return []
    return [
        planned.runnable
        for key, planned in run.planned.items()
        if planned.runnable is not None and key not in dispatch.attempts and key not in run.applied
    ]


def unfenced_attempts(run: RunProjection, dispatch: RunDispatch) -> list[Attempt]:
    """Return attempts of an ended run that are still open by the queue's thread alone; recovery fences them."""
    return sorted(dispatch.open_attempts(), key=claim_order) if run.terminal else []
