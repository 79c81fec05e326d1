"""Dagster's runs of external steps: found by our tags, their status, their errors, and those of ended squid runs."""

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import dagster as dg

from squid_dagster.plugin.names import ABANDONED_TAG, AGENT_EXTERNAL, AGENT_TAG, RUN_ID_TAG, RUNNABLE_KEY_TAG
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.runtime.execution.step_execution import error_map
from squid_dagster.runtime.runtime import Runtime

_RUNS_PER_KEY = 5  # usually one; more if a person has re-executed it, with the same tags
_DagsterStatus = dg.DagsterRunStatus
_ENDED = {_DagsterStatus.SUCCESS, _DagsterStatus.FAILURE, _DagsterStatus.CANCELED}
_ACTIVE = [status for status in _DagsterStatus if status not in _ENDED and status is not _DagsterStatus.NOT_STARTED]
_FAILURES = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}


class ExternalStatus(StrEnum):
    """The status of an attempt by all its Dagster runs."""

    MISSING = "missing"
    NOT_LAUNCHED = "not_launched"  # created only: on the next request, Dagster launches that very run
    ACTIVE = "active"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class ExternalRun(NamedTuple):
    """The status of an attempt, and the Dagster run that decides it."""

    status: ExternalStatus
    run: dg.DagsterRun | None = None


_STATUSES = {
    _DagsterStatus.NOT_STARTED: ExternalStatus.NOT_LAUNCHED,
    _DagsterStatus.SUCCESS: ExternalStatus.SUCCEEDED,
    _DagsterStatus.FAILURE: ExternalStatus.FAILED,
    _DagsterStatus.CANCELED: ExternalStatus.CANCELED,
}
_BEST_FIRST = (ExternalStatus.SUCCEEDED, ExternalStatus.ACTIVE, ExternalStatus.NOT_LAUNCHED)


def storage_id(instance: dg.DagsterInstance) -> str:
    """Return the id of Dagster's run storage: another storage does not have the runs that this one has."""
    # Not part of the storage's contract, but every storage of Dagster's own has it.
    method: Callable[[], str] | None = getattr(instance.run_storage, "get_run_storage_id", None)
    return "unknown" if method is None else method()


def find_runs(instance: dg.DagsterInstance, keys: Collection[str]) -> dict[str, list[dg.DagsterRun]]:
    """Find Dagster's runs by the runnable key in their tags, newest first; one query."""
    runs: dict[str, list[dg.DagsterRun]] = {}
    if keys:
        wanted = dg.RunsFilter(tags={RUNNABLE_KEY_TAG: sorted(keys)})
        for run in instance.get_runs(wanted, limit=_RUNS_PER_KEY * len(keys)):
            runs.setdefault(run.tags[RUNNABLE_KEY_TAG], []).append(run)
    return runs


def deciding_run(runs: Sequence[dg.DagsterRun]) -> ExternalRun:
    """Select from the runs of one attempt, newest first: a success, else one that is under way, else the newest."""
    candidates = [ExternalRun(_STATUSES.get(run.status, ExternalStatus.ACTIVE), run) for run in runs]
    for status in _BEST_FIRST:
        for candidate in candidates:
            if candidate.status is status:
                return candidate
    return candidates[0] if candidates else ExternalRun(ExternalStatus.MISSING)


def describe_failure(instance: dg.DagsterInstance, run: dg.DagsterRun) -> JsonObject:
    """Return the error of a run that failed: the step, and the reason in Dagster's event log."""
    records = instance.get_records_for_run(run.run_id, of_type=_FAILURES, limit=10).records
    reasons = [reason for record in records if (reason := _reason(record.event_log_entry.dagster_event)) is not None]
    why = reasons[0] if reasons else "its event log does not say why"
    text = f"Dagster run {run.run_id} of job {run.job_name!r} failed: {why}"
    return {**error_map("dagster_run_failed", text), **run_fields(run)}


def _reason(event: dg.DagsterEvent | None) -> str | None:
    if event is None:
        return None
    error: Any = getattr(event.event_specific_data, "error", None)
    cause = getattr(error, "cause", None) or error
    text = str(cause.message).strip() if cause is not None else (event.message or "").strip()
    return f"step {event.step_key!r}: {text}" if event.step_key else text or None


def run_fields(run: dg.DagsterRun) -> JsonObject:
    """Return the fields of a run that the journal stores."""
    return {"dagster_run_id": run.run_id, "job": run.job_name, "status": run.status.value}


def tag_abandoned(instance: dg.DagsterInstance, runtime: Runtime, waiting: Collection[str], limit: int) -> list[str]:
    """Tag active runs whose squid run has ended, for operators to find them; return their ids. None is terminated."""
    active = instance.get_runs(dg.RunsFilter(tags={AGENT_TAG: AGENT_EXTERNAL}, statuses=_ACTIVE), limit=limit)
    tagged: list[str] = []
    for run in active:
        run_id = run.tags.get(RUN_ID_TAG)
        if run_id is None or ABANDONED_TAG in run.tags or run.tags.get(RUNNABLE_KEY_TAG) in waiting:
            continue
        row = runtime.queries.get_run(run_id)
        if row is not None and row.terminal_status is not None:
            instance.add_run_tags(run.run_id, {ABANDONED_TAG: row.terminal_status})
            tagged.append(run.run_id)
    return tagged
