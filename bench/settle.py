"""Settling a step: by its place in a run, and by the length of the run. CPU of this process and of the server.

All figures of one call come from one server, and each ratio from runs that were drained one after another.

Long and wide runs are compared with the tenth step of a run. One such step takes less than a tick of the clock of CPU
times, so its cost is that of many: small runs in which fifteen such steps are settled, less as many with five. Starts,
ends and pauses cancel out, and no reading falls into a run. Visits are those of runs one after another in
one warm worker, alone like the long one. Siblings are those of runs whose first steps are done, in groups as full as in
the wide one. Either side is a median of several such spans, so that a checkpoint has no weight.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Lock

from bench.journals import new_journal
from bench.report import Measure, progress
from bench.workloads import (
    CHECKPOINTED,
    EARLY,
    ROUNDS,
    WINDOW,
    calls_about,
    chain,
    conditional,
    decided_loop,
    family,
    fan,
    loop,
    watched,
)
from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.contract.dispatch_store import DEFAULT_LEASE, Claim
from squid_dagster.runtime.leases.claim_by_key import claim_item
from squid_dagster.runtime.worker.report import SettledAttempt
from squid_dagster.workflow import Workflow

RUNS, CHAIN, WIDTH = 400, 11, 100
VISITS, SIBLINGS, CHILDREN = 10_000, 2_000, 10_000
BEFORE, BEYOND = 5, 15  # steps of the runs whose difference is what the tenth step costs
EARLY_RUNS, SPANS, LATE_SPANS = 40, 5, 3
_PATIENCE = timedelta(minutes=5)
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of this process and of the server, and bytes of WAL."""

    client: float
    server: float
    wal: float

    def __sub__(self, other: "Cost") -> "Cost":
        """Return the difference."""
        return Cost(self.client - other.client, self.server - other.server, self.wal - other.wal)

    def __truediv__(self, steps: int) -> "Cost":
        """Return the mean of so many steps."""
        return Cost(self.client / steps, self.server / steps, self.wal / steps)

    @property
    def microseconds(self) -> float:
        """CPU time of both processes."""
        return (self.client + self.server) * 1e6


class CostReader:
    """Reads CPU time and WAL so far."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Find the server by its postmaster."""
        self._storage = storage
        self._postmaster = int(storage.rows("SELECT pg_read_file('postmaster.pid')")[0][0].split("\n")[0])
        self._ended = 0.0

    def read(self) -> Cost:
        """Return CPU and WAL so far; ended backends count by their postmaster."""
        wal = int(self._storage.rows("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")[0][0])
        server = _cpu(self._postmaster, children=True) + sum(_cpu(pid) for pid in _children(self._postmaster))
        return Cost(time.process_time(), server, wal)


def _cpu(pid: int, *, children: bool = False) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(ticks) for ticks in fields[11 : 15 if children else 13]) / _TICK


def _children(pid: int) -> list[int]:
    pids = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        pids += [int(child) for child in (task / "children").read_text().split()]
    return pids


def measure(visits: int = VISITS, siblings: int = SIBLINGS, children: int = CHILDREN) -> list[Measure]:
    """Compare a middle step, a sibling and a step with conditions with a run's last one; then long and wide runs."""
    return [*places(), *lengths(visits), *widths(siblings), *families(children), *commands(visits)]


@contextmanager
def _squid(*workflows: Workflow) -> Iterator[tuple[Squid, CostReader]]:
    with new_journal() as storage:
        yield Squid(storage, list(workflows)), CostReader(storage)


def places() -> list[Measure]:
    """Measure one step by its place in the run."""
    one, several, routed, wide = chain(1), chain(CHAIN), conditional(CHAIN), fan(WIDTH)
    with _squid(one, several, routed, wide) as (squid, reader):
        for workflow in (one, several, routed, wide):
            _drain(squid, reader, workflow, 5)  # connections, plans, code
        last = min(_drain(squid, reader, one, RUNS) for _ in range(3)) / RUNS
        middle = (_drain(squid, reader, several, RUNS) / RUNS - last) / (CHAIN - 1)
        branch = (_drain(squid, reader, routed, RUNS) / RUNS - last) / (CHAIN - 1)
        side = (_drain(squid, reader, wide, RUNS // 10) / (RUNS // 10) - last - middle) / WIDTH
    return [
        _beside("step in the middle of a chain", middle, last, 1.5, "the last of a run"),
        _beside("sibling of a fan-out", side, last, 1.5, "the last step of a run"),
        _beside("step with conditions", branch, last, 2.0, "the last of a run"),
    ]


def _drain(squid: Squid, reader: CostReader, workflow: Workflow, runs: int) -> float:
    """Start runs, drain them, and return the microseconds that draining took."""
    squid.start_many(workflow.name, [{"n": 1}] * runs)
    before = reader.read()
    squid.worker(until_idle=True, concurrency=10)
    spent = reader.read() - before
    progress(workflow.name, runs, runs)
    return spent.microseconds


def lengths(visits: int) -> list[Measure]:
    """Measure visits of one step, the tenth and the last of them."""
    workflows = {size: loop(size) for size in (BEFORE, BEYOND, visits)}
    with _squid(*workflows.values()) as (squid, reader):
        early = _tenth(lambda size: _in_turn(squid, reader, workflows[size], size))
        run_id = squid.start(workflows[visits].name, {}).run_id
        late = _last(watched(squid, reader.read, visits))
        assert squid.inspect_run(run_id).status == "completed"
    return _early_and_late(f"visit {visits:,} of a loop", early, late)


def widths(siblings: int) -> list[Measure]:
    """Measure siblings of one fan-out: the tenth of a narrow one, and the last of a wide one."""
    workflows = {size: fan(size) for size in (BEFORE, BEYOND, siblings)}

    with _squid(*workflows.values()) as (squid, reader):

        def narrow(size: int) -> Cost:
            squid.start_many(workflows[size].name, [{}] * EARLY_RUNS)
            for _ in range(EARLY_RUNS):
                squid.execute_next()  # the first step, which plans the siblings
            before = reader.read()
            squid.worker(until_idle=True, concurrency=10)
            return reader.read() - before

        early = _tenth(narrow)
        run_id = squid.start(workflows[siblings].name, {}).run_id
        squid.execute_next()
        late = _last(watched(squid, reader.read, siblings))
        assert squid.inspect_run(run_id).status == "completed"
    return _early_and_late(f"sibling {siblings:,}", early, late)


def families(children: int) -> list[Measure]:
    """Measure starts of children by one step, the tenth and the last of them."""
    with _squid() as (empty, reader):
        *workflows, costs = family(reader.read, children)
        squid = Squid(empty.journal, workflows)

        def small_families(size: int) -> Cost:
            squid.start_many("parent", [{"n": size}] * EARLY_RUNS, queue="parents")
            before = reader.read()
            squid.worker("parents", until_idle=True, concurrency=1)
            return reader.read() - before

        early = _tenth(small_families)
        run_id = squid.start("parent", {"n": children}, queue="parents").run_id
        squid.execute_next("parents")
        assert squid.inspect_run(run_id).status == "completed"
    return _early_and_late(f"child {children:,} of one parent", early, _last(costs))


def _tenth(spend: Callable[[int], Cost]) -> list[Cost]:
    """Return the mean of the steps around the tenth, for every span; the first span warms up."""
    spans = []
    for number in range(SPANS + 1):
        beyond, before = spend(BEYOND), spend(BEFORE)
        spans.append((beyond - before) / (EARLY_RUNS * (BEYOND - BEFORE)))
        progress("early spans", number, SPANS)
    return spans[1:]


def _last(costs: list[Cost]) -> list[Cost]:
    """Return the mean of a step in each of the last windows, except the one in which the run ends."""
    return [(after - before) / WINDOW for before, after in pairwise(costs[-LATE_SPANS - 2 : -1])]


def _in_turn(squid: Squid, reader: CostReader, workflow: Workflow, attempts: int) -> Cost:
    """Drain runs of so many attempts in one worker, each started when the one before has ended. Return the cost."""
    left, counting = EARLY_RUNS * attempts, Lock()

    def settled(outcomes: Sequence[SettledAttempt]) -> None:
        nonlocal left
        with counting:
            left -= len(outcomes)
            ended, over = left % attempts == 0, left == 0
        if over:
            worker.stop()
        elif ended:
            squid.start(workflow.name, {})

    worker = squid.new_worker("default", concurrency=10, housekeeping=None, max_age=_PATIENCE, on_settled=settled)
    squid.start(workflow.name, {})
    before = reader.read()
    worker.run()
    assert left == 0
    return reader.read() - before


def commands(visits: int) -> list[Measure]:
    """Measure an approval, a keyed signal, an external outcome and a claim by key, early and late in one run.

    In the process that has settled the run, beside the tenth visit; and in one without any state of it, beside a visit
    of a run that is just long enough for a checkpoint.
    """
    workflow = decided_loop(visits)
    with _squid(workflow) as (squid, _):
        run_id = squid.start(workflow.name, {}).run_id
        early, middle, late = (
            _commanded(squid, workflow, run_id, begin, 1 + ROUNDS * n)
            for n, begin in enumerate((EARLY, CHECKPOINTED, visits))
        )
        squid.worker(until_idle=True)
        assert squid.inspect_run(run_id).status == "completed"
    bases = {name: (middle, CHECKPOINTED) if name.startswith("cold") else (early, EARLY) for name in late}
    return [
        _slower(f"{name} at visit {visits:,}", late[name], base[name], f"visit {begin:,}")
        for name, (base, begin) in bases.items()
    ]


def _commanded(squid: Squid, workflow: Workflow, run_id: str, begin: int, first: int) -> dict[str, float]:
    """Drain the run up to a visit, decide at each from there on, and return the median seconds by command."""
    spent: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        squid.worker(until_idle=True)
        progress(f"commands at visit {begin:,}", number + 1, ROUNDS)
        cold = number % 2 == 1
        calls = calls_about(run_id, f"{run_id}:elsewhere:{first + number}:1")
        calls["claim by key"] = partial(claim_by_key, run_id, f"{run_id}:turn:{begin + number + 1}")
        actors = [Squid(squid.journal, [workflow]) if cold else squid for _ in calls]
        for (name, call), actor in zip(calls.items(), actors, strict=True):
            before = time.perf_counter()
            answer = call(actor)
            spent.setdefault(f"cold {name}" if cold else name, []).append(time.perf_counter() - before)
            if isinstance(answer, Claim):
                squid.runtime.dispatch.release([answer.ref])
    return {name: median(seconds) for name, seconds in spent.items()}


def claim_by_key(run_id: str, item_id: str, squid: Squid) -> object:
    """Claim the open attempt of a visit."""
    return claim_item(squid.runtime, run_id, item_id, "bench", DEFAULT_LEASE)


def _early_and_late(name: str, early: list[Cost], late: list[Cost]) -> list[Measure]:
    """Compare the medians of spans."""
    early_us, late_us = (median(cost.microseconds for cost in costs) for costs in (early, late))
    early_wal, late_wal = (median(cost.wal for cost in costs) for costs in (early, late))
    return [
        _beside(name, late_us, early_us, 1.5, "the 10th"),
        Measure(
            f"WAL of {name}",
            "times as much",
            late_wal / early_wal,
            at_most=1.5,
            detail=f"{late_wal:,.0f} bytes beside {early_wal:,.0f}",
        ),
    ]


def _slower(name: str, seconds: float, base: float, what: str) -> Measure:
    detail = f"{seconds * 1e3:,.2f} ms beside {base * 1e3:,.2f} ms of {what}"
    return Measure(name, "times as long", seconds / base, at_most=1.5, detail=detail)


def _beside(name: str, value: float, base: float, most: float, what: str) -> Measure:
    detail = f"{value:,.0f} us of both processes beside {base:,.0f} us of {what}"
    return Measure(name, "times as much CPU", value / base, at_most=most, detail=detail)
