"""One run of very many steps, and one of very many children, from the start to the end, by one worker process.

Each in a process of its own, whose peak memory is measured. Wall time: on Postgres, a step waits for the disk.
"""

import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from bench.journals import new_journal
from bench.report import Measure
from bench.workloads import family, loop, watched
from squid_dagster.api import Squid
from squid_dagster.journal import MemoryStorage
from squid_dagster.journal.contract.storage import Storage

STEPS = 100_000
_WINDOWS = 20  # of steps, for whose mean times a figure is shown
_POSTGRES, _MEMORY = "Postgres", "memory"


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Time and memory of one run."""

    seconds: float
    early: float  # microseconds of a step in the first window
    late: float  # in the last one
    peak_mb: float


def measure(steps: int = STEPS) -> list[Measure]:
    """Drain a loop and a family, on both storages."""
    return [
        _measure(f"{steps:,} {what}, {where}", shape, where, steps)
        for where in (_POSTGRES, _MEMORY)
        for what, shape in (("visits of a loop", drain_loop), ("children", drain_family))
    ]


def _measure(name: str, shape: Callable[[str, int], RunFigures], where: str, steps: int) -> Measure:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        run = pool.submit(shape, where, steps).result()
    detail = f"{run.early:,.0f} us a step at the start, {run.late:,.0f} at the end, peak {run.peak_mb:,.0f} MB"
    return Measure(name, "s", run.seconds, detail=detail)


def drain_loop(where: str, steps: int) -> RunFigures:
    """Drain one run of so many visits."""
    workflow = loop(steps)
    with _storage(where) as storage:
        squid = Squid(storage, [workflow])
        began = time.monotonic()
        run_id = squid.start(workflow.name, {}).run_id
        times = watched(squid, time.monotonic, steps, steps // _WINDOWS)
        seconds = time.monotonic() - began
        row = squid.runtime.queries.get_run(run_id)
        assert row is not None
        assert row.status == "completed"
    return _figures(seconds, times, steps)


def drain_family(where: str, steps: int) -> RunFigures:
    """Drain one run that starts so many children, and the children."""
    *workflows, times = family(time.monotonic, steps, steps // _WINDOWS)
    with _storage(where) as storage:
        squid = Squid(storage, workflows)
        began = time.monotonic()
        squid.start("parent", {"n": steps})
        for queue in ("default", "children"):
            squid.worker(queue, until_idle=True, concurrency=10)
        seconds = time.monotonic() - began
        assert not squid.runtime.queries.backlog(["default", "children"], None, 1)
        assert not squid.list_runs(status="running", limit=1).runs
    return _figures(seconds, times, steps)


def _figures(seconds: float, times: list[float], steps: int) -> RunFigures:
    early, late = ((b - a) / (steps // _WINDOWS) * 1e6 for a, b in ((times[0], times[1]), (times[-2], times[-1])))
    return RunFigures(seconds, early, late, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


@contextmanager
def _storage(where: str) -> Iterator[Storage]:
    if where == _MEMORY:
        yield MemoryStorage()
        return
    with new_journal() as storage:
        yield storage
