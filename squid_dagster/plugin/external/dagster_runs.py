"""What Dagster knows about external steps: its runs by our tags, what they came to, and which nobody waits for."""

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import dagster as dg

from squid_dagster.plugin.names import ABANDONED_TAG, AGENT_EXTERNAL, AGENT_TAG, RUN_ID_TAG, RUNNABLE_KEY_TAG
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.runtime.execution.step_execution import error_map
from squid_dagster.runtime.runtime import Runtime

_RUNS_PER_KEY = 5  # one is usual; a person may have executed it again, with the same tags
_STATUS = dg.DagsterRunStatus
_ENDED = {_STATUS.SUCCESS, _STATUS.FAILURE, _STATUS.CANCELED}
_ACTIVE = [status for status in _STATUS if status not in _ENDED and status is not _STATUS.NOT_STARTED]
_FAILURES = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}


class Verdict(StrEnum):
    """What Dagster's runs of one attempt say together."""

    MISSING = "missing"
    NOT_LAUNCHED = "not_launched"  # created, and never handed over: asked for again, Dagster launches that very run
    ACTIVE = "active"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Found(NamedTuple):
    """The verdict on an attempt, and the run that gives it."""

    verdict: Verdict
    run: dg.DagsterRun | None = None


_VERDICTS = {
    _STATUS.NOT_STARTED: Verdict.NOT_LAUNCHED,
    _STATUS.SUCCESS: Verdict.SUCCEEDED,
    _STATUS.FAILURE: Verdict.FAILED,
    _STATUS.CANCELED: Verdict.CANCELED,
}
_BEST_FIRST = (Verdict.SUCCEEDED, Verdict.ACTIVE, Verdict.NOT_LAUNCHED)


def storage_id(instance: dg.DagsterInstance) -> str:
    """Give the id of Dagster's run storage: another one knows nothing of the runs that were asked of this one."""
    # Not part of the storage's contract, though every storage of Dagster's own has it.
    ask: Callable[[], str] | None = getattr(instance.run_storage, "get_run_storage_id", None)
    return "unknown" if ask is None else ask()


def find_runs(instance: dg.DagsterInstance, keys: Collection[str]) -> dict[str, list[dg.DagsterRun]]:
    """Give Dagster's runs by the runnable key in their tags, newest first; one query."""
    found: dict[str, list[dg.DagsterRun]] = {}
    if keys:
        wanted = dg.RunsFilter(tags={RUNNABLE_KEY_TAG: sorted(keys)})
        for run in instance.get_runs(wanted, limit=_RUNS_PER_KEY * len(keys)):
            found.setdefault(run.tags[RUNNABLE_KEY_TAG], []).append(run)
    return found


def judge(runs: Sequence[dg.DagsterRun]) -> Found:
    """Say what the runs of one attempt, newest first, came to: a success, else what is under way, else the last end."""
    judged = [Found(_VERDICTS.get(run.status, Verdict.ACTIVE), run) for run in runs]
    for verdict in _BEST_FIRST:
        for each in judged:
            if each.verdict is verdict:
                return each
    return judged[0] if judged else Found(Verdict.MISSING)


def describe_failure(instance: dg.DagsterInstance, run: dg.DagsterRun) -> JsonObject:
    """Give the error of a run that failed: which step, and why, as Dagster's event log tells it."""
    records = instance.get_records_for_run(run.run_id, of_type=_FAILURES, limit=10).records
    reasons = [reason for record in records if (reason := _reason(record.event_log_entry.dagster_event)) is not None]
    why = reasons[0] if reasons else "its event log does not say why"
    text = f"Dagster run {run.run_id} of job {run.job_name!r} failed: {why}"
    return {**error_map("dagster_run_failed", text), **about(run)}


def _reason(event: dg.DagsterEvent | None) -> str | None:
    if event is None:
        return None
    error: Any = getattr(event.event_specific_data, "error", None)
    cause = getattr(error, "cause", None) or error
    text = str(cause.message).strip() if cause is not None else (event.message or "").strip()
    return f"step {event.step_key!r}: {text}" if event.step_key else text or None


def about(run: dg.DagsterRun) -> JsonObject:
    """Give what the journal keeps of a run."""
    return {"dagster_run_id": run.run_id, "job": run.job_name, "status": run.status.value}


def tag_abandoned(instance: dg.DagsterInstance, runtime: Runtime, waiting: Collection[str], limit: int) -> list[str]:
    """Tag active runs whose own run has ended, so that an operator finds them; give their ids. None is terminated."""
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
