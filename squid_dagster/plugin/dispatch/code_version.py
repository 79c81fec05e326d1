"""Which code a location has, and whether a drain run's is older.

The sensor is always evaluated by the location's newest code: it leaves a row in the presence table, one per location,
that says which version it has. A drain run looks at it: a version that is not its own, and was first told after it
began, is newer. So a run worker that happens to load other code than the code server never stops for it, and a rollback
counts as news like everything else. A cache, as all presence is: without the row, drains end by their age.
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
NO_LOCATION = "(none)"  # of runs and ticks that no code server is behind, as in a test

_AGAIN_SECONDS = 600.0  # until a version is told again by the same process: well before it is forgotten


@dataclass(slots=True)
class _Told:
    """What this process has told about locations in one journal, and when, by the monotonic clock."""

    at: dict[tuple[str, str], float] = field(default_factory=dict)


def code_version(definitions: Iterable[Definition]) -> str:
    """Give a digest of the workflows and of the files that their steps are written in; the same in every process.

    What steps call in other files does not count: where that matters, give the `build_*` functions a `code_version`.
    """
    found = sorted(_digest_of(each) for each in definitions)
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def _digest_of(definition: Definition) -> str:
    steps = definition.steps.values()
    functions = [task.function for step in steps for task in (step.task, step.compensation) if task is not None]
    sources = sorted({_source(function) for function in functions})
    return f"{definition.key} {' '.join(sources)}"


def _source(function: Callable[..., object]) -> str:
    plain = inspect.unwrap(function)
    try:
        text = Path(inspect.getsourcefile(plain) or "").read_bytes()
    except (OSError, TypeError):  # made at run time, or not made of Python
        made = getattr(plain, "__code__", None)
        text = made.co_code if made is not None else repr(type(plain)).encode()
    return hashlib.sha256(text).hexdigest()


def location_of_run(run: dg.DagsterRun) -> str:
    """Name the code location that a run was launched from."""
    origin = run.remote_job_origin
    return origin.location_name if origin is not None else NO_LOCATION


def location_of_tick(context: dg.SensorEvaluationContext) -> str:
    """Name the code location that a sensor is evaluated in."""
    origin = context.code_location_origin
    return origin.location_name if origin is not None else NO_LOCATION


def tell_version(squid: Squid, location: str, version: str) -> None:
    """Say which code the location has: once by each process, and now and then again, so that it is not forgotten.

    Raises:
        StorageUnavailable: the database cannot be reached; nothing is remembered.
    """
    told = shared(squid.journal, _Told).at
    told_at = told.get((location, version))
    if told_at is not None and time.monotonic() - told_at < _AGAIN_SECONDS:
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
    told[location, version] = time.monotonic()


def is_superseded(liveness: WorkerLiveness, worker_id: str, location: str, version: str) -> bool:
    """Tell whether the location was given other code after this worker began. Raises `StorageUnavailable`."""
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
