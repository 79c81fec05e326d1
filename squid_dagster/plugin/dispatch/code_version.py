"""The code version of a location, and whether a drain run has older code.

The sensor is always evaluated by the location's newest code: it upserts a liveness row, one per location, with its
version. A drain run reads it: a version that is not its own, and was first reported after the run began, is newer. So a
run worker that happens to load other code than the code server does not stop for it, and a rollback counts as a change.
A cache, as all liveness rows are: without the row, drains end by their age.
"""

import hashlib
import inspect
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg

from squid_dagster.api import Squid
from squid_dagster.journal.contract.worker_liveness import FORGOTTEN_AFTER, WorkerLiveness, WorkerRow
from squid_dagster.journal.per_storage import shared
from squid_dagster.workflow.definition import Definition

LOCATION_KIND = "dagster_location"
NO_LOCATION = "(none)"  # of runs and ticks without a code server, as in a test

_AGAIN_SECONDS = 600.0  # until the same process reports a version again: well before the row is deleted


@dataclass(slots=True)
class _Reported:
    """When this process reported versions of locations to one journal, by the monotonic clock."""

    at: dict[tuple[str, str], float] = field(default_factory=dict)


def code_version(definitions: Iterable[Definition]) -> str:
    """Return a digest of the workflows and of the files of their steps' functions; the same in every process.

    Other files that steps call do not count: if that matters, pass a `code_version` to the `build_*` functions.
    """
    digests = sorted(_digest_of(definition) for definition in definitions)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]


def _digest_of(definition: Definition) -> str:
    steps = definition.steps.values()
    functions = [task.function for step in steps for task in (step.task, step.compensation) if task is not None]
    sources = sorted({_source(function) for function in functions})
    return f"{definition.key} {' '.join(sources)}"


def _source(function: Callable[..., object]) -> str:
    plain = inspect.unwrap(function)
    try:
        text = Path(inspect.getsourcefile(plain) or "").read_bytes()
    except (OSError, TypeError):  # created at run time, or not written in Python
        code = getattr(plain, "__code__", None)
        text = code.co_code if code is not None else repr(type(plain)).encode()
    return hashlib.sha256(text).hexdigest()


def location_of_run(run: dg.DagsterRun) -> str:
    """Name the code location that a run was launched from."""
    origin = run.remote_job_origin
    return origin.location_name if origin is not None else NO_LOCATION


def location_of_tick(context: dg.SensorEvaluationContext) -> str:
    """Name the code location that a sensor is evaluated in."""
    origin = context.code_location_origin
    return origin.location_name if origin is not None else NO_LOCATION


def report_version(squid: Squid, location: str, version: str) -> None:
    """Upsert the location's version: once in each process, and every ten minutes, so that the row is not deleted.

    Raises:
        StorageUnavailable: the database cannot be reached; the next call tries again.
    """
    reported = shared(squid.journal, _Reported).at
    reported_at = reported.get((location, version))
    if reported_at is not None and time.monotonic() - reported_at < _AGAIN_SECONDS:
        return
    liveness = squid.runtime.liveness
    mine = _worker_id(location, version)
    for row in liveness.workers(FORGOTTEN_AFTER):
        if _is_of(row, location) and row.worker_id != mine:
            liveness.withdraw(row.worker_id)
    liveness.report(
        WorkerRow(
            worker_id=mine,
            kind=LOCATION_KIND,
            queues=(),
            definitions=(),
            host=socket.gethostname(),
            pid=os.getpid(),
            capacity=0,
            details={"location": location, "code_version": version},
        )
    )
    reported[location, version] = time.monotonic()


def is_superseded(liveness: WorkerLiveness, worker_id: str, location: str, version: str) -> bool:
    """Return whether the location has got other code since this worker began. Raises `StorageUnavailable`."""
    rows = liveness.workers(FORGOTTEN_AFTER)
    began = next((row.started_at for row in rows if row.worker_id == worker_id), None)
    return began is not None and any(
        row.details.get("code_version") != version and row.started_at is not None and row.started_at > began
        for row in rows
        if _is_of(row, location)
    )


def _is_of(row: WorkerRow, location: str) -> bool:
    return row.kind == LOCATION_KIND and row.details.get("location") == location


def _worker_id(location: str, version: str) -> str:
    named = hashlib.sha256(f"{len(location)}:{location}:{version}".encode()).hexdigest()[:24]
    return f"{LOCATION_KIND}:{named}"
